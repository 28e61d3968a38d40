module github.com/evalonce/evalonce/deploy/local

go 1.26.0

require (
	github.com/evalonce/evalonce/migrations v0.0.0
	github.com/evalonce/evalonce/pkg v0.0.0
	github.com/evalonce/evalonce/proto v0.0.0
)

require github.com/jedib0t/go-pretty/v6 v6.9.2 // indirect

replace github.com/evalonce/evalonce/migrations => ../../migrations

replace github.com/evalonce/evalonce/proto => ../../proto

replace github.com/evalonce/evalonce/pkg => ../../pkg
