module github.com/evalonce/evalonce/migrations

go 1.26.0
