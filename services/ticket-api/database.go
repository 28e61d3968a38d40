package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/postgres"
)

const (
	// A process that is frozen, or cut off, must not hold its locks for longer: workers and other clients wait for them.
	idleInTransaction = 5 * time.Second
	// Whoever waits for longer is told to call again.
	lockTimeout = 10 * time.Second
)

// openDatabase opens the service's pool, and measures it until the meter provider ends.
func openDatabase(ctx context.Context, cfg Config, spans bool) (*pgxpool.Pool, error) {
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: cfg.DatabaseMaxConnections, AppName: serviceName, StatementTimeout: cfg.CallTimeout,
		LockTimeout: lockTimeout, IdleInTransactionTimeout: idleInTransaction,
		Spans: spans,
	})
	if err != nil {
		return nil, err
	}
	if _, err := metrics.Pools(otel.Meter(serviceName), map[string]*pgxpool.Pool{"ticket-api": pool}); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}
