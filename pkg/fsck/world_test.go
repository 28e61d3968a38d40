package fsck_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a database whose every row was made by the engines.
type world struct {
	t  *testing.T
	db database
	// versions by id: v1 is active, hold sends nothing again that may be paid, next is registered only.
	versions map[string]evaluation.Version
	keys     map[string]content.Key // by the message of the ticket
	tickets  map[string]uuid.UUID
	calls    map[string]uuid.UUID // the first call of each
}

type database interface {
	postgres.Beginner
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// within is a database whose every change ends with a transaction.
type within struct{ pgx.Tx }

// BeginTx ignores the options: they are those of the outermost transaction.
func (w within) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return w.Begin(ctx) }

// vanishing runs do in the world as it is, and leaves the world as it was.
func (w *world) vanishing(t *testing.T, do func(*world)) {
	t.Helper()
	tx, err := w.db.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	do(&world{t: t, db: within{tx}, versions: w.versions, keys: maps.Clone(w.keys), tickets: maps.Clone(w.tickets), calls: maps.Clone(w.calls)})
}

const lapsed = -time.Second // a lease that is over when it begins

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, db: pgtest.New(t), versions: map[string]evaluation.Version{},
		keys: map[string]content.Key{}, tickets: map[string]uuid.UUID{}, calls: map[string]uuid.UUID{},
	}
	for _, v := range []evaluation.Version{
		{ID: "v1", UnknownPolicy: evaluation.Resend, MaxUnknownCalls: 2},
		{ID: "hold", UnknownPolicy: evaluation.Hold, MaxUnknownCalls: 2},
		{ID: "next", UnknownPolicy: evaluation.Resend, MaxUnknownCalls: 2},
	} {
		v.PromptVersion, v.Provider, v.Model, v.Prompt = v.ID+"-prompt", "openai", "m", "Sort it, "+v.ID
		v.Departments = []evaluation.Department{{Name: "billing"}, {Name: "general"}}
		v.MaxOutputTokens, v.Route = 100, "route-"+v.ID
		v.Prices.InputUSDPerMTok, v.Prices.OutputUSDPerMTok = decimal.New(25, -1), decimal.New(10, 0)
		v = v.WithDefaults()
		w.versions[v.ID] = v
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := versiondb.Register(ctx, tx, v, "test")
			return err
		})
	}
	w.promote("v1")
	return w
}

func (w *world) tx(fn func(context.Context, pgx.Tx) error) {
	w.t.Helper()
	if err := postgres.InTx(w.t.Context(), w.db, fn); err != nil {
		w.t.Fatal(err)
	}
}

// exec changes what no engine would change. Constraints between tables are not enforced.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sql, args...)
		if err == nil && tag.RowsAffected() == 0 && !tag.Select() && tag.String() != "ALTER TABLE" {
			w.t.Fatalf("%s: changed nothing", sql)
		}
		return err
	})
}

func (w *world) promote(id string) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error { return versiondb.Promote(ctx, tx, id, "", "test") })
}

// submit stores a ticket with its request, and the work for it.
func (w *world) submit(message, version string) {
	w.t.Helper()
	text, err := content.Canonical("subject", message)
	if err != nil {
		w.t.Fatal(err)
	}
	v, id := w.versions[version], uuid.Must(uuid.NewV7())
	key := content.KeyOf(text.Hash(), v.Digest())
	w.keys[message], w.tickets[message] = key, id
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := ticketdb.Reserve(ctx, tx, []ticketdb.Request{{
			RequestID: ticketdb.RequestID{Scope: "acme CreateTicket", Key: id.String()},
			Response:  ticketdb.Response{TicketID: id, VersionID: v.ID, Key: key, State: outbox.Pending},
		}}, time.Hour); err != nil {
			return err
		}
		if _, err := ticketdb.Insert(ctx, tx, []ticketdb.NewTicket{{
			ID: id, ClientID: "acme", Subject: text.Subject, Message: text.Message, ContentHash: text.Hash(),
		}}); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: v.ID, Route: v.Route, Lane: outbox.Live},
			[]outbox.Job{{Key: key, ContentHash: text.Hash(), TicketID: id}})
	})
}

// claim claims the one evaluation that is due under the version.
func (w *world) claim(message, version string, lease time.Duration) outbox.Claimed {
	w.t.Helper()
	var claimed []outbox.Claimed
	for _, lane := range []outbox.Lane{outbox.Live, outbox.Bulk} {
		rows, err := outbox.NewClaimer(w.db, w.versions[version].Route, lane, "worker", lease).Claim(w.t.Context(), 10)
		if err != nil {
			w.t.Fatal(err)
		}
		claimed = append(claimed, rows...)
	}
	if len(claimed) != 1 || claimed[0].Key != w.keys[message] {
		w.t.Fatalf("claimed %+v, want the work of %q alone", claimed, message)
	}
	if _, ok := w.calls[message]; !ok {
		w.calls[message] = claimed[0].CallID
	}
	return claimed[0]
}

// start submits a ticket and claims its work.
func (w *world) start(message, version string, lease time.Duration) outbox.Claimed {
	w.t.Helper()
	w.submit(message, version)
	return w.claim(message, version, lease)
}

// startCharged submits a ticket and claims its work within a budget.
func (w *world) startCharged(message string, lease time.Duration) outbox.Claimed {
	w.t.Helper()
	w.submit(message, "v1")
	var claimed []outbox.Claimed
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		p, err := route.Reserve(ctx, tx, "route-v1", uuid.Nil)
		if err != nil {
			return err
		}
		a := outbox.Allowance{Calls: p.Calls, Tokens: p.Tokens, TokenRatio: p.TokenRatio, Budget: p.Budget}
		if claimed, err = outbox.NewClaimer(w.db, "route-v1", outbox.Live, "worker", lease).ClaimWithin(ctx, tx, 10, &a); err != nil {
			return err
		}
		return p.Use(ctx, tx, route.Use{Calls: len(claimed), USD: p.Budget.Sub(*a.Budget)})
	})
	if len(claimed) != 1 || claimed[0].Key != w.keys[message] || !claimed[0].Charged {
		w.t.Fatalf("claimed %+v, want the work of %q alone, at a charge", claimed, message)
	}
	w.calls[message] = claimed[0].CallID
	return claimed[0]
}

// settleCharge charges a call what it cost, as a worker does.
func settleCharge(ctx context.Context, tx pgx.Tx, call uuid.UUID) error {
	deltas, err := ledger.SettleCharges(ctx, tx, []uuid.UUID{call})
	if err != nil {
		return err
	}
	return route.Charge(ctx, tx, deltas)
}

func (w *world) reclaim() {
	w.t.Helper()
	var r outbox.Reclaimed
	w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		r, _, err = outbox.Reclaim(ctx, tx, 100)
		return err
	})
	if r.Pending+r.Dead != 1 {
		w.t.Fatalf("reclaimed %+v, want one lease", r)
	}
}

// answer settles a call with an answer, as a worker does, whoever holds the lease by now.
func (w *world) answer(c outbox.Claimed) {
	w.t.Helper()
	call := c.CallID
	if call == uuid.Nil {
		call = c.SavedCallID
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Finish(ctx, tx, []outbox.Lease{c.Lease}); err != nil {
			return err
		}
		usage := evaluation.Usage{InputTokens: 20, OutputTokens: 10}
		if err := ledger.Close(ctx, tx, []ledger.Closure{{
			CallID: call, Outcome: ledger.Answered, HTTPStatus: 200, Response: []byte("{}"), Usage: &usage, CostUSD: w.versions[c.VersionID].Prices.Cost(usage),
		}}); err != nil {
			return err
		}
		if err := settleCharge(ctx, tx, call); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, []ledger.Result{{
			Key: c.Key, ContentHash: c.ContentHash, TicketID: c.TicketID, VersionID: c.VersionID,
			Answer: evaluation.Answer{Department: "billing"}, Decision: evaluation.Decision{PolicyVersion: "builtin-1", Priority: "low", Queue: "billing"},
			ModelVersion: "m-1", PromptVersion: w.versions[c.VersionID].PromptVersion, CallID: call,
		}})
		return err
	})
}

// save settles a call whose response could be stored, and its result not.
func (w *world) save(c outbox.Claimed, delay time.Duration) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Delay: delay, Failure: failure.New(failure.ResultUnsaved, "", nil)}}); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Saved, HTTPStatus: 200, Response: []byte("{}")}}); err != nil {
			return err
		}
		return settleCharge(ctx, tx, c.CallID)
	})
}

// fail settles a call that failed, for good or until the delay is over.
func (w *world) fail(c outbox.Claimed, outcome ledger.Outcome, reason failure.Reason, delay time.Duration) {
	w.t.Helper()
	f := failure.New(reason, "", nil)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.PutBack(ctx, tx, []outbox.Retry{{
			Lease: c.Lease, Delay: delay, Refund: f.Class.RefundsAttempt(), Unknown: f.Class == failure.Unknown, Failure: f,
		}}); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: outcome, Failure: f}}); err != nil {
			return err
		}
		return settleCharge(ctx, tx, c.CallID)
	})
}

func (w *world) bury(c outbox.Claimed, outcome ledger.Outcome, reason failure.Reason) {
	w.t.Helper()
	f := failure.New(reason, "", nil)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Unknown: f.Class == failure.Unknown, Failure: f}}); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: outcome, Failure: f}}); err != nil {
			return err
		}
		return settleCharge(ctx, tx, c.CallID)
	})
}

// healthy is a database in every state that the engines can bring it to and that is worth no look.
func healthy(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)

	w.answer(w.start("answered", "v1", time.Hour))
	w.submit("answered", "v1") // a ticket that is answered at birth

	w.fail(w.start("retried", "v1", time.Hour), ledger.Failed, failure.ServerError, 0)
	w.answer(w.claim("retried", "v1", time.Hour))

	w.start("lost", "v1", lapsed)
	w.reclaim()
	w.answer(w.claim("lost", "v1", time.Hour))

	late := w.start("late", "v1", lapsed)
	w.reclaim()
	second := w.claim("late", "v1", time.Hour)
	w.answer(second)
	w.answer(late)

	late = w.start("late, and first", "v1", lapsed)
	w.reclaim()
	second = w.claim("late, and first", "v1", time.Hour)
	w.answer(late)
	w.answer(second)

	late = w.start("late, of dead work", "hold", lapsed)
	w.reclaim()
	w.answer(late)

	w.save(w.start("saved and judged", "v1", time.Hour), 0)
	w.answer(w.claim("saved and judged", "v1", time.Hour))

	w.bury(w.start("refused", "v1", time.Hour), ledger.Rejected, failure.Refusal)
	w.bury(w.start("spent", "v1", time.Hour), ledger.Failed, failure.AttemptsSpent)
	w.bury(w.start("timed out", "v1", time.Hour), ledger.Unknown, failure.UnknownOutcome)
	w.start("held", "hold", lapsed)
	w.reclaim()
	late = w.start("refused late", "v1", lapsed)
	w.reclaim()
	w.bury(late, ledger.Rejected, failure.Refusal)
	for range 3 {
		w.start("never answered", "v1", lapsed)
		w.reclaim()
	}

	w.bury(w.start("recalled", "v1", time.Hour), ledger.Rejected, failure.Refusal)
	w.recall("recalled")
	w.answer(w.claim("recalled", "v1", time.Hour))
	w.bury(w.start("recalled and refused", "v1", time.Hour), ledger.Rejected, failure.Refusal)
	w.recall("recalled and refused")
	w.bury(w.claim("recalled and refused", "v1", time.Hour), ledger.Rejected, failure.Refusal)
	w.start("recalled and held", "hold", lapsed)
	w.reclaim()
	w.recall("recalled and held")
	w.claim("recalled and held", "hold", lapsed)
	w.reclaim()
	late = w.start("recalled and answered late", "hold", lapsed)
	w.reclaim()
	w.recall("recalled and answered late")
	second = w.claim("recalled and answered late", "hold", time.Hour)
	w.answer(late)
	w.answer(second)

	w.submit("erased when waiting", "v1")
	w.submit("erased, and asked for again", "v1")
	w.erase("erased when waiting", "erased, and asked for again")
	w.submit("erased, and asked for again", "v1")
	w.answer(w.claim("erased, and asked for again", "v1", time.Hour))
	w.bury(w.start("erased when dead", "v1", time.Hour), ledger.Rejected, failure.Refusal)
	w.answer(w.start("erased when answered", "v1", time.Hour))
	w.erase("erased when dead", "erased when answered")

	w.promote("next")
	w.promote("v1")
	w.answer(w.start("older", "hold", time.Hour))

	w.budget(route.AllRoutes, route.Day)
	w.budget("route-v1", route.Month)
	w.answer(w.startCharged("charged", time.Hour))
	w.fail(w.startCharged("charged and failed", time.Hour), ledger.Failed, failure.ServerError, time.Hour)
	w.startCharged("charged and lost", lapsed)
	w.reclaim()
	w.answer(w.claim("charged and lost", "v1", time.Hour))
	w.startCharged("charged and open", time.Hour)

	w.save(w.start("saved", "v1", time.Hour), time.Hour)
	w.fail(w.start("throttled", "v1", time.Hour), ledger.Failed, failure.RateLimited, time.Hour)
	w.fail(w.start("unknown once", "v1", time.Hour), ledger.Unknown, failure.Timeout, time.Hour)
	w.start("processing", "v1", time.Hour)
	w.bury(w.start("recalled and under way", "v1", time.Hour), ledger.Rejected, failure.Refusal)
	w.recall("recalled and under way")
	w.claim("recalled and under way", "v1", time.Hour)
	w.bury(w.start("armed again", "v1", time.Hour), ledger.Failed, failure.AttemptsSpent)
	w.submit("armed again", "v1")
	released := w.claim("armed again", "v1", time.Hour)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.Release(ctx, tx, []outbox.Lease{released.Lease})
		return err
	})
	w.start("recalled and waiting", "hold", lapsed)
	w.reclaim()
	w.recall("recalled and waiting")
	w.submit("pending", "v1")
	w.submit("pending", "v1") // a follower
	w.listen()
	return w
}

func (w *world) erase(messages ...string) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		var ids []uuid.UUID
		for _, m := range messages {
			ids = append(ids, w.tickets[m])
		}
		done, err := erasure.Erase(ctx, tx, ids)
		if err == nil && len(done.Erased) != len(messages) {
			err = fmt.Errorf("erased %d of %d tickets: %v wait", len(done.Erased), len(messages), done.Waiting)
		}
		return err
	})
}

// listen makes an endpoint that has listened all the time, and tells it of everything that workers have told it of.
func (w *world) listen() {
	w.t.Helper()
	keys := &webhook.Keyring{}
	if err := keys.UnmarshalText([]byte("k=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err != nil {
		w.t.Fatal(err)
	}
	_, err := webhook.NewEndpoints(w.db, keys).Create(w.t.Context(), webhook.NewEndpoint{ClientID: "acme", URL: "https://acme.example", Events: webhook.Events()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.exec("UPDATE webhook_endpoint SET listening_since = now() - interval '1 hour'")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := webhook.Tell(ctx, tx, slices.Collect(maps.Values(w.keys)))
		return err
	})
	w.exec("INSERT INTO webhook_supersession (promotion_id, state) SELECT id, 'done' FROM version_promotion WHERE replaced IS NOT NULL")
}

// recall replays a dead letter, to buy its answer again.
func (w *world) recall(message string) {
	w.t.Helper()
	selection := outbox.Selection{ID: uuid.New(), Keys: []content.Key{w.keys[message]}}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.SelectDead(ctx, tx, selection); err != nil {
			return err
		}
		job, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Replay, Spec: map[string]string{"mode": "recall"}, CreatedBy: "test"})
		if err != nil {
			return err
		}
		taken, err := outbox.TakeSelected(ctx, tx, selection.ID, job.CreatedAt, "", 10)
		if err != nil {
			return err
		}
		if len(taken.Dead) != 1 {
			w.t.Fatalf("%q is no dead letter", message)
		}
		if err := ledger.Recall(ctx, tx, job.ID, taken.Dead); err != nil {
			return err
		}
		_, _, err = outbox.Revive(ctx, tx, outbox.Revival{Job: job.ID, Keys: taken.Dead, Recalled: true})
		return err
	})
}

func (w *world) budget(scope string, period route.Period) {
	w.t.Helper()
	limit := decimal.New(1000, 0)
	if err := route.SetSpendLimit(w.t.Context(), w.db, route.Budget{Scope: scope, Period: period}, &limit); err != nil {
		w.t.Fatal(err)
	}
}

// again makes work anew for a key that has a result, as a concurrent identical ticket may at the moment of the
// answer.
func (w *world) again(message, status string) {
	w.t.Helper()
	w.exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status,
	          lease_id, locked_by, locked_until, dead_at, last_class, last_reason)
	        SELECT r.idempotency_key, r.content_hash, r.ticket_id, r.version_id, v.route, 'live', $2,
	          CASE $2 WHEN 'processing' THEN gen_random_uuid() END, CASE $2 WHEN 'processing' THEN 'worker' END,
	          CASE $2 WHEN 'processing' THEN now() + interval '1 hour' END,
	          CASE $2 WHEN 'dead' THEN now() END, 'transient', 'attempts_spent'
	        FROM evaluation_result r JOIN evaluator_version v ON v.id = r.version_id WHERE r.idempotency_key = $1`,
		string(w.keys[message]), status)
}

// call writes a ledger row, opened that long from now.
func (w *world) call(key content.Key, version, outcome string, after time.Duration) {
	w.t.Helper()
	w.exec(`INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, outcome, finished_at, class, reason, response)
	        VALUES (uuid_v7(now() + make_interval(secs => $4)), $1, $2, gen_random_uuid(), 1, $3,
	                CASE WHEN $3 <> 'open' THEN now() + make_interval(secs => $4) END, 'transient', 'server_error', '{}')`,
		string(key), version, outcome, after.Seconds())
}
