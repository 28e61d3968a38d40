module github.com/evalonce/evalonce/services/admin

go 1.26.0
