module github.com/evalonce/evalonce/deploy/local

go 1.26.0
