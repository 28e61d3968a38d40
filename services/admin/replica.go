package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/postgres"
)

// openReplica opens what is read from where tables are read whole; without a replica that is the primary. No lock is waited
// for there: nothing but reads begins on it.
func openReplica(ctx context.Context, cfg Config, primary *pgxpool.Pool, spans bool) (*pgxpool.Pool, error) {
	if cfg.ReadDatabaseURL == "" {
		return primary, nil
	}
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.ReadDatabaseURL, MaxConns: cfg.DatabaseMaxConnections, AppName: serviceName, StatementTimeout: cfg.CallTimeout,
		IdleInTransactionTimeout: idleInCall, Spans: spans,
	})
	if err != nil {
		return nil, fmt.Errorf("open the replica: %w", err)
	}
	return pool, nil
}
