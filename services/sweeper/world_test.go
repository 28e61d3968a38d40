package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/auditdb"
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

// world is a database whose rows were made by the engines.
type world struct {
	t        *testing.T
	url      string
	db       *pgxpool.Pool
	service  *pgxpool.Pool // with the rights of a sweeper
	versions map[string]evaluation.Version
}

// newWorld has two versions and none that is active: v1 may send again what was lost, hold may not.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, url: pgtest.URL(t), versions: map[string]evaluation.Version{}}
	w.db = pgtest.Pool(t, w.url)
	w.service = pgtest.PoolAs(t, w.db, pgtest.Sweeper)
	for _, v := range []evaluation.Version{
		{ID: "v1", UnknownPolicy: evaluation.Resend, MaxUnknownCalls: 2},
		{ID: "hold", UnknownPolicy: evaluation.Hold},
	} {
		v.PromptVersion, v.Provider, v.Model, v.Prompt = "p-"+v.ID, "openai", "m", "Sort it, "+v.ID
		v.Departments = []evaluation.Department{{Name: "billing"}}
		v.MaxOutputTokens, v.Route = 100, "route-"+v.ID
		v = v.WithDefaults()
		w.versions[v.ID] = v
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := versiondb.Register(ctx, tx, v, "test")
			return err
		})
	}
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
		w.t.Fatalf("%s: %v", sql, err)
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

func (w *world) promote(id string) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error { return versiondb.Promote(ctx, tx, id, "", "test") })
}

// tickets stores n tickets of different texts without work, of the given age.
func (w *world) tickets(name string, n int, age time.Duration) []ticketdb.NewTicket {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), "SELECT uuid_v7(now() - make_interval(secs => $1)) FROM generate_series(1, $2)", age.Seconds(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		w.t.Fatal(err)
	}
	tickets := make([]ticketdb.NewTicket, n)
	for i, id := range ids {
		text, err := content.Canonical("subject", fmt.Sprintf("%s %d", name, i))
		if err != nil {
			w.t.Fatal(err)
		}
		tickets[i] = ticketdb.NewTicket{
			ID: id, ClientID: "acme", Subject: text.Subject, Message: text.Message, ContentHash: text.Hash(),
			TraceContext: fmt.Sprintf("trace of %s %d", name, i),
		}
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Insert(ctx, tx, tickets)
		return err
	})
	return tickets
}

func (w *world) key(t ticketdb.NewTicket, version string) content.Key {
	return content.KeyOf(t.ContentHash, w.versions[version].Digest())
}

// submit stores n tickets with their work.
func (w *world) submit(name, version string, n int, age time.Duration) []ticketdb.NewTicket {
	w.t.Helper()
	tickets := w.tickets(name, n, age)
	jobs := make([]outbox.Job, n)
	for i, t := range tickets {
		jobs[i] = outbox.Job{Key: w.key(t, version), ContentHash: t.ContentHash, TicketID: t.ID}
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: version, Route: w.versions[version].Route, Lane: outbox.Live}, jobs)
	})
	return tickets
}

// claim leases n evaluations of a version.
func (w *world) claim(version string, n int, lease time.Duration) []outbox.Claimed {
	w.t.Helper()
	claimed, err := outbox.NewClaimer(w.db, w.versions[version].Route, outbox.Live, "worker", lease).Claim(w.t.Context(), n)
	if err != nil || len(claimed) != n {
		w.t.Fatalf("claimed %d evaluations of %s, %v; want %d", len(claimed), version, err, n)
	}
	return claimed
}

// lapsed is a lease that is over when it begins.
const lapsed = -time.Second

// lose submits n tickets whose workers die with their calls under way.
func (w *world) lose(name, version string, n int) []outbox.Claimed {
	w.t.Helper()
	w.submit(name, version, n, 0)
	return w.claim(version, n, lapsed)
}

func (w *world) answer(claimed ...outbox.Claimed) {
	w.t.Helper()
	var leases []outbox.Lease
	var closures []ledger.Closure
	var results []ledger.Result
	for _, c := range claimed {
		answer := evaluation.Answer{Department: "billing"}
		leases = append(leases, c.Lease)
		closures = append(closures, ledger.Closure{CallID: c.CallID, Outcome: ledger.Answered, HTTPStatus: 200, Response: []byte("{}")})
		results = append(results, ledger.Result{
			Key: c.Key, ContentHash: c.ContentHash, TicketID: c.TicketID, VersionID: c.VersionID, Answer: answer,
			Decision: evaluation.Decision{PolicyVersion: "builtin-1", Priority: "low", Queue: "billing"}, ModelVersion: "m-1", PromptVersion: "p-" + c.VersionID, CallID: c.CallID,
		})
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Finish(ctx, tx, leases); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, closures); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, results)
		return err
	})
}

func (w *world) bury(claimed ...outbox.Claimed) {
	w.t.Helper()
	f := failure.New(failure.AttemptsSpent, "", nil)
	var burials []outbox.Burial
	var closures []ledger.Closure
	for _, c := range claimed {
		burials = append(burials, outbox.Burial{Lease: c.Lease, Failure: f})
		closures = append(closures, ledger.Closure{CallID: c.CallID, Outcome: ledger.Failed, Failure: f})
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Bury(ctx, tx, burials); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, closures)
	})
}

// request stores n requests that are remembered for the given time.
func (w *world) request(name string, n int, retention time.Duration) {
	w.t.Helper()
	requests := make([]ticketdb.Request, n)
	for i, t := range w.submit(name, "v1", n, 0) {
		requests[i] = ticketdb.Request{
			RequestID: ticketdb.RequestID{Scope: "acme CreateTicket", Key: t.ID.String()},
			Response:  ticketdb.Response{TicketID: t.ID, VersionID: "v1", Key: w.key(t, "v1"), State: outbox.Pending},
		}
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Reserve(ctx, tx, requests, retention)
		return err
	})
}

func (w *world) operatorsRequest(key string, retention time.Duration) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, _, err := auditdb.Reserve(ctx, tx, auditdb.Request{Scope: "ana VersionService.PromoteVersion", Key: key}, retention)
		return err
	})
}

// dropNextMonth takes the ledger's partition of the next month away.
func (w *world) dropNextMonth() {
	w.t.Helper()
	w.exec("DROP TABLE " + get[string](w, "SELECT 'model_call_' || to_char(date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY_MM')"))
}

func config48h() Config { return Config{ReconcileWindow: 48 * time.Hour, FsckTimeout: time.Minute} }

// sweep sweeps once, and leaves out the time it took.
func (w *world) sweep(change ...func(*Config)) summary {
	w.t.Helper()
	cfg := config48h()
	for _, c := range change {
		c(&cfg)
	}
	s := sweep(w.t.Context(), w.service, cfg, otel.Tracer(serviceName))
	if s.DurationMS < 0 {
		w.t.Errorf("took %d ms", s.DurationMS)
	}
	s.DurationMS = 0
	return s
}
