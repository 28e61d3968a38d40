package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox"
)

func (w *world) listed() int {
	w.t.Helper()
	return get[int](w, "SELECT count(*) FROM evaluation_claim")
}

// A claim is on the list until it is ended, or somebody who looks at it finds nothing of it leased.
func TestClaimsAreListedAndEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 4)
	ended, left := w.claim("a", 2), w.claim("a", 2)
	if n := get[int](w, "SELECT sum(size) FROM evaluation_claim WHERE worker = 'a' AND cardinality(keys) = size"); n != 4 {
		t.Errorf("%d leases are listed, want 4", n)
	}
	for _, c := range append(ended, left...) {
		w.finish(c)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		return outbox.EndClaims(ctx, tx, []uuid.UUID{ended[0].ClaimID})
	})
	if n := w.listed(); n != 1 {
		t.Errorf("%d claims are listed after one of two was ended", n)
	}
	w.reclaim()
	if n := w.listed(); n != 1 {
		t.Errorf("%d claims are listed: one was looked at before its time", n)
	}
	if r := w.expire(); r != (outbox.Reclaimed{}) || w.listed() != 0 {
		t.Errorf("reclaimed %+v of finished work, %d claims are listed", r, w.listed())
	}
}

// A claim that is looked at while one of its leases holds is looked at again when that may be over.
func TestALivingLeaseKeepsItsClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 3)
	claimed := w.claim("a", 3)
	w.finish(claimed[0])
	w.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 second' WHERE idempotency_key = $1", string(claimed[1].Key))
	w.tx(outbox.Recheck)
	if r := w.reclaim(); r != (outbox.Reclaimed{Pending: 1, Unknown: 1}) {
		t.Errorf("reclaimed %+v, want the lease that is over", r)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_claim WHERE check_at > now() AND check_at <= now() + interval '5 seconds'"); n != 1 {
		t.Errorf("%d claims are to be looked at soon, want the one with a living lease", n)
	}
	if r := w.expire(); r != (outbox.Reclaimed{Pending: 1, Unknown: 1}) || w.listed() != 0 {
		t.Errorf("reclaimed %+v, %d claims are listed", r, w.listed())
	}
}

// Somebody else is at a row: its claim stays, and the row is taken back by the next look.
func TestALockedLeaseKeepsItsClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	w.claimOne("a")
	locked, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locked.Rollback(context.WithoutCancel(t.Context())) }()
	w.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 second'")
	w.tx(outbox.Recheck)
	if _, err := locked.Exec(t.Context(), "SELECT FROM evaluation_outbox FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if r := w.reclaim(); r != (outbox.Reclaimed{}) || w.listed() != 1 {
		t.Errorf("reclaimed %+v, %d claims are listed; want one that is left for later", r, w.listed())
	}
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.tx(outbox.Recheck)
	if r := w.reclaim(); r.Pending != 1 || w.listed() != 0 {
		t.Errorf("reclaimed %+v, %d claims are listed", r, w.listed())
	}
}

// Leases that no list has, as a release before it takes them, are found by whoever looks at everything.
func TestUnlistedLeasesAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 600)
	w.claim("old", 598)
	w.claim("new", 2)
	w.exec("DELETE FROM evaluation_claim WHERE worker = 'old'")
	w.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 second' WHERE locked_by = 'old'")
	if r := w.reclaim(); r != (outbox.Reclaimed{}) {
		t.Errorf("reclaimed %+v of what is in no list", r)
	}
	w.tx(outbox.Recheck)
	w.tx(outbox.Recheck) // which makes no second list of the same
	if n := w.listed(); n != 3 {
		t.Errorf("%d claims are listed, want two of at most 500 lost leases and the living one", n)
	}
	if r := w.reclaim(); r != (outbox.Reclaimed{Pending: 598, Unknown: 598}) || w.listed() != 1 {
		t.Errorf("reclaimed %+v, %d claims are listed", r, w.listed())
	}
}

// What was put back, claimed again by another and settled there is no longer of the first claim.
func TestAKeyInTwoClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	first := w.claimOne("a")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: first.Lease, Delay: -time.Second, Failure: failure.New(failure.Overloaded, "", nil)}})
		return err
	})
	second := w.claimOne("b")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		return outbox.EndClaims(ctx, tx, []uuid.UUID{first.ClaimID})
	})
	if r := w.expire(); r != (outbox.Reclaimed{Pending: 1, Unknown: 1}) {
		t.Errorf("reclaimed %+v, want the second lease", r)
	}
	if got := w.outcome(second.CallID); got != "unknown" {
		t.Errorf("the second call is %s", got)
	}
}
