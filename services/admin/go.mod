module github.com/evalonce/evalonce/services/admin

go 1.26.0

require (
	github.com/evalonce/evalonce/migrations v0.0.0
	github.com/evalonce/evalonce/pkg v0.0.0
	github.com/evalonce/evalonce/proto v0.0.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)

replace github.com/evalonce/evalonce/migrations => ../../migrations

replace github.com/evalonce/evalonce/proto => ../../proto

replace github.com/evalonce/evalonce/pkg => ../../pkg
