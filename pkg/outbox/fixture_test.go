package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

const routeName = "main"

// world is a database with one active version.
type world struct {
	t       *testing.T
	db      *pgxpool.Pool
	version evaluation.Version
}

func newWorld(t *testing.T, change ...func(*evaluation.Version)) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t), version: evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "m", Prompt: "Sort it.", AnswerSchema: evaluation.AnswerSchema,
		Departments:     []evaluation.Department{{Name: "billing"}, {Name: "general"}},
		MaxOutputTokens: 100, Route: routeName, MaxUnknownCalls: 2,
	}.WithDefaults()}
	for _, c := range change {
		c(&w.version)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, w.version, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, w.version.ID, "", "test")
	})
	return w
}

func (w *world) tx(fn func(context.Context, pgx.Tx) error) {
	w.t.Helper()
	if err := postgres.InTx(w.t.Context(), w.db, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func get[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	var v T
	if err := w.db.QueryRow(w.t.Context(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// job makes the work of the n-th text.
func (w *world) job(n int) (outbox.Job, ticketdb.NewTicket) {
	w.t.Helper()
	text, err := content.Canonical("subject", fmt.Sprintf("message %d", n))
	if err != nil {
		w.t.Fatal(err)
	}
	id := uuid.Must(uuid.NewV7())
	return outbox.Job{Key: content.KeyOf(text.Hash(), w.version.Digest()), ContentHash: text.Hash(), TicketID: id},
		ticketdb.NewTicket{ID: id, ClientID: "c", Subject: text.Subject, Message: text.Message, ContentHash: text.Hash()}
}

func (w *world) demand() outbox.Demand {
	return outbox.Demand{VersionID: w.version.ID, Route: w.version.Route, Lane: outbox.Live}
}

// enqueue stores tickets of the texts from a to b, exclusive, with their work.
func (w *world) enqueue(a, b int) []outbox.Job {
	w.t.Helper()
	var jobs []outbox.Job
	var tickets []ticketdb.NewTicket
	for n := a; n < b; n++ {
		j, t := w.job(n)
		jobs, tickets = append(jobs, j), append(tickets, t)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := ticketdb.Insert(ctx, tx, tickets); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, w.demand(), jobs)
	})
	return jobs
}

func (w *world) claimer(worker string, lease time.Duration) *outbox.Claimer {
	return outbox.NewClaimer(w.db, routeName, outbox.Live, worker, lease)
}

func (w *world) claim(worker string, most int) []outbox.Claimed {
	w.t.Helper()
	claimed, err := w.claimer(worker, time.Minute).Claim(w.t.Context(), most)
	if err != nil {
		w.t.Fatal(err)
	}
	return claimed
}

func (w *world) claimOne(worker string) outbox.Claimed {
	w.t.Helper()
	claimed := w.claim(worker, 1)
	if len(claimed) != 1 {
		w.t.Fatalf("claimed %d rows, want 1", len(claimed))
	}
	return claimed[0]
}

// expire lets all leases expire and reclaims them.
func (w *world) expire() outbox.Reclaimed {
	w.t.Helper()
	w.expireLeases("status = 'processing'")
	return w.reclaim()
}

// expireLeases lets leases be over, and their claims be looked at.
func (w *world) expireLeases(where string) {
	w.t.Helper()
	w.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 second' WHERE " + where)
	w.tx(outbox.Recheck)
}

func (w *world) reclaim() (r outbox.Reclaimed) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		var dead []content.Key
		if r, dead, err = outbox.Reclaim(ctx, tx, 1000); len(dead) != r.Dead {
			w.t.Errorf("%d keys of %d dead letters", len(dead), r.Dead)
		}
		return err
	})
	return r
}

func (w *world) resultOf(c outbox.Claimed) ledger.Result {
	return ledger.Result{
		Key: c.Key, ContentHash: c.ContentHash, TicketID: c.TicketID, VersionID: c.VersionID,
		Answer: evaluation.Answer{Department: "billing", IsUrgent: 1, UrgencyScore: 0.5}, Decision: evaluation.Decision{PolicyVersion: "p", Priority: "high", Queue: "q"},
		ModelVersion: "m-1", PromptVersion: "p1", CallID: c.CallID,
	}
}

// finish settles a claim with a result, as a worker does.
func (w *world) finish(c outbox.Claimed) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Finish(ctx, tx, []outbox.Lease{c.Lease}); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Answered, Response: []byte("{}"), HTTPStatus: 200}}); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, []ledger.Result{w.resultOf(c)})
		return err
	})
}

func (w *world) bury(c outbox.Claimed, reason failure.Reason) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Failure: failure.New(reason, "", nil)}})
		return err
	})
}

// untilSomeoneWaits returns once a session waits for another's lock.
func (w *world) untilSomeoneWaits() {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if get[bool](w, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')") {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal("nobody waits for a lock")
		}
	}
}

type row struct {
	Status       string
	Attempts     int
	UnknownCalls int
	LastClass    string
	LastReason   string
	Owner        string
}

func (w *world) row(key content.Key) row {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT status, attempts, unknown_calls, coalesce(last_class, ''), coalesce(last_reason, ''), coalesce(locked_by, '')
		FROM evaluation_outbox WHERE idempotency_key = $1`, string(key))
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) outcome(call uuid.UUID) string {
	w.t.Helper()
	return get[string](w, "SELECT outcome FROM model_call WHERE id = $1", call)
}
