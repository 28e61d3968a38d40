package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

const (
	// A process that is frozen, or cut off, must not hold its locks for longer: workers and other clients wait for them.
	idleInTransaction = 5 * time.Second
	// Whoever waits for longer is told to call again.
	lockTimeout = 10 * time.Second
)

// database is where tickets are written and read back, and where lists are read: a replica, or the same.
type database struct{ primary, lists *pgxpool.Pool }

// openDatabase opens the service's pools, and measures them until the meter provider ends.
func openDatabase(ctx context.Context, cfg Config, spans bool) (database, error) {
	open := func(url string) (*pgxpool.Pool, error) {
		return postgres.Open(ctx, postgres.Config{
			URL: url, MaxConns: cfg.DatabaseMaxConnections, AppName: serviceName, StatementTimeout: cfg.CallTimeout,
			LockTimeout: lockTimeout, IdleInTransactionTimeout: idleInTransaction,
			Spans: spans,
		})
	}
	primary, err := open(cfg.DatabaseURL)
	if err != nil {
		return database{}, err
	}
	db, measured := database{primary: primary, lists: primary}, map[string]*pgxpool.Pool{"ticket-api": primary}
	if cfg.ReadDatabaseURL != "" {
		if db.lists, err = open(cfg.ReadDatabaseURL); err != nil {
			primary.Close()
			return database{}, fmt.Errorf("open the replica: %w", err)
		}
		measured["replica"] = db.lists
	}
	if _, err := metrics.Pools(otel.Meter(serviceName), measured); err != nil {
		db.close()
		return database{}, err
	}
	return db, nil
}

func (db database) close() {
	db.primary.Close()
	db.lists.Close()
}

// tickets shows a client what it has written, at once; a list may be as old as the replica.
func (db database) tickets() tickets {
	return tickets{Store: ticketdb.New(db.primary), lists: ticketdb.New(db.lists)}
}

type tickets struct {
	*ticketdb.Store
	lists *ticketdb.Store
}

// List reads from the replica, where there is one.
func (t tickets) List(ctx context.Context, scope ticketdb.Scope, f ticketdb.ListFilter, after *ticketdb.Position, limit int) (
	[]ticketdb.Ticket, *ticketdb.Position, error,
) {
	return t.lists.List(ctx, scope, f, after, limit)
}
