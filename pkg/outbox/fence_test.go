package outbox_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// Whatever a worker does with a lease that it lost, the row that another worker holds stays as it is.
func TestNothingLateWins(t *testing.T) {
	t.Parallel()
	f := failure.New(failure.ContractViolation, "", nil)
	for name, act := range map[string]func(ctx context.Context, tx pgx.Tx, c outbox.Claimed) (map[content.Key]bool, error){
		"finish": func(ctx context.Context, tx pgx.Tx, c outbox.Claimed) (map[content.Key]bool, error) {
			return outbox.Finish(ctx, tx, []outbox.Lease{c.Lease})
		},
		"put back": func(ctx context.Context, tx pgx.Tx, c outbox.Claimed) (map[content.Key]bool, error) {
			return outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Delay: time.Hour, Failure: f}})
		},
		"bury": func(ctx context.Context, tx pgx.Tx, c outbox.Claimed) (map[content.Key]bool, error) {
			return outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Failure: f}})
		},
		"release": func(ctx context.Context, tx pgx.Tx, c outbox.Claimed) (map[content.Key]bool, error) {
			return outbox.Release(ctx, tx, []outbox.Lease{c.Lease})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.enqueue(0, 1)
			a := w.claimOne("a")
			w.expire()
			b := w.claimOne("b")
			before := w.row(a.Key)
			w.tx(func(ctx context.Context, tx pgx.Tx) error {
				changed, err := act(ctx, tx, a)
				if len(changed) != 0 {
					t.Errorf("changed %v", changed)
				}
				return err
			})
			if after := w.row(a.Key); after != before {
				t.Errorf("the row went from %+v to %+v", before, after)
			}
			if got := w.outcome(b.CallID); got != "open" {
				t.Errorf("the holder's call is %s, want open", got)
			}
			if lost, err := outbox.Extend(t.Context(), w.db, "a", []outbox.Lease{a.Lease}, time.Minute); err != nil || !slices.Equal(lost, []uuid.UUID{a.ID}) {
				t.Errorf("lost leases %v, %v, want a's", lost, err)
			}
		})
	}
}

// A verdict on a late response buries work that nobody holds: the same answer would only be paid again.
func TestLateVerdictsAreFinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 2)
	rejected, answered := w.claimOne("a"), w.claimOne("a")
	w.expire()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: rejected.Lease, Failure: failure.New(failure.Refusal, "", nil)}})
		return err
	})
	if got := w.row(rejected.Key); got.Status != "dead" || got.LastReason != "refusal" {
		t.Errorf("row is %+v, want dead of a refusal", got)
	}
	w.finish(answered)
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE idempotency_key = $1", string(answered.Key)); n != 0 {
		t.Error("work remains beside its late result")
	}
	if got := w.outcome(answered.CallID); got != "answered" {
		t.Errorf("the late call is %s, want answered", got)
	}
}

// A late answer finishes what its successor would bury.
func TestBurialAfterALateAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	a := w.claimOne("a")
	w.expire()
	b := w.claimOne("b")
	w.finish(a)
	w.bury(b, failure.Refusal)
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 0 {
		t.Error("a dead letter remains beside a result")
	}
	if got := get[uuid.UUID](w, "SELECT model_call_id FROM evaluation_result"); got != a.CallID {
		t.Error("the result is not the late answer")
	}
}

// The same when the two transactions overlap: the burial waits for the answer, or the answer for the burial.
func TestBurialBesideALateAnswer(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"answer", "burial"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.enqueue(0, 1)
			a := w.claimOne("a")
			w.expire()
			b := w.claimOne("b")
			answer := func(ctx context.Context, tx pgx.Tx) error {
				if _, err := outbox.Finish(ctx, tx, []outbox.Lease{a.Lease}); err != nil {
					return err
				}
				_, err := ledger.Save(ctx, tx, []ledger.Result{w.resultOf(a)})
				return err
			}
			burial := func(ctx context.Context, tx pgx.Tx) error {
				_, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: b.Lease, Failure: failure.New(failure.Refusal, "", nil)}})
				return err
			}
			one, other := answer, burial
			if first == "burial" {
				one, other = burial, answer
			}
			done := make(chan error, 1)
			w.tx(func(ctx context.Context, tx pgx.Tx) error {
				if err := one(ctx, tx); err != nil {
					return err
				}
				go func() { done <- postgres.InTx(t.Context(), w.db, other) }()
				w.untilSomeoneWaits()
				return nil
			})
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 0 {
				t.Error("a dead letter remains beside a result")
			}
		})
	}
}

// A late response that can be no answer is not forgotten while another worker holds the work: when that one's call
// fails, the response that is here is judged, and none is bought.
func TestLateRejectionIsJudgedBeforeAnotherCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	a := w.claimOne("a")
	w.expire()
	b := w.claimOne("b")
	refusal := failure.New(failure.Refusal, "", nil)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: a.Lease, Failure: refusal}}); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{{CallID: a.CallID, Outcome: ledger.Rejected, Failure: refusal, Response: []byte("no")}})
	})
	if w.row(b.Key).Owner != "b" {
		t.Fatal("the late verdict took the row from its holder")
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: b.Lease, Failure: failure.New(failure.ServerError, "", nil)}})
		return err
	})
	c := w.claimOne("c")
	if c.SavedCallID != a.CallID || string(c.SavedResponse) != "no" || c.CallID != uuid.Nil {
		t.Errorf("claimed %+v, want the late response and no call", c)
	}
}

// What was a transient verdict on a lost lease says nothing of work that somebody put back since.
func TestLateTransientVerdictBuriesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	a := w.claimOne("a")
	w.expire()
	w.bury(a, failure.TooOld)
	if got := w.row(a.Key); got.Status != "pending" {
		t.Errorf("row is %+v, want pending", got)
	}
}

// Of two results the first written stays, and both calls are on record.
func TestFirstResultWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	a := w.claimOne("a")
	w.expire()
	b := w.claimOne("b")
	w.finish(a)
	if w.row(b.Key).Owner != "b" {
		t.Fatal("the late answer took the row from its holder")
	}
	w.finish(b)
	if got := get[uuid.UUID](w, "SELECT model_call_id FROM evaluation_result"); got != a.CallID {
		t.Error("the second answer replaced the first")
	}
	if n := get[int](w, "SELECT count(*) FROM model_call WHERE outcome = 'answered'"); n != 2 {
		t.Errorf("%d answered calls on record, want 2", n)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 0 {
		t.Error("finished work remains")
	}
}

func TestReclaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version func(*evaluation.Version)
		before  string // run on the row while it is leased
		want    row
		count   outbox.Reclaimed
	}{
		"sent again within its allowance": {
			want:  row{Status: "pending", Attempts: 1, UnknownCalls: 1, LastClass: "unknown", LastReason: "lease_expired"},
			count: outbox.Reclaimed{Pending: 1, Unknown: 1},
		},
		"allowance spent": {
			before: "UPDATE evaluation_outbox SET unknown_calls = 2",
			want:   row{Status: "dead", Attempts: 1, UnknownCalls: 3, LastClass: "unknown", LastReason: "unknown_outcome"},
			count:  outbox.Reclaimed{Dead: 1, Unknown: 1},
		},
		"held for a person": {
			version: func(v *evaluation.Version) { v.UnknownPolicy = evaluation.Hold },
			want:    row{Status: "dead", Attempts: 1, UnknownCalls: 1, LastClass: "unknown", LastReason: "unknown_outcome"},
			count:   outbox.Reclaimed{Dead: 1, Unknown: 1},
		},
		"attempts spent": {
			before: "UPDATE evaluation_outbox SET attempts = 8",
			want:   row{Status: "dead", Attempts: 8, UnknownCalls: 1, LastClass: "unknown", LastReason: "unknown_outcome"},
			count:  outbox.Reclaimed{Dead: 1, Unknown: 1},
		},
		"never sent": {
			before: "UPDATE model_call SET outcome = 'unsent', finished_at = now()",
			want:   row{Status: "pending", Attempts: 0},
			count:  outbox.Reclaimed{Pending: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.version != nil {
				w = newWorld(t, c.version)
			}
			w.enqueue(0, 1)
			claimed := w.claimOne("a")
			if c.before != "" {
				w.exec(c.before)
			}
			if got := w.expire(); got != c.count {
				t.Errorf("reclaimed %+v, want %+v", got, c.count)
			}
			if got := w.row(claimed.Key); got != c.want {
				t.Errorf("row is %+v, want %+v", got, c.want)
			}
			if again := w.expire(); again != (outbox.Reclaimed{}) {
				t.Errorf("reclaimed %+v a second time", again)
			}
		})
	}
}

func TestReclaimLeavesLivingLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	c := w.claimOne("a")
	if r := w.reclaim(); r != (outbox.Reclaimed{}) {
		t.Errorf("reclaimed %+v", r)
	}
	w.expireLeases("true")
	if lost, err := outbox.Extend(t.Context(), w.db, "a", []outbox.Lease{c.Lease}, time.Minute); err != nil || len(lost) != 0 {
		t.Errorf("lost %v, %v: a lease that nobody reclaimed is still held", lost, err)
	}
	if r := w.reclaim(); r != (outbox.Reclaimed{}) {
		t.Errorf("reclaimed %+v after the heartbeat", r)
	}
}

// A heartbeat waits for no row lock, and does not take a locked row for a lost one.
func TestExtendPassesLockedRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 2)
	a, b := w.claimOne("a"), w.claimOne("a")
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Finish(ctx, tx, []outbox.Lease{a.Lease}); err != nil {
			return err
		}
		beat, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		lost, err := outbox.Extend(beat, w.db, "a", []outbox.Lease{a.Lease, b.Lease}, time.Hour)
		if err != nil || len(lost) != 0 {
			t.Errorf("lost %v, %v", lost, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !get[bool](w, "SELECT locked_until > now() + interval '30 minutes' FROM evaluation_outbox") {
		t.Error("the neighbour's lease was not extended")
	}
}

// A heartbeat moves the row that Finish waits for.
func TestFinishFindsWhatHasMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 3)
	claimed := w.claim("a", 3)
	heartbeat, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = heartbeat.Rollback(context.WithoutCancel(t.Context())) }()
	if lost, err := outbox.Extend(t.Context(), heartbeat, "a", []outbox.Lease{claimed[1].Lease}, time.Minute); err != nil || len(lost) != 0 {
		t.Fatalf("lost %v, %v", lost, err)
	}
	finished := make(chan map[content.Key]bool)
	go func() {
		defer close(finished)
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			var leases []outbox.Lease
			for _, c := range claimed {
				leases = append(leases, c.Lease)
			}
			keys, err := outbox.Finish(ctx, tx, leases)
			finished <- keys
			return err
		})
	}()
	w.untilSomeoneWaits()
	if err := heartbeat.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys := <-finished; len(keys) != 3 {
		t.Errorf("finished %v, want all three", keys)
	}
	<-finished
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 0 {
		t.Errorf("%d rows of finished work are left", n)
	}
}

func TestReleaseUndoesAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	c := w.claimOne("a")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.Release(ctx, tx, []outbox.Lease{c.Lease})
		return err
	})
	if got, want := w.row(c.Key), (row{Status: "pending"}); got != want {
		t.Errorf("row is %+v, want %+v", got, want)
	}
	if got := w.outcome(c.CallID); got != "unsent" {
		t.Errorf("call is %s, want unsent", got)
	}
}

func TestPutBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 2)
	a, b := w.claimOne("a"), w.claimOne("a")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.PutBack(ctx, tx, []outbox.Retry{
			{Lease: a.Lease, Delay: time.Hour, Refund: true, Failure: failure.New(failure.RateLimited, "slow down", nil)},
			{Lease: b.Lease, Unknown: true, Failure: failure.New(failure.Timeout, "", nil)},
		})
		return err
	})
	if got, want := w.row(a.Key), (row{Status: "pending", LastClass: "throttled", LastReason: "rate_limited"}); got != want {
		t.Errorf("row is %+v, want %+v", got, want)
	}
	if got, want := w.row(b.Key), (row{Status: "pending", Attempts: 1, UnknownCalls: 1, LastClass: "unknown", LastReason: "timeout"}); got != want {
		t.Errorf("row is %+v, want %+v", got, want)
	}
	if claimed := w.claim("b", 10); len(claimed) != 1 || claimed[0].Key != b.Key {
		t.Errorf("claimed %d rows, want only the one that is due", len(claimed))
	}
}

// A call is closed once, but for a late response and a saved one.
func TestCloseIsFinal(t *testing.T) {
	t.Parallel()
	outcomes := []ledger.Outcome{ledger.Failed, ledger.Unknown, ledger.Saved, ledger.Rejected, ledger.Answered}
	allowed := map[ledger.Outcome][]ledger.Outcome{
		ledger.Unknown: {ledger.Saved, ledger.Rejected, ledger.Answered},
		ledger.Saved:   outcomes,
	}
	for _, first := range outcomes {
		for _, second := range outcomes {
			t.Run(string(first)+" "+string(second), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.enqueue(0, 1)
				c := w.claimOne("a")
				for _, o := range []ledger.Outcome{first, second} {
					closure := ledger.Closure{CallID: c.CallID, Outcome: o}
					if o != ledger.Saved && o != ledger.Answered {
						closure.Failure = failure.New(failure.ServerError, "", nil)
					}
					w.tx(func(ctx context.Context, tx pgx.Tx) error { return ledger.Close(ctx, tx, []ledger.Closure{closure}) })
				}
				want := first
				if slices.Contains(allowed[first], second) {
					want = second
				}
				if got := w.outcome(c.CallID); got != string(want) {
					t.Errorf("call is %s, want %s", got, want)
				}
			})
		}
	}
}
