package erasure_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sentinel is in every text, and in all that a provider says of one.
const sentinel = "Zebrafinkensentinel"

// world is a database with a version, which operators erase in with the rights of the admin service.
type world struct {
	t       *testing.T
	db      *pgxpool.Pool
	admin   *pgxpool.Pool
	version evaluation.Version
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t)}
	w.admin = pgtest.PoolAs(t, w.db, pgtest.Admin)
	w.version = evaluation.Version{
		ID: "v1", PromptVersion: "p", Provider: "openai", Model: "m", Prompt: "Sort it.", Departments: []evaluation.Department{{Name: "billing"}},
		MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2,
	}.WithDefaults()
	w.version.Prices.OutputUSDPerMTok = decimal.New(10, 0)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, w.version, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, "v1", "", "test")
	})
	return w
}

func (w *world) tx(do func(context.Context, pgx.Tx) error) {
	w.t.Helper()
	if err := postgres.InTx(w.t.Context(), w.db, do); err != nil {
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

func textOf(t *testing.T, message string) content.Text {
	t.Helper()
	text, err := content.Canonical("about "+sentinel, message+" "+sentinel)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (w *world) key(message string) content.Key {
	return content.KeyOf(textOf(w.t, message).Hash(), w.version.Digest())
}

// store is a client's create.
func (w *world) store(ctx context.Context, message string) (uuid.UUID, error) {
	text, id := textOf(w.t, message), uuid.Must(uuid.NewV7())
	return id, postgres.InTx(ctx, w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := ticketdb.Reserve(ctx, tx, []ticketdb.Request{{
			RequestID: ticketdb.RequestID{Scope: "acme CreateTicket", Key: id.String()},
			Response:  ticketdb.Response{TicketID: id, VersionID: "v1", Key: w.key(message), State: outbox.Pending},
		}}, time.Hour); err != nil {
			return err
		}
		if _, err := ticketdb.Insert(ctx, tx, []ticketdb.NewTicket{{
			ID: id, ClientID: "acme", ExternalID: "their own", Subject: text.Subject, Message: text.Message, ContentHash: text.Hash(),
		}}); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: "v1", Route: "main", Lane: outbox.Live},
			[]outbox.Job{{Key: w.key(message), ContentHash: text.Hash(), TicketID: id}})
	})
}

func (w *world) submit(message string) uuid.UUID {
	w.t.Helper()
	id, err := w.store(w.t.Context(), message)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// claim claims the one evaluation that is due.
func (w *world) claim(lease time.Duration) outbox.Claimed {
	w.t.Helper()
	claimed, err := outbox.NewClaimer(w.db, "main", outbox.Live, "worker", lease).Claim(w.t.Context(), 10)
	if err != nil || len(claimed) != 1 {
		w.t.Fatalf("claimed %d evaluations, %v; want one", len(claimed), err)
	}
	return claimed[0]
}

func (w *world) settleAnswer(ctx context.Context, c outbox.Claimed) error {
	return postgres.InTx(ctx, w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Finish(ctx, tx, []outbox.Lease{c.Lease}); err != nil || c.CallID == uuid.Nil {
			return err
		}
		if err := ledger.Close(ctx, tx, []ledger.Closure{{
			CallID: c.CallID, Outcome: ledger.Answered, HTTPStatus: 200, Response: []byte("{" + sentinel + "}"), CostUSD: decimal.New(1, -3),
			Usage: &evaluation.Usage{InputTokens: 20, OutputTokens: 10},
		}}); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, []ledger.Result{{
			Key: c.Key, ContentHash: c.ContentHash, TicketID: c.TicketID, VersionID: "v1", Answer: evaluation.Answer{Department: "billing"},
			Decision: evaluation.Decision{PolicyVersion: "builtin-1", Priority: "low", Queue: "billing"}, ModelVersion: "m", PromptVersion: "p", CallID: c.CallID,
		}})
		return err
	})
}

func (w *world) answer(c outbox.Claimed) {
	w.t.Helper()
	if err := w.settleAnswer(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
}

// putBack settles a call that failed for a transient cause; the work is due again.
func (w *world) putBack(c outbox.Claimed) {
	w.t.Helper()
	f := failure.New(failure.ServerError, "cannot make out "+sentinel, nil)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Failure: f}}); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Failed, Failure: f}})
	})
}

func (w *world) bury(c outbox.Claimed, outcome ledger.Outcome, reason failure.Reason) {
	w.t.Helper()
	f := failure.New(reason, "will not read "+sentinel, nil)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Failure: f}}); err != nil {
			return err
		}
		closure := ledger.Closure{CallID: c.CallID, Outcome: outcome, Failure: f}
		if outcome == ledger.Rejected {
			closure.Response, closure.CostUSD = []byte("I refuse to talk of "+sentinel), decimal.New(2, -3)
		}
		return ledger.Close(ctx, tx, []ledger.Closure{closure})
	})
}

func (w *world) tryErase(ids ...uuid.UUID) (done erasure.Outcome, err error) {
	err = postgres.InTx(w.t.Context(), w.admin, func(ctx context.Context, tx pgx.Tx) (err error) {
		done, err = erasure.Erase(ctx, tx, ids)
		return err
	})
	return done, err
}

// erase erases tickets of which none has to wait.
func (w *world) erase(ids ...uuid.UUID) erasure.Outcome {
	w.t.Helper()
	done, err := w.tryErase(ids...)
	if err != nil || len(done.Erased) != len(ids) {
		w.t.Fatalf("erased %+v of %d tickets, %v", done, len(ids), err)
	}
	return done
}
