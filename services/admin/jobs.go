package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/services/admin/internal/job"
)

const (
	jobPoll  = time.Second
	jobRetry = time.Second
	// jobLease is how long a job rests whose replica has died. A chunk may take longer: its lock keeps others away.
	jobLease = 5 * time.Second
	// jobStatement bounds one statement of a chunk, with its wait for locks.
	jobStatement = time.Minute
	// A replica that is frozen in a chunk, or cut off, must not hold its locks for longer: others wait for them, and
	// clients who create the same ticket.
	idleInTransaction = 5 * time.Second
	// A call may compute between its statements; one that is frozen holds its locks for this long.
	idleInCall = time.Minute
	// A call that waits for longer gives way, and is to be made again.
	lockTimeout = 10 * time.Second
)

// openJobs returns what works on jobs, and the connections that it has for that alone: no call waits for a chunk.
func openJobs(ctx context.Context, cfg Config, steps map[jobdb.Kind]job.Step, spans bool) (*job.Runner, *pgxpool.Pool, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, fmt.Errorf("name the replica: %w", err)
	}
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: job.Concurrency, AppName: serviceName + "-jobs",
		StatementTimeout: jobStatement, IdleInTransactionTimeout: idleInTransaction, Spans: spans,
	})
	if err != nil {
		return nil, nil, err
	}
	return job.New(job.Options{
		DB: pool, Steps: steps, Worker: host + "/" + uuid.NewString(),
		Poll: jobPoll, Lease: jobLease, Retry: jobRetry, Logger: slog.Default(), Tracer: otel.Tracer(serviceName),
	}), pool, nil
}
