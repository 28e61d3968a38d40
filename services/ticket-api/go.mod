module github.com/evalonce/evalonce/services/ticket-api

go 1.26.0

require (
	github.com/evalonce/evalonce/migrations v0.0.0
	github.com/evalonce/evalonce/pkg v0.0.0
	github.com/evalonce/evalonce/proto v0.0.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/text v0.44.0 // indirect
)

replace github.com/evalonce/evalonce/migrations => ../../migrations

replace github.com/evalonce/evalonce/proto => ../../proto

replace github.com/evalonce/evalonce/pkg => ../../pkg
