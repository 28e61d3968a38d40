package erasure_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

const day = 24 * time.Hour

// age makes everything older.
func (w *world) age(by time.Duration) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{
			`SET LOCAL session_replication_role = replica`,
			`CREATE FUNCTION pg_temp.older(id uuid) RETURNS uuid LANGUAGE sql AS $$
				SELECT overlay(uuid_v7(to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) - interval '` + by.String() + `')::text
				       PLACING substr(id::text, 15) FROM 15)::uuid $$`,
			`UPDATE ticket SET id = pg_temp.older(id), created_at = created_at - interval '` + by.String() + `'`,
			`UPDATE client_request SET ticket_id = pg_temp.older(ticket_id)`,
			`UPDATE model_call SET id = pg_temp.older(id), started_at = started_at - interval '` + by.String() + `', finished_at = finished_at - interval '` + by.String() + `'`,
			`UPDATE evaluation_result SET ticket_id = pg_temp.older(ticket_id), model_call_id = pg_temp.older(model_call_id)`,
			`UPDATE evaluation_outbox SET ticket_id = pg_temp.older(ticket_id)`,
			`DROP FUNCTION pg_temp.older`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *world) save(c outbox.Claimed) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Failure: failure.New(failure.ResultUnsaved, "", nil)}}); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Saved, HTTPStatus: 200, Response: []byte(sentinel)}})
	})
}

func TestOldResponsesGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sweeper := pgtest.PoolAs(t, w.db, pgtest.Sweeper)
	sweep := func(want int64) {
		t.Helper()
		if n, err := erasure.OldResponses(t.Context(), sweeper, 90*day); err != nil || n != want {
			t.Errorf("erased %d, %v; want %d", n, err, want)
		}
	}
	w.submit("answered")
	w.answer(w.claim(time.Hour))
	w.submit("refused")
	w.bury(w.claim(time.Hour), ledger.Rejected, failure.Refusal)
	sweep(0)
	w.age(60 * day)
	w.submit("saved")
	w.save(w.claim(time.Hour))
	w.age(31 * day)
	w.submit("young")
	sweep(2)
	w.age(60 * day) // what waits to be judged is old, too
	sweep(0)
	claimed, err := outbox.NewClaimer(w.db, "main", outbox.Live, "worker", time.Hour).Claim(t.Context(), 10)
	if err != nil || len(claimed) != 2 {
		t.Fatal(claimed, err)
	}
	unjudged := claimed[slices.IndexFunc(claimed, func(c outbox.Claimed) bool { return c.SavedCallID != uuid.Nil })]
	if string(unjudged.SavedResponse) != sentinel {
		t.Fatalf("the saved response is %q", unjudged.SavedResponse)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		f := failure.New(failure.Refusal, "", nil)
		if _, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: unjudged.Lease, Failure: f}}); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{{CallID: unjudged.SavedCallID, Outcome: ledger.Rejected, Failure: f}})
	})
	sweep(1)
	sweep(0)
	if n := get[int](w, `SELECT count(*) FROM model_call WHERE response IS NOT NULL`); n != 0 {
		t.Errorf("%d responses are left", n)
	}
	if n := get[int](w, `SELECT count(*) FROM ticket WHERE message = ''`); n != 0 {
		t.Errorf("%d tickets have lost their text", n)
	}
	fscktest.Require(t, w.db)
}

func TestOldTicketsAreErased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sweeper := pgtest.PoolAs(t, w.db, pgtest.Sweeper)
	sweep := func(want int64) {
		t.Helper()
		if n, err := erasure.OldTexts(t.Context(), sweeper, 30*day); err != nil || n != want {
			t.Errorf("erased %d, %v; want %d", n, err, want)
		}
	}
	w.submit("answered")
	w.answer(w.claim(time.Hour))
	w.submit("shared")
	w.answer(w.claim(time.Hour))
	w.submit("busy")
	busy := w.claim(time.Hour)
	sweep(0)
	w.age(31 * day)
	w.submit("shared")
	w.submit("waiting")
	sweep(2)
	if n := get[int](w, `SELECT count(*) FROM model_call WHERE response IS NOT NULL`); n != 1 {
		t.Errorf("%d responses are left, want that of the text that a young ticket has as well", n)
	}
	busy.TicketID = get[uuid.UUID](w, `SELECT ticket_id FROM evaluation_outbox WHERE lease_id = $1`, busy.Lease.ID)
	busy.CallID = get[uuid.UUID](w, `SELECT id FROM model_call WHERE lease_id = $1`, busy.Lease.ID)
	w.answer(busy)
	sweep(1) // and none twice
	w.age(31 * day)
	sweep(2)
	sweep(0)
	if found := w.search(); len(found) > 0 {
		t.Errorf("texts are left in %v", found)
	}
	fscktest.Require(t, w.db)
}
