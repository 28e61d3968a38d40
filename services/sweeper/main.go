// Command sweeper is the backstop that keeps nothing lost when no worker lives and nobody looks: it takes back
// expired leases, deletes expired requests, makes the ledger's next partitions, and gives work to tickets that have
// none. It sweeps once and exits, as a CronJob does, or goes on at an interval. Any number may run at once.
package main

import (
	"context"
	"errors"
	"io"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

const serviceName = "sweeper"

const (
	// A process that is frozen, or cut off, must not hold its locks for longer: others wait for them.
	idleInTransaction = 5 * time.Second
	// What waits for longer, or takes longer, is left to the next sweep.
	lockTimeout      = 20 * time.Second
	statementTimeout = 5 * time.Minute
)

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	cfg, err := loadConfig(args, environ, stdout)
	if errors.Is(err, config.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	observed, err := telemetry.Setup(ctx, serviceName, environ)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, observed.Flush(context.WithoutCancel(ctx))) }()
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: 2, AppName: serviceName,
		StatementTimeout: statementTimeout, LockTimeout: lockTimeout, IdleInTransactionTimeout: idleInTransaction,
		Spans: telemetry.Exporting(environ),
	})
	if err != nil {
		return err
	}
	defer pool.Close()
	measured, err := measure(pool)
	if err != nil {
		return err
	}
	for {
		done := sweep(ctx, pool, cfg, otel.Tracer(serviceName))
		measured.Reclaimed(ctx, done.ReclaimedPending, done.ReclaimedDead, done.UnknownCalls)
		if err := done.print(stdout); err != nil {
			return err
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case cfg.Interval == 0:
			return done.err()
		}
		// A sweep that failed has said so, and the next one tries again.
		timer := time.NewTimer(cfg.Interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}
