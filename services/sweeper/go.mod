module github.com/evalonce/evalonce/services/sweeper

go 1.26.0
