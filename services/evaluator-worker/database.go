package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

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

// listenURL is where hints of new work are heard; empty for a worker that polls alone. Through a pooler none are: what
// listens is a session.
func (c *Config) listenURL(ctx context.Context, db *pgxpool.Pool) (string, error) {
	switch {
	case !c.Listen:
		return "", nil
	case c.DirectDatabaseURL != "":
		return c.DirectDatabaseURL, nil
	}
	pooled, err := postgres.Pooled(ctx, db)
	if err != nil {
		return "", err
	}
	if pooled {
		slog.WarnContext(ctx, "a pooler answers for Postgres and EVALONCE_DIRECT_DATABASE_URL is not set: polling alone finds new work",
			slog.Duration("poll_interval", c.PollInterval))
		return "", nil
	}
	return c.DatabaseURL, nil
}
