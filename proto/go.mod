module github.com/evalonce/evalonce/proto

go 1.26.0
