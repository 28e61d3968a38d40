package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/route"
)

// fail settles a call that failed: back to pending at the cost of its attempt, unless refund, or to the dead letters.
func (w *world) fail(c outbox.Claimed, reason failure.Reason, refund, dead bool) {
	w.t.Helper()
	f := failure.New(reason, "", nil)
	outcome := ledger.Failed
	if f.Class == failure.Unknown {
		outcome = ledger.Unknown
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if dead {
			_, err = outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Failure: failure.New(failure.AttemptsSpent, "", nil)}})
		} else {
			_, err = outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Refund: refund, Unknown: f.Class == failure.Unknown, Failure: f}})
		}
		if err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: outcome, Failure: f}})
	})
}

// failing tells the route of failures, and returns how much work their trip refunded.
func (w *world) failing(failures int) (state route.State, refunded int) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		if state, err = route.New(tx).Failed(ctx, routeName, uuid.Nil, failures, failure.New(failure.Overloaded, "", nil)); err != nil {
			return err
		}
		if state == route.Open {
			refunded, err = outbox.RefundTrip(ctx, tx, routeName)
		}
		return err
	})
	return state, refunded
}

func TestRefundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	attempts := map[string]int{}
	keys := map[string]content.Key{}
	n := 0
	// each makes work, and claims it for every step.
	each := func(name string, want int, steps ...func(outbox.Claimed)) {
		t.Helper()
		w.enqueue(n, n+1)
		n++
		for _, step := range steps {
			c := w.claimOne("a")
			keys[name] = c.Key
			step(c)
		}
		attempts[name] = want
		w.exec("UPDATE evaluation_outbox SET available_at = available_at + interval '1 hour' WHERE status = 'pending'")
	}
	transient := func(c outbox.Claimed) { w.fail(c, failure.Overloaded, false, false) }
	refunded := func(c outbox.Claimed) { w.fail(c, failure.Overloaded, true, false) }
	throttled := func(c outbox.Claimed) { w.fail(c, failure.RateLimited, true, false) }
	unknown := func(c outbox.Claimed) { w.fail(c, failure.Timeout, false, false) }
	buried := func(c outbox.Claimed) { w.fail(c, failure.Overloaded, false, true) }

	each("before", 1, transient)
	w.exec("UPDATE evaluation_outbox SET available_at = now() + interval '2 hours'")
	each("buried before", 1, buried)
	if state, _ := w.failing(1); state != route.Closed {
		t.Fatalf("state %s", state)
	}
	each("once", 0, transient)
	each("twice", 0, transient, transient)
	each("once, then refunded", 0, transient, refunded)
	each("refunded, then once", 0, refunded, transient)
	each("once, then throttled", 0, transient, throttled)
	each("never", 0, throttled)
	each("unknown", 1, unknown)
	each("unknown, then once", 1, unknown, transient)
	each("buried", 0, buried)
	each("buried at the second", 0, transient, buried)
	w.exec("UPDATE evaluation_outbox SET last_reason = 'too_old' WHERE idempotency_key = $1", string(keys["buried at the second"]))
	each("permanent", 1, func(c outbox.Claimed) {
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			if _, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Failure: failure.New(failure.Refusal, "", nil)}}); err != nil {
				return err
			}
			return ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Rejected, Failure: failure.New(failure.Refusal, "", nil)}})
		})
	})
	w.enqueue(n, n+1)
	running := w.claimOne("a")

	state, count := w.failing(4)
	if state != route.Open {
		t.Fatalf("state %s after 5 failures", state)
	}
	check := func() {
		t.Helper()
		for name, want := range attempts {
			got := w.row(keys[name])
			status := "pending"
			if name == "permanent" || name == "buried before" {
				status = "dead"
			}
			if got.Attempts != want || got.Status != status {
				t.Errorf("%s: row is %+v, want %d attempts, %s", name, got, want, status)
			}
		}
		if got := w.row(running.Key); got.Attempts != 1 || got.Status != "processing" {
			t.Errorf("running: row is %+v", got)
		}
	}
	check()
	if count != 8 {
		t.Errorf("refunded %d evaluations, want 8", count)
	}
	// Once more changes nothing.
	if _, count = w.failing(1); count != 0 {
		t.Errorf("refunded %d evaluations again", count)
	}
	check()
}

// What failed on a route while its settlement waited for the trip is settled as on a route that is shut; see
// [route.Hold]. A settlement that came first is refunded by the trip, which waits for it.
func TestTripWaitsForSettlements(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	if state, _ := w.failing(4); state != route.Closed {
		t.Fatalf("state %s", state)
	}
	c := w.claimOne("a")
	tripped := make(chan int, 1)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if shut, err := route.Hold(ctx, tx, []string{routeName}); err != nil || len(shut) != 0 {
			t.Errorf("shut are %v, %v", shut, err)
		}
		go func() {
			_, refunded := w.failing(1)
			tripped <- refunded
		}()
		w.untilSomeoneWaits()
		f := failure.New(failure.Overloaded, "", nil)
		if _, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Delay: time.Hour, Failure: f}}); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Failed, Failure: f}})
	})
	if refunded := <-tripped; refunded != 1 || w.row(c.Key).Attempts != 0 {
		t.Errorf("refunded %d, the row is %+v", refunded, w.row(c.Key))
	}
}
