package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/evalonce/evalonce/pkg/access"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/rpc"
)

// Config is everything that can be set.
type Config struct {
	DatabaseURL            string `env:"EVALONCE_DATABASE_URL,required,notEmpty" secret:"true" help:"Postgres, as a URL or as keyword=value pairs"`
	ReadDatabaseURL        string `env:"EVALONCE_READ_DATABASE_URL" secret:"true" help:"a streaming replica that comparisons and fsck read from; empty reads from the database itself"`
	DatabaseMaxConnections int32  `env:"EVALONCE_DATABASE_MAX_CONNECTIONS" envDefault:"8" help:"connections of this process at most, and as many to the replica"`
	GRPCAddress            string `env:"EVALONCE_GRPC_ADDRESS" envDefault:":8084" help:"where gRPC is served; port 0 takes a free one"`
	HTTPAddress            string `env:"EVALONCE_HTTP_ADDRESS" envDefault:":8083" help:"where REST is served; port 0 takes a free one"`
	HealthAddress          string `env:"EVALONCE_HEALTH_ADDRESS" envDefault:":8086" help:"serves /healthz, /readyz and /metrics, without credentials; empty serves none of them"`
	Access                 access.Config
	AdminTokens            rpc.Tokens    `env:"EVALONCE_ADMIN_TOKENS" secret:"true" help:"operator=hash[,operator=hash...], where hash is the SHA-256 of an API token in hex"`
	MaxRequestBytes        int           `env:"EVALONCE_MAX_REQUEST_BYTES" envDefault:"16777216" help:"largest request, in bytes as sent; a truth to compare with takes about 80 for each ticket"`
	SnapshotInterval       time.Duration `env:"EVALONCE_SNAPSHOT_INTERVAL" envDefault:"15s" help:"how old what is measured of the tables may be; one replica measures for all"`
	CallTimeout            time.Duration `env:"EVALONCE_CALL_TIMEOUT" envDefault:"30s" help:"longest time of one call, whatever its deadline"`
	ShutdownGrace          time.Duration `env:"EVALONCE_SHUTDOWN_GRACE" envDefault:"25s" help:"time that running calls get when the service stops"`
}

// largestVersion is about the largest version that is valid, in bytes.
const largestVersion = evaluation.MaxPromptBytes + evaluation.MaxDepartments*(evaluation.MaxNameBytes+evaluation.MaxDescriptionBytes) + 4096

// Validate finds the values that would refuse every request.
func (c Config) Validate() error {
	var problems []error
	refuse := func(name, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s %s", name, fmt.Sprintf(format, args...)))
	}
	if c.DatabaseMaxConnections < 1 {
		refuse("EVALONCE_DATABASE_MAX_CONNECTIONS", "must be at least 1")
	}
	if c.MaxRequestBytes < largestVersion {
		refuse("EVALONCE_MAX_REQUEST_BYTES", "must be at least %d, for the largest version", largestVersion)
	}
	if c.SnapshotInterval < time.Second {
		refuse("EVALONCE_SNAPSHOT_INTERVAL", "must be at least 1s")
	}
	if c.CallTimeout <= 0 {
		refuse("EVALONCE_CALL_TIMEOUT", "must be positive")
	}
	if c.ShutdownGrace <= 0 {
		refuse("EVALONCE_SHUTDOWN_GRACE", "must be positive")
	}
	return errors.Join(append(problems, c.Access.Validate())...)
}
