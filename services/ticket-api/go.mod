module github.com/evalonce/evalonce/services/ticket-api

go 1.26.0
