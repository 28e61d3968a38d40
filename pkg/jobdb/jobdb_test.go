package jobdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

const lease = time.Hour

type bench struct {
	t  *testing.T
	db *pgxpool.Pool
}

func (b bench) tx(do func(ctx context.Context, tx pgx.Tx) error) error {
	b.t.Helper()
	return postgres.InTx(b.t.Context(), b.db, do)
}

func (b bench) insert(kind jobdb.Kind) (j jobdb.Job) {
	b.t.Helper()
	if err := b.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		j, err = jobdb.Insert(ctx, tx, jobdb.New{Kind: kind, Spec: map[string]int{"n": 1}, CreatedBy: "ana"})
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
	return j
}

func (b bench) claim(kinds ...jobdb.Kind) (jobdb.Job, bool) {
	b.t.Helper()
	j, ok, err := jobdb.Claim(b.t.Context(), b.db, "worker", kinds, lease)
	if err != nil {
		b.t.Fatal(err)
	}
	return j, ok
}

func (b bench) mustClaim() jobdb.Job {
	b.t.Helper()
	j, ok := b.claim(jobdb.Evaluate)
	if !ok {
		b.t.Fatal("there is nothing to claim")
	}
	return j
}

func (b bench) step(j jobdb.Job, p jobdb.Progress) (next jobdb.Job, err error) {
	b.t.Helper()
	err = b.tx(func(ctx context.Context, tx pgx.Tx) error {
		held, err := jobdb.Hold(ctx, tx, j.ID, j.Lease)
		if err != nil {
			return err
		}
		next, err = jobdb.Step(ctx, tx, held, p, lease)
		return err
	})
	return next, err
}

func (b bench) change(to jobdb.State, id uuid.UUID, settle bool) (j jobdb.Job, changed bool, err error) {
	b.t.Helper()
	err = b.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		switch to {
		case jobdb.Paused:
			j, changed, err = jobdb.Pause(ctx, tx, jobdb.Evaluate, id, settle)
		case jobdb.Canceled:
			j, changed, err = jobdb.Cancel(ctx, tx, jobdb.Evaluate, id, settle)
		default:
			j, changed, err = jobdb.Resume(ctx, tx, jobdb.Evaluate, id)
		}
		return err
	})
	return j, changed, err
}

func TestAJobGoesOnWhereItsLastChunkEnded(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	made := b.insert(jobdb.Evaluate)
	if _, ok := b.claim(jobdb.Replay); ok {
		t.Error("claimed a job of another kind")
	}
	j := b.mustClaim()
	if j.ID != made.ID || string(j.Spec) != `{"n": 1}` || string(j.Cursor) != "{}" {
		t.Fatalf("claimed %+v", j)
	}
	if other, ok := b.claim(jobdb.Evaluate); ok {
		t.Fatalf("claimed %s, which is leased", other.ID)
	}
	for range 2 {
		next, err := b.step(j, jobdb.Progress{Cursor: json.RawMessage(`{"at": 7}`), Add: map[string]int64{"seen": 3}})
		if err != nil || next.Lease != j.Lease {
			t.Fatalf("step: %+v, %v", next, err)
		}
		j = next
	}
	if _, err := b.step(j, jobdb.Progress{Add: map[string]int64{"seen": 1, "made": 1}, Wait: time.Hour}); err != nil {
		t.Fatal(err)
	}
	waiting, err := jobdb.Get(t.Context(), b.db, jobdb.Evaluate, j.ID)
	if err != nil || waiting.Lease != uuid.Nil || waiting.Counts["seen"] != 7 || waiting.Counts["made"] != 1 || string(waiting.Cursor) != `{"at": 7}` {
		t.Errorf("after three chunks: %+v, %v", waiting, err)
	}
	if _, ok := b.claim(jobdb.Evaluate); ok {
		t.Error("claimed a job that waits")
	}
	if _, err := b.step(j, jobdb.Progress{}); !errors.Is(err, jobdb.ErrLost) {
		t.Errorf("a step under a lease that was given back: %v", err)
	}
}

func TestAnExpiredLeaseIsFenced(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	b.insert(jobdb.Evaluate)
	first, ok, err := jobdb.Claim(t.Context(), b.db, "first", []jobdb.Kind{jobdb.Evaluate}, -time.Second)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	second := b.mustClaim()
	if second.ID != first.ID || second.Lease == first.Lease {
		t.Fatalf("the second claim is %+v", second)
	}
	if _, err := b.step(first, jobdb.Progress{Add: map[string]int64{"seen": 1}}); !errors.Is(err, jobdb.ErrLost) {
		t.Errorf("a step of the first: %v", err)
	}
	if _, err := jobdb.Fail(t.Context(), b.db, first.ID, first.Lease, "no", 0, 1); !errors.Is(err, jobdb.ErrLost) {
		t.Errorf("a failure of the first: %v", err)
	}
	if err := jobdb.Release(t.Context(), b.db, first.ID, first.Lease); err != nil {
		t.Fatal(err)
	}
	if next, err := b.step(second, jobdb.Progress{Done: true}); err != nil || next.State != jobdb.Done || next.Counts["seen"] != 0 {
		t.Errorf("the second's step: %+v, %v", next, err)
	}
}

func TestStatesAreComparedAndSet(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	id := b.insert(jobdb.Evaluate).ID
	for i, c := range []struct {
		to      jobdb.State
		changed bool
		refused bool
	}{
		{jobdb.Running, false, false},
		{jobdb.Paused, true, false},
		{jobdb.Paused, false, false},
		{jobdb.Running, true, false},
		{jobdb.Canceled, true, false},
		{jobdb.Canceled, false, false},
		{jobdb.Running, false, true},
		{jobdb.Paused, false, true},
	} {
		j, changed, err := b.change(c.to, id, false)
		var refused *jobdb.StateError
		if errors.As(err, &refused) != c.refused || err != nil && !c.refused || changed != c.changed || !c.refused && j.State != c.to {
			t.Errorf("change %d, to %s: %+v, %t, %v", i, c.to, j, changed, err)
		}
	}
	if _, _, err := b.change(jobdb.Paused, uuid.New(), false); !errors.Is(err, jobdb.ErrNotFound) {
		t.Errorf("paused what does not exist: %v", err)
	}
}

func TestAPauseEndsTheLeaseAndIsSettledByIt(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	b.insert(jobdb.Evaluate)
	j := b.mustClaim()
	if _, _, err := b.change(jobdb.Paused, j.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := b.step(j, jobdb.Progress{}); !errors.Is(err, jobdb.ErrLost) {
		t.Errorf("a step after the pause: %v", err)
	}
	j = b.mustClaim()
	if j.State != jobdb.Paused || !j.Unsettled {
		t.Fatalf("claimed %+v", j)
	}
	next, err := b.step(j, jobdb.Progress{})
	if err != nil || !next.Unsettled || next.Lease == uuid.Nil {
		t.Errorf("half settled: %+v, %v", next, err)
	}
	if next, err = b.step(j, jobdb.Progress{Done: true}); err != nil || next.State != jobdb.Paused || next.Unsettled || next.Lease != uuid.Nil {
		t.Errorf("settled: %+v, %v", next, err)
	}
	if _, ok := b.claim(jobdb.Evaluate); ok {
		t.Error("claimed a paused job")
	}
}

func TestAStepCanPauseItsJob(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	b.insert(jobdb.Evaluate)
	next, err := b.step(b.mustClaim(), jobdb.Progress{Pause: "it costs too much"})
	if err != nil || next.State != jobdb.Paused || next.Reason != "it costs too much" || next.Lease != uuid.Nil {
		t.Fatalf("paused: %+v, %v", next, err)
	}
	if resumed, changed, err := b.change(jobdb.Running, next.ID, false); err != nil || !changed || resumed.Reason != "" {
		t.Errorf("resumed: %+v, %t, %v", resumed, changed, err)
	}
}

func TestAChunkThatKeepsFailingFailsItsJob(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	id := b.insert(jobdb.Evaluate).ID
	fail := func() jobdb.Job {
		t.Helper()
		j := b.mustClaim()
		failed, err := jobdb.Fail(t.Context(), b.db, j.ID, j.Lease, "no room", 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		return failed
	}
	if j := fail(); j.State != jobdb.Running || j.Failures != 1 {
		t.Errorf("after one failure: %+v", j)
	}
	if j, err := b.step(b.mustClaim(), jobdb.Progress{Wait: time.Nanosecond}); err != nil || j.Failures != 0 || j.Reason != "" {
		t.Errorf("a chunk was done: %+v, %v", j, err)
	}
	fail()
	if j := fail(); j.State != jobdb.Failed || j.Reason != "no room" || j.FinishedAt.IsZero() {
		t.Errorf("after two failures in a row: %+v", j)
	}
	if _, ok := b.claim(jobdb.Evaluate); ok {
		t.Error("claimed a failed job")
	}
	j, changed, err := b.change(jobdb.Running, id, false)
	if err != nil || !changed || j.Failures != 0 || !j.FinishedAt.IsZero() {
		t.Errorf("resumed: %+v, %t, %v", j, changed, err)
	}
	b.mustClaim()
}

func TestAPauseWaitsForTheChunkUnderWay(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	b.insert(jobdb.Evaluate)
	j := b.mustClaim()
	paused := make(chan error, 1)
	err := b.tx(func(ctx context.Context, tx pgx.Tx) error {
		held, err := jobdb.Hold(ctx, tx, j.ID, j.Lease)
		if err != nil {
			return err
		}
		go func() {
			_, _, err := b.change(jobdb.Paused, j.ID, false)
			paused <- err
		}()
		for waits := false; !waits; {
			if err := b.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).
				Scan(&waits); err != nil {
				return err
			}
		}
		_, err = jobdb.Step(ctx, tx, held, jobdb.Progress{Add: map[string]int64{"seen": 1}}, lease)
		return err
	})
	if err := errors.Join(err, <-paused); err != nil {
		t.Fatal(err)
	}
	after, err := jobdb.Get(t.Context(), b.db, jobdb.Evaluate, j.ID)
	if err != nil || after.State != jobdb.Paused || after.Counts["seen"] != 1 {
		t.Errorf("afterwards: %+v, %v", after, err)
	}
}

func TestJobsAreListedByPage(t *testing.T) {
	t.Parallel()
	b := bench{t, pgtest.New(t)}
	made := map[uuid.UUID]bool{}
	for range 5 {
		made[b.insert(jobdb.Evaluate).ID] = true
	}
	b.insert(jobdb.Replay)
	for before := uuid.Max; ; {
		page, err := jobdb.List(t.Context(), b.db, jobdb.Evaluate, "", before, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page {
			if !made[j.ID] || j.ID.String() >= before.String() {
				t.Fatalf("listed %s after %s", j.ID, before)
			}
			delete(made, j.ID)
			before = j.ID
		}
		if len(page) < 2 {
			break
		}
	}
	if len(made) > 0 {
		t.Errorf("not listed: %v", made)
	}
	if none, err := jobdb.List(t.Context(), b.db, jobdb.Evaluate, jobdb.Done, uuid.Max, 10); err != nil || len(none) > 0 {
		t.Errorf("done are %v, %v", none, err)
	}
}
