package fsck_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// alone stores tickets without work, as old as is said.
func (w *world) alone(messages string, ages ...time.Duration) []uuid.UUID {
	w.t.Helper()
	ids := make([]uuid.UUID, len(ages))
	tickets := make([]ticketdb.NewTicket, len(ages))
	for i, age := range ages {
		text, err := content.Canonical("", fmt.Sprintf("%s %d", messages, i))
		if err != nil {
			w.t.Fatal(err)
		}
		if err := w.db.QueryRow(w.t.Context(), "SELECT uuid_v7(now() - make_interval(secs => $1))", age.Seconds()).Scan(&ids[i]); err != nil {
			w.t.Fatal(err)
		}
		tickets[i] = ticketdb.NewTicket{ID: ids[i], ClientID: "acme", Message: text.Message, ContentHash: text.Hash(), TraceContext: "trace"}
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Insert(ctx, tx, tickets)
		return err
	})
	return ids
}

// walk collects all pages.
func (w *world) walk(window time.Duration, most int) (found []fsck.Ticket, pages int) {
	w.t.Helper()
	for before := uuid.Max; ; pages++ {
		tickets, next, ok, err := fsck.Unevaluated(w.t.Context(), w.db, window, before, most)
		if err != nil {
			w.t.Fatal(err)
		}
		if !ok {
			return found, pages
		}
		if len(tickets) > most {
			w.t.Fatalf("a page of %d tickets, want %d at most", len(tickets), most)
		}
		found, before = append(found, tickets...), next
	}
}

func TestUnevaluated(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	var stored int
	if err := w.db.QueryRow(t.Context(), "SELECT count(*) FROM ticket WHERE erased_at IS NULL").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	for _, most := range []int{1, 7, 1000} {
		found, pages := w.walk(0, most)
		if len(found) != 0 {
			t.Errorf("found %v in a healthy database", found)
		}
		if want := (stored + most - 1) / most; pages != want {
			t.Errorf("%d pages of %d, want %d", pages, most, want)
		}
	}
	ids := w.alone("alone", 0, time.Hour, 47*time.Hour, 49*time.Hour, 10_000*time.Hour)
	for window, want := range map[time.Duration]int{time.Minute: 1, 2 * time.Hour: 2, 48 * time.Hour: 3, 0: 5} {
		for _, most := range []int{1, 7, 1000} {
			found, _ := w.walk(window, most)
			if len(found) != want {
				t.Errorf("window %s, pages of %d: found %d, want %d", window, most, len(found), want)
				continue
			}
			for i, f := range found {
				if f.ID != ids[i] || f.TraceContext != "trace" {
					t.Errorf("found %+v at %d, want %s", f, i, ids[i])
				}
			}
		}
	}
}

// What reconciliation mends is what fsck finds.
func TestUnevaluatedIsTheFirstCheck(t *testing.T) {
	t.Parallel()
	sound := healthy(t)
	for way, damage := range breakages["ticket_without_work"] {
		t.Run(way, func(t *testing.T) {
			sound.vanishing(t, func(w *world) {
				want := damage(w)
				if found, _ := w.walk(0, 5); len(found) != 1 || found[0].ID.String() != want {
					t.Errorf("found %v, want %s", found, want)
				}
			})
		})
	}
}
