// Package peer does the same work by other means: by the queue that a Go team on Postgres would take, by the product's
// own statements in a loop without the product, and by a driver alone.
//
// Each is set up as its friends would set it up, which its comments say, and runs within this process, next to the
// database and without a network between; the product's services run as the processes that they are.
package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// As river's own benchmark has it: the shortest sensible pauses, and as many workers as fill the fetches.
const (
	riverWorkers  = 2000
	riverCooldown = 2 * time.Millisecond
	riverPoll     = 20 * time.Millisecond
	// River fetches and completes in batches, over few connections. Jobs that write get others, so that neither waits
	// for the other.
	riverConns = 16
	jobConns   = 32
	insertMost = 10_000
)

// RiverVersion is the version of river that is linked.
func RiverVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/riverqueue/river" {
				return m.Version
			}
		}
	}
	return "unknown"
}

// Job is what river is asked to do: as little as there can be in a job.
type Job struct {
	Number int `json:"number"`
}

// Kind is river's name of the job.
func (Job) Kind() string { return "bench" }

type worker struct {
	river.WorkerDefaults[Job]
	do   func(ctx context.Context, id int64) error
	most int64
	done atomic.Int64
	all  chan struct{}
}

// Timeout is none: a timer for each job would be work for nothing.
func (*worker) Timeout(*river.Job[Job]) time.Duration { return -1 }

func (w *worker) Work(ctx context.Context, job *river.Job[Job]) error {
	if err := w.do(ctx, job.ID); err != nil {
		return err
	}
	if w.done.Add(1) == w.most {
		close(w.all)
	}
	return nil
}

// River is a queue of river's, filled with jobs.
type River struct {
	db     *bed.Database
	client *river.Client[pgx.Tx]
	worker *worker
	pool   *pgxpool.Pool // of the queue
	jobs   *pgxpool.Pool // of the jobs
}

// NewRiver makes a queue with n jobs in a database, and settles it. With results each job writes one row, to the table
// that the product writes its own results to.
func NewRiver(ctx context.Context, db *bed.Database, n int, results bool) (_ *River, err error) {
	r := &River{db: db, worker: &worker{
		do: func(context.Context, int64) error { return nil }, most: int64(n), all: make(chan struct{}),
	}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.pool, err = postgres.Open(ctx, postgres.Config{URL: db.URL, MaxConns: riverConns, AppName: "river"}); err != nil {
		return nil, err
	}
	if r.jobs, err = postgres.Open(ctx, postgres.Config{URL: db.URL, MaxConns: jobConns, AppName: "river jobs"}); err != nil {
		return nil, err
	}
	if results {
		r.worker.do = r.writeResult
	}
	driver := riverpgxv5.New(r.pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return nil, fmt.Errorf("migrate river: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("migrate river: %w", err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, r.worker)
	if r.client, err = river.NewClient(driver, &river.Config{
		Logger: quiet, Workers: workers, FetchCooldown: riverCooldown, FetchPollInterval: riverPoll, JobTimeout: -1,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
	}); err != nil {
		return nil, fmt.Errorf("make a river client: %w", err)
	}
	for from := 0; from < n; from += insertMost {
		params := make([]river.InsertManyParams, min(insertMost, n-from))
		for i := range params {
			params[i].Args = Job{Number: from + i}
		}
		if _, err := r.client.InsertManyFast(ctx, params); err != nil {
			return nil, fmt.Errorf("insert %d river jobs: %w", len(params), err)
		}
	}
	return r, db.Settle(ctx)
}

func (r *River) close() {
	for _, pool := range []*pgxpool.Pool{r.pool, r.jobs} {
		if pool != nil {
			pool.Close()
		}
	}
}

// Drain works all jobs, and returns how many are completed in a second, from the start until the last is recorded as
// completed.
func (r *River) Drain(ctx context.Context) (perSecond float64, err error) {
	defer r.close()
	began := time.Now()
	if err := r.client.Start(context.WithoutCancel(ctx)); err != nil {
		return 0, fmt.Errorf("start river: %w", err)
	}
	select {
	case <-r.worker.all:
	case <-ctx.Done():
		return 0, errors.Join(context.Cause(ctx), r.client.StopAndCancel(context.WithoutCancel(ctx)))
	}
	// Stopping waits until the completions that are under way are written.
	if err := r.client.Stop(ctx); err != nil {
		return 0, fmt.Errorf("stop river: %w", err)
	}
	took := time.Since(began)
	left, err := r.db.Count(ctx, "SELECT count(*) FROM river_job WHERE state <> 'completed'")
	if err != nil {
		return 0, err
	}
	if left > 0 {
		return 0, fmt.Errorf("river has left %d jobs", left)
	}
	return float64(r.worker.most) / took.Seconds(), nil
}

// writeResult writes one row, in a statement that is a transaction.
func (r *River) writeResult(ctx context.Context, id int64) error {
	_, err := r.jobs.Exec(ctx, `
		INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		VALUES ($1, sha256($1::text::bytea), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT DO NOTHING`,
		fmt.Sprintf("%032x", id), uuid.Must(uuid.NewV7()), "bench-main", 0.82, "billing", 0.71, "gpt-5-mini-2025-08-07", "1", "default-1", "high", "billing", uuid.Must(uuid.NewV7()))
	if err != nil {
		return fmt.Errorf("write the result of job %d: %w", id, err)
	}
	return nil
}
