package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/outbox"
)

// What a worker holds is listed with the calls that may be made, and nothing of another's, nor what has been taken back.
func TestLeased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 3)
	gone := w.claimOne("a")
	w.expire()
	again, err := w.claimer("a", time.Minute).Claim(t.Context(), 2)
	if err != nil || len(again) != 2 {
		t.Fatalf("claimed %d, %v; want 2", len(again), err)
	}
	w.claimOne("b")
	w.finish(again[0])

	leased, err := outbox.Leased(t.Context(), w.db, "a")
	if err != nil {
		t.Fatal(err)
	}
	want := outbox.Held{Lease: again[1].Lease, Route: routeName, CallID: again[1].CallID}
	if len(leased) != 1 || leased[0] != want {
		t.Errorf("a holds %+v, want %+v", leased, want)
	}
	if leased[0].ID == gone.ID || leased[0].CallID == uuid.Nil {
		t.Errorf("a holds %+v, which is taken back or has no call", leased[0])
	}
	if none, err := outbox.Leased(t.Context(), w.db, "c"); err != nil || len(none) != 0 {
		t.Errorf("c holds %+v, %v", none, err)
	}
}
