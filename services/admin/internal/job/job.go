// Package job runs the jobs of reprocess_job, in chunks, on any number of replicas.
//
// A chunk is one transaction: the job is locked, its kind's step does a bounded piece of work, and what that has come to
// is recorded beside it. So a chunk counts exactly once, whatever happens to the replica, and a pause or a cancellation
// that has been answered is in force: no chunk begins after it.
package job

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// Step does the next chunk of a job, within the transaction, and says what it came to. It may run again from the
// beginning, as its transaction does, and leaves nothing behind elsewhere. A job that is paused or canceled comes here
// only while it is unsettled.
type Step func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error)

const (
	// Concurrency is how many jobs a replica works on at once; each takes a connection.
	Concurrency = 2
	// turn is the time after which a job lets another have its place.
	turn = 5 * time.Second
	// failures is how often a chunk is tried.
	failures = 8
	// longestRetry bounds the time before a chunk is tried again.
	longestRetry = 30 * time.Second
	// releaseTimeout bounds what is done for a job after the end of the runner's context.
	releaseTimeout = 5 * time.Second
)

// Options are a runner's parts and its pace.
type Options struct {
	DB     *pgxpool.Pool
	Steps  map[jobdb.Kind]Step
	Worker string        // names the replica in what it claims
	Poll   time.Duration // between two looks for work that another replica, or time, has made due
	Lease  time.Duration // how long a job rests whose replica has died; a chunk's lock holds as long as the chunk takes
	Retry  time.Duration // before a chunk is tried a second time; doubled each time
	Logger *slog.Logger
	Tracer trace.Tracer // nil makes no spans
}

// Runner works on jobs.
type Runner struct {
	opts  Options
	kinds []jobdb.Kind
	wake  chan struct{}
}

// New makes a runner for the kinds that have a step.
func New(opts Options) *Runner {
	if opts.Tracer == nil {
		opts.Tracer = noop.NewTracerProvider().Tracer("")
	}
	return &Runner{opts: opts, kinds: slices.Sorted(maps.Keys(opts.Steps)), wake: make(chan struct{}, Concurrency)}
}

// Wake has the runner look for work at once: a job was made or changed, and the transaction is committed.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is going to look
	}
}

// Run works until ctx ends. The chunk under way is then rolled back, and its job given back to be taken up by another.
func (r *Runner) Run(ctx context.Context) error {
	var working sync.WaitGroup
	for range Concurrency {
		working.Go(func() { r.work(ctx) })
	}
	working.Wait()
	return context.Cause(ctx)
}

func (r *Runner) work(ctx context.Context) {
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-r.wake:
		}
		for ctx.Err() == nil {
			j, ok, err := jobdb.Claim(ctx, r.opts.DB, r.opts.Worker, r.kinds, r.opts.Lease)
			if err != nil && ctx.Err() == nil {
				r.opts.Logger.WarnContext(ctx, "looking for jobs failed", slog.Any("error", err))
			}
			if err != nil || !ok {
				break
			}
			r.take(ctx, j)
		}
		poll.Reset(r.opts.Poll)
	}
}

// take works on a job until its turn is over, or it waits, ends, fails or is another's.
func (r *Runner) take(ctx context.Context, j jobdb.Job) {
	began := time.Now()
	log := r.opts.Logger.With(slog.String("job_id", j.ID.String()), slog.String("kind", string(j.Kind)))
	for {
		next, rest, err := r.step(ctx, j)
		switch {
		case errors.Is(err, jobdb.ErrLost):
			return
		case ctx.Err() != nil:
			r.release(ctx, j, log)
			return
		case err != nil:
			r.fail(ctx, j, err, log)
			return
		}
		if next.State != j.State {
			log.InfoContext(ctx, "a job has changed its state", slog.String("state", string(next.State)), slog.String("reason", next.Reason))
		}
		if j = next; j.Lease == uuid.Nil {
			return
		}
		if time.Since(began) >= turn || !backoff.Sleep(ctx, rest) {
			r.release(ctx, j, log)
			return
		}
	}
}

func (r *Runner) step(ctx context.Context, j jobdb.Job) (next jobdb.Job, rest time.Duration, err error) {
	ctx, span := r.startSpan(ctx, j)
	defer func() { endSpan(span, err) }()
	err = postgres.InTx(ctx, r.opts.DB, func(ctx context.Context, tx pgx.Tx) error {
		held, err := jobdb.Hold(ctx, tx, j.ID, j.Lease)
		if err != nil {
			return err
		}
		progress, err := r.opts.Steps[held.Kind](ctx, tx, held)
		if err != nil {
			return err
		}
		rest = progress.Rest
		next, err = jobdb.Step(ctx, tx, held, progress, r.opts.Lease)
		return err
	})
	return next, rest, err
}

// fail records that a chunk could not be done. When not even that can be written, the lease ends by itself.
func (r *Runner) fail(ctx context.Context, j jobdb.Job, why error, log *slog.Logger) {
	delay := min(r.opts.Retry<<min(j.Failures, failures), longestRetry)
	log.WarnContext(ctx, "a chunk of a job failed", slog.Int("failures", j.Failures+1), slog.Any("error", why))
	after, err := jobdb.Fail(ctx, r.opts.DB, j.ID, j.Lease, failure.Excerpt([]byte(why.Error())), delay, failures)
	switch {
	case errors.Is(err, jobdb.ErrLost):
	case err != nil:
		log.WarnContext(ctx, "the failure of a job could not be recorded", slog.Any("error", err))
	case after.State == jobdb.Failed:
		log.ErrorContext(ctx, "a job has failed", slog.String("reason", after.Reason))
	}
}

func (r *Runner) release(ctx context.Context, j jobdb.Job, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := jobdb.Release(ctx, r.opts.DB, j.ID, j.Lease); err != nil {
		log.WarnContext(ctx, "a job could not be given back: its lease has to end", slog.Any("error", err))
	}
}
