package main

import (
	"time"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

const (
	// A worker that is frozen in a transaction, or cut off, must not hold its locks for longer: others wait for them,
	// and clients who create the same ticket. One that goes on afterwards tries again.
	idleInTransaction = 5 * time.Second
	// What waits for longer, or takes longer, is given up and tried again: leases are kept meanwhile.
	lockTimeout      = 20 * time.Second
	statementTimeout = time.Minute
)

// database is how all pools of a worker are opened.
func (c *Config) database(environ []string) postgres.Config {
	return postgres.Config{
		URL: c.DatabaseURL, AppName: serviceName,
		StatementTimeout: statementTimeout, LockTimeout: lockTimeout, IdleInTransactionTimeout: idleInTransaction,
		Spans: telemetry.Exporting(environ),
	}
}
