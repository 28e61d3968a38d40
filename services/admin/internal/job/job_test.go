package job_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/services/admin/internal/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run starts a replica, and returns what stops it and waits for its end.
func run(t *testing.T, db *pgxpool.Pool, poll time.Duration, step job.Step) (r *job.Runner, stop func()) {
	t.Helper()
	r = job.New(job.Options{
		DB: db, Steps: map[jobdb.Kind]job.Step{jobdb.Evaluate: step}, Worker: "test",
		Poll: poll, Lease: time.Minute, Retry: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the runner ended with %v", err)
		}
	}
	t.Cleanup(stop)
	return r, stop
}

func insert(t *testing.T, db *pgxpool.Pool) (id uuid.UUID) {
	t.Helper()
	if err := postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) error {
		j, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Evaluate, Spec: struct{}{}, CreatedBy: "ana"})
		id = j.ID
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return id
}

// until waits for a job to be in a state.
func until(t *testing.T, db *pgxpool.Pool, id uuid.UUID, want jobdb.State) jobdb.Job {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		j, err := jobdb.Get(t.Context(), db, jobdb.Evaluate, id)
		if err != nil {
			t.Fatal(err)
		}
		if j.State == want {
			return j
		}
		select {
		case <-look.C:
		case <-t.Context().Done():
			t.Fatalf("the job is still %s", j.State)
		}
	}
}

// counting counts to a number, one with each chunk, and writes down each in a table of the test's.
func counting(to int) job.Step {
	return func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
		var at int
		if string(j.Cursor) != "{}" {
			var cursor struct{ At int }
			if err := json.Unmarshal(j.Cursor, &cursor); err != nil {
				return jobdb.Progress{}, err
			}
			at = cursor.At
		}
		if at == to {
			return jobdb.Progress{Done: true}, nil
		}
		if _, err := tx.Exec(ctx, "INSERT INTO counted VALUES ($1, $2)", j.ID, at); err != nil {
			return jobdb.Progress{}, err
		}
		return jobdb.Progress{Cursor: json.RawMessage(`{"At": ` + strconv.Itoa(at+1) + `}`), Add: map[string]int64{"n": 1}}, nil
	}
}

func withTable(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), "CREATE TABLE counted (job uuid, n int, PRIMARY KEY (job, n))"); err != nil {
		t.Fatal(err)
	}
	return db
}

func counted(t *testing.T, db *pgxpool.Pool, id uuid.UUID) (n int64) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM counted WHERE job = $1", id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReplicasShareJobs(t *testing.T) {
	t.Parallel()
	db := withTable(t)
	var ids []uuid.UUID
	for range 7 {
		ids = append(ids, insert(t, db))
	}
	for range 3 {
		run(t, db, 10*time.Millisecond, counting(20))
	}
	for _, id := range ids {
		if j := until(t, db, id, jobdb.Done); j.Counts["n"] != 20 || counted(t, db, id) != 20 {
			t.Errorf("job %s counts %d and wrote down %d", id, j.Counts["n"], counted(t, db, id))
		}
	}
}

func TestWakeNeedsNoPoll(t *testing.T) {
	t.Parallel()
	db := withTable(t)
	looked := make(chan struct{})
	r, _ := run(t, db, 24*time.Hour, func(context.Context, pgx.Tx, jobdb.Job) (jobdb.Progress, error) {
		looked <- struct{}{}
		return jobdb.Progress{Done: true}, nil
	})
	for range 3 {
		id := insert(t, db)
		r.Wake()
		<-looked
		until(t, db, id, jobdb.Done)
	}
}

func TestAStopRollsTheChunkBackAndGivesTheJobUp(t *testing.T) {
	t.Parallel()
	db := withTable(t)
	id := insert(t, db)
	begun := make(chan struct{})
	_, stop := run(t, db, 10*time.Millisecond, func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
		if _, err := counting(3)(ctx, tx, j); err != nil {
			return jobdb.Progress{}, err
		}
		close(begun)
		<-ctx.Done()
		return jobdb.Progress{}, ctx.Err()
	})
	<-begun
	stop()
	j, err := jobdb.Get(t.Context(), db, jobdb.Evaluate, id)
	if err != nil || j.State != jobdb.Running || j.Lease != uuid.Nil || j.Failures != 0 || counted(t, db, id) != 0 {
		t.Fatalf("after the stop: %+v with %d, %v", j, counted(t, db, id), err)
	}
	run(t, db, 10*time.Millisecond, counting(3))
	if j := until(t, db, id, jobdb.Done); j.Counts["n"] != 3 || counted(t, db, id) != 3 {
		t.Errorf("taken up again it counts %d and wrote down %d", j.Counts["n"], counted(t, db, id))
	}
}

func TestAChunkThatCannotBeDoneFailsTheJobAndNoOther(t *testing.T) {
	t.Parallel()
	db := withTable(t)
	bad, good := insert(t, db), insert(t, db)
	run(t, db, 5*time.Millisecond, func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
		if j.ID == bad && j.Counts["n"] == 1 {
			return jobdb.Progress{}, fmt.Errorf("after %d: %w", j.Counts["n"], errors.New("no room left"))
		}
		return counting(4)(ctx, tx, j)
	})
	if j := until(t, db, good, jobdb.Done); j.Counts["n"] != 4 {
		t.Errorf("the good one counts %d", j.Counts["n"])
	}
	if j := until(t, db, bad, jobdb.Failed); j.Reason != "after 1: no room left" || j.Counts["n"] != 1 || counted(t, db, bad) != 1 {
		t.Errorf("the bad one: %+v, wrote down %d", j, counted(t, db, bad))
	}
}

// A job that rests is kept, does nothing meanwhile, and is given up at once when the replica stops.
func TestAStopEndsARest(t *testing.T) {
	t.Parallel()
	db := withTable(t)
	id := insert(t, db)
	count := counting(5)
	_, stop := run(t, db, time.Millisecond, func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
		p, err := count(ctx, tx, j)
		p.Rest = time.Hour
		return p, err
	})
	for counted(t, db, id) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("no chunk was done")
		}
	}
	stop()
	if n := counted(t, db, id); n != 1 {
		t.Errorf("%d chunks were done, want the one before the rest", n)
	}
	run(t, db, time.Millisecond, count)
	until(t, db, id, jobdb.Done)
}
