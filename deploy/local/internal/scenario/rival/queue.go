package rival

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/postgres"
)

const (
	// As many attempts as EvalOnce allows by default. Their pauses, 15 s to 15 min, are half an hour in all.
	maxAttempts    = 8
	firstBackoff   = 15 * time.Second
	longestBackoff = 15 * time.Minute

	saveDeadline = 10 * time.Second
	idlePoll     = 20 * time.Millisecond
)

func serveQueueAPI(ctx context.Context, cfg Config) error {
	db, err := postgres.Open(ctx, postgres.Config{URL: cfg.DatabaseURL, MaxConns: connections, AppName: QueueAPI})
	if err != nil {
		return err
	}
	defer db.Close()
	return serve(ctx, cfg.Address, func(ctx context.Context, t Ticket) error {
		_, err := db.Exec(ctx, `
			WITH t AS (
			  INSERT INTO ticket (external_id, subject, message) VALUES ($1, $2, $3) ON CONFLICT (external_id) DO NOTHING RETURNING id
			)
			INSERT INTO job (ticket_id) SELECT id FROM t`, t.ExternalID, t.Subject, t.Message)
		if err != nil {
			return fmt.Errorf("store a ticket and its job: %w", err)
		}
		return nil
	})
}

// job is one that was taken.
type job struct {
	ID       int64
	TicketID int64
	Attempts int // this one included
	Subject  string
	Message  string
}

// worker takes jobs as it has room for them.
type worker struct {
	Config
	db      *pgxpool.Pool
	model   *Model
	slots   chan struct{}
	running sync.WaitGroup
}

func runQueueWorker(ctx context.Context, cfg Config) error {
	db, err := postgres.Open(ctx, postgres.Config{URL: cfg.DatabaseURL, MaxConns: connections, AppName: QueueWorker})
	if err != nil {
		return err
	}
	defer db.Close()
	model := NewModel(cfg.ProviderURL, cfg.ProviderKey, cfg.Pace, cfg.tryDeadline())
	defer model.Close()
	w := &worker{Config: cfg, db: db, model: model, slots: make(chan struct{}, cfg.Concurrency)}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, cfg.Address, nil) })
	group.Go(func() error {
		w.work(ctx)
		return nil
	})
	return group.Wait()
}

func (w *worker) work(ctx context.Context) {
	defer w.running.Wait()
	for ctx.Err() == nil {
		free := w.takeSlots(ctx)
		if free == 0 {
			return
		}
		jobs, err := w.take(ctx, free)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot take jobs", slog.Any("error", err))
		}
		for range free - len(jobs) {
			<-w.slots
		}
		for _, j := range jobs {
			w.running.Go(func() {
				defer func() { <-w.slots }()
				w.do(context.WithoutCancel(ctx), j)
			})
		}
		if len(jobs) == 0 && sleep(ctx, idlePoll) != nil {
			return
		}
	}
}

// takeSlots waits for a free slot and takes all there are; none when ctx has ended.
func (w *worker) takeSlots(ctx context.Context) int {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		select {
		case w.slots <- struct{}{}:
		default:
			return n
		}
	}
}

// take hides jobs that are due from others until their time is over.
func (w *worker) take(ctx context.Context, most int) ([]job, error) {
	rows, err := w.db.Query(ctx, `
		WITH due AS MATERIALIZED (
		  SELECT id FROM job WHERE dead_at IS NULL AND run_at <= now() ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED
		), taken AS (
		  UPDATE job j SET attempts = attempts + 1, run_at = now() + make_interval(secs => $2)
		  FROM due WHERE j.id = due.id RETURNING j.id, j.ticket_id, j.attempts
		)
		SELECT taken.id, taken.ticket_id, taken.attempts, t.subject, t.message FROM taken JOIN ticket t ON t.id = taken.ticket_id`,
		most, w.Visibility.Seconds())
	if err != nil {
		return nil, fmt.Errorf("take jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job])
	if err != nil {
		return nil, fmt.Errorf("take jobs: %w", err)
	}
	return jobs, nil
}

// do asks, and writes down what came of it. What cannot be written comes back when its time is over.
func (w *worker) do(ctx context.Context, j job) {
	asking, cancel := context.WithTimeout(ctx, w.jobDeadline())
	defer cancel()
	answer, err := w.model.Ask(asking, j.Subject, j.Message)
	saving, cancel := context.WithTimeout(ctx, saveDeadline)
	defer cancel()
	switch {
	case err == nil:
		_, err = w.db.Exec(saving, `
			WITH done AS (DELETE FROM job WHERE id = $1)
			INSERT INTO evaluation (ticket_id, is_urgent, urgency_score, department) VALUES ($2, $3, $4, $5) ON CONFLICT DO NOTHING`,
			j.ID, j.TicketID, answer.IsUrgent, answer.UrgencyScore, answer.Department)
	case j.Attempts >= maxAttempts:
		_, err = w.db.Exec(saving, `UPDATE job SET dead_at = now(), last_error = $2 WHERE id = $1`, j.ID, failure.Excerpt([]byte(err.Error())))
	default:
		_, err = w.db.Exec(saving, `UPDATE job SET run_at = now() + make_interval(secs => $2), last_error = $3 WHERE id = $1`,
			j.ID, w.backoff(j.Attempts).Seconds(), failure.Excerpt([]byte(err.Error())))
	}
	if err != nil {
		slog.WarnContext(ctx, "cannot write down what became of a job", slog.Int64("job", j.ID), slog.Any("error", err))
	}
}

// backoff doubles, and has a jitter that is only ever added, at the scenario's pace.
func (w *worker) backoff(attempts int) time.Duration {
	pause := min(firstBackoff<<(attempts-1), longestBackoff)
	pause += time.Duration(rand.Float64() * jitterOfPause * float64(pause)) //nolint:gosec // jitter
	return time.Duration(float64(pause) / w.Pace)
}
