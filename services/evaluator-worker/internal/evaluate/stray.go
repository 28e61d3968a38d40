package evaluate

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// strayInterval is how often a worker looks for stray leases while there may be some.
const strayInterval = time.Second

// strays are leases that the worker holds without knowing it: of a claim whose COMMIT was sent and never answered.
// Nobody has begun their calls, so their work is given back as it was. Left alone, it would wait until the leases are
// over, and its calls would count as unknown.
type strays struct {
	until time.Time // there may be some so long; then they have expired
	next  time.Time // when to look again: a server may commit long after the connection is lost
	left  map[uuid.UUID]struct{}
}

// suspectStrays takes note of a claim that failed.
func (w *Worker) suspectStrays(err error) {
	if !errors.Is(err, postgres.ErrCommitUnknown) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strays.until = time.Now().Add(w.Lease)
	w.strays.next = time.Time{}
}

// leave lets go of a lease whose settlement the database refuses in every form. It is no stray: its call may have left.
func (w *Worker) leave(it *item) {
	w.claims.keep(it.ClaimID)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strays.left[it.ID] = struct{}{}
}

// giveBackStrays releases stray leases, where a claim of unknown outcome may have left some.
func (w *Worker) giveBackStrays(ctx context.Context) {
	now := time.Now()
	w.mu.Lock()
	due := now.Before(w.strays.until) && !now.Before(w.strays.next)
	if due {
		w.strays.next = now.Add(min(strayInterval, w.Lease/heartbeatsALease))
	}
	w.mu.Unlock()
	if !due {
		return
	}
	// No claim is on its way now. What one has leased, and not yet taken into the worker's care, would look like a stray.
	w.claiming.Lock()
	defer w.claiming.Unlock()
	w.mu.Lock()
	held := maps.Clone(w.held) // what is settled from here on is no stray either
	w.mu.Unlock()
	leased, err := outbox.Leased(ctx, w.Settles, w.Name)
	if err != nil {
		if ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot look for stray leases", slog.Any("error", err))
		}
		return
	}
	found := w.adoptStrays(leased, held)
	if len(found) == 0 {
		return
	}
	slog.WarnContext(ctx, "a claim was committed without an answer: giving its work back", slog.Int("leases", len(found)))
	for _, h := range found {
		w.settled <- settlement{release: true, item: &item{
			Claimed: outbox.Claimed{Lease: h.Lease, CallID: h.CallID, Charged: h.CallID != uuid.Nil}, route: h.Route,
		}}
	}
}

// adoptStrays takes those of its leases into the worker's care that it does not know.
func (w *Worker) adoptStrays(leased []outbox.Held, known map[uuid.UUID]content.Key) (found []outbox.Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := make(map[uuid.UUID]struct{}, len(w.strays.left))
	for _, h := range leased {
		if _, ok := w.strays.left[h.ID]; ok {
			left[h.ID] = struct{}{}
			continue
		}
		if _, ok := known[h.ID]; !ok {
			w.held[h.ID] = h.Key
			found = append(found, h)
		}
	}
	w.strays.left = left // those that are gone do not come back
	return found
}
