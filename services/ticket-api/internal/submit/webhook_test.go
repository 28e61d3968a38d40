package submit_test

import (
	"context"
	"encoding/base64"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

func (w *world) listen(client string) {
	w.t.Helper()
	keys := &webhook.Keyring{}
	if err := keys.UnmarshalText([]byte("k=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err != nil {
		w.t.Fatal(err)
	}
	_, err := webhook.NewEndpoints(w.db, keys).Create(w.t.Context(), webhook.NewEndpoint{ClientID: client, URL: "https://" + client + ".example", Events: webhook.Events()})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantTold(ticket uuid.UUID, event webhook.Event, times int) {
	w.t.Helper()
	var all, of int
	err := w.db.QueryRow(w.t.Context(), `SELECT count(*), count(*) FILTER (WHERE event = $2) FROM webhook_delivery WHERE ticket_id = $1`, ticket, event).Scan(&all, &of)
	if err != nil || of != times || all != times {
		w.t.Errorf("%d deliveries, %d of %s, %v; want %d", all, of, event, err, times)
	}
}

// finishing is a worker that settles the one evaluation there is, step by step.
type finishing struct {
	w    *world
	tx   pgx.Tx
	item outbox.Claimed
}

func (w *world) claim() *finishing {
	w.t.Helper()
	claimed, err := outbox.NewClaimer(w.db, "main", outbox.Live, "a worker", time.Minute).Claim(w.t.Context(), 1)
	if err != nil || len(claimed) != 1 {
		w.t.Fatalf("claimed %d rows, %v", len(claimed), err)
	}
	tx, err := w.db.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(w.t.Context())) })
	return &finishing{w: w, tx: tx, item: claimed[0]}
}

// finish deletes the work; it waits for followers.
func (f *finishing) finish(ctx context.Context) error {
	_, err := outbox.Finish(ctx, f.tx, []outbox.Lease{f.item.Lease})
	return err
}

func (f *finishing) commit(ctx context.Context) error {
	if err := ledger.Close(ctx, f.tx, []ledger.Closure{{CallID: f.item.CallID, Outcome: ledger.Answered, Response: []byte("r")}}); err != nil {
		return err
	}
	answer := evaluation.Answer{Department: "billing"}
	if _, err := ledger.Save(ctx, f.tx, []ledger.Result{{
		Key: f.item.Key, ContentHash: f.item.ContentHash, TicketID: f.item.TicketID, VersionID: f.item.VersionID, Answer: answer,
		Decision: evaluation.Decision{PolicyVersion: "p", Priority: "low", Queue: "q"}, ModelVersion: "m", PromptVersion: "p", CallID: f.item.CallID,
	}}); err != nil {
		return err
	}
	if _, err := webhook.Tell(ctx, f.tx, []content.Key{f.item.Key}); err != nil {
		return err
	}
	return f.tx.Commit(ctx)
}

// waitForLock waits until somebody waits for another's lock.
func (w *world) waitForLock() {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		var waiting bool
		err := w.db.QueryRow(w.t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		if err != nil {
			w.t.Fatal(err)
		}
		if waiting {
			return
		}
	}
	w.t.Fatal("nobody waits for a lock")
}

// A ticket of the same content that commits while its evaluation is being finished is seen by the one who finishes.
func TestAFollowerThatCommitsFirstIsToldByTheFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen("acme")
	first, err := w.submit.Submit(t.Context(), request("", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	f := w.claim()
	finished := make(chan error, 1)
	var follower uuid.UUID
	err = postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		receipt, err := submit.Insert(ctx, w.submit, tx, request("", "hello"))
		if err != nil {
			return err
		}
		follower = receipt.Ticket.ID
		go func() { finished <- f.finish(context.WithoutCancel(ctx)) }()
		w.waitForLock()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	if err := f.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantTold(first.Ticket.ID, webhook.Succeeded, 1)
	w.wantTold(follower, webhook.Succeeded, 1)
}

// One that comes later waits, and finds the answer itself.
func TestAFollowerThatCommitsLaterFindsTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen("acme")
	first, err := w.submit.Submit(t.Context(), request("", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	f := w.claim()
	if err := f.finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	follower := make(chan submit.Receipt, 1)
	go func() {
		receipt, err := w.submit.Submit(t.Context(), request("", "hello"))
		if err != nil {
			t.Error(err)
		}
		follower <- receipt
	}()
	w.waitForLock()
	if err := f.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantTold((<-follower).Ticket.ID, webhook.Succeeded, 1)
	w.wantTold(first.Ticket.ID, webhook.Succeeded, 1)
	known, err := w.submit.Submit(t.Context(), request("", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	w.wantTold(known.Ticket.ID, webhook.Succeeded, 1)
	// A replay is no new ticket.
	for range 2 {
		replayed, err := w.submit.Submit(t.Context(), request("k", "hello"))
		if err != nil {
			t.Fatal(err)
		}
		w.wantTold(replayed.Ticket.ID, webhook.Succeeded, 1)
	}
}

// A ticket that is stored while its work becomes a dead letter hears of it, whichever commits first; one whose work is
// tried again for its sake does not.
func TestTicketsOfDeadWorkAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen("acme")
	if _, err := w.submit.Submit(t.Context(), request("", "hello")); err != nil {
		t.Fatal(err)
	}
	w.claim()
	if _, err := w.db.Exec(t.Context(), `UPDATE evaluation_outbox SET locked_until = now() - interval '1 second', unknown_calls = 100`); err != nil {
		t.Fatal(err)
	}
	if err := postgres.InTx(t.Context(), w.db, outbox.Recheck); err != nil {
		t.Fatal(err)
	}
	reclaimed := make(chan error, 1)
	reclaim := func(ctx context.Context) {
		reclaimed <- postgres.InTx(ctx, w.db, func(ctx context.Context, tx pgx.Tx) error {
			_, dead, err := outbox.Reclaim(ctx, tx, 10)
			if err != nil || len(dead) != 1 {
				t.Errorf("%d dead letters, %v", len(dead), err)
				return err
			}
			_, err = webhook.Tell(ctx, tx, dead)
			return err
		})
	}
	var follower uuid.UUID
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		receipt, err := submit.Insert(ctx, w.submit, tx, request("", "hello"))
		if err != nil {
			return err
		}
		follower = receipt.Ticket.ID
		go reclaim(context.WithoutCancel(ctx))
		w.waitForLock()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-reclaimed; err != nil {
		t.Fatal(err)
	}
	w.wantTold(follower, webhook.DeadLetter, 1)
	later, err := w.submit.Submit(t.Context(), request("", "hello"))
	if err != nil || later.Ticket.Evaluation.State != outbox.Dead {
		t.Fatalf("%+v, %v", later, err)
	}
	w.wantTold(later.Ticket.ID, webhook.DeadLetter, 1)
	if _, err := w.db.Exec(t.Context(), `UPDATE evaluation_outbox SET last_class = 'transient', last_reason = 'attempts_spent'`); err != nil {
		t.Fatal(err)
	}
	again, err := w.submit.Submit(t.Context(), request("", "hello"))
	if err != nil || again.Ticket.Evaluation.State != outbox.Pending {
		t.Fatalf("%+v, %v", again, err)
	}
	w.wantTold(again.Ticket.ID, webhook.DeadLetter, 0)
}
