package evaluate_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

const patience = 2 * time.Minute

// rig is a database, a provider, and workers between them.
type rig struct {
	t       testing.TB
	url     string
	db      *pgxpool.Pool
	sim     *providersim.Server
	version evaluation.Version
	prepare func(*evaluate.Worker) // before it runs
	tracer  trace.Tracer
	text    func(n int) string // the n-th ticket's
}

func newRig(t testing.TB, rules ...providersim.Rule) *rig {
	t.Helper()
	return newRigWith(t, providersim.Options{Script: rules})
}

// newRigWith makes a rig with another provider, or another version.
func newRigWith(t testing.TB, sim providersim.Options, change ...func(*evaluation.Version)) *rig {
	t.Helper()
	return rigOn(t, pgtest.URL(t), sim, change...)
}

// newRigOn makes a rig whose database server the test may crash.
func newRigOn(t testing.TB, server *pgtest.Server) *rig {
	t.Helper()
	url, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rigOn(t, url, providersim.Options{})
}

func rigOn(t testing.TB, url string, sim providersim.Options, change ...func(*evaluation.Version)) *rig {
	t.Helper()
	r := &rig{t: t, url: url, tracer: noop.NewTracerProvider().Tracer(""), text: func(n int) string { return fmt.Sprintf("ticket <%d>", n) }}
	r.db = pgtest.Pool(t, r.url)
	r.sim = providersim.New(sim)
	if err := r.sim.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.sim.Close() })
	r.version = evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "gpt-5-mini", Prompt: "Sort the ticket.", AnswerSchema: evaluation.AnswerSchema,
		Departments:     []evaluation.Department{{Name: "billing", Description: "invoices"}, {Name: "general", Description: "anything else"}},
		MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2,
	}.WithDefaults()
	for _, c := range change {
		c(&r.version)
	}
	err := postgres.InTx(t.Context(), r.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, r.version, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, r.version.ID, "", "test")
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// create stores tickets of the texts from a to b, exclusive, on a lane.
func (r *rig) create(lane outbox.Lane, a, b int) []content.Key {
	r.t.Helper()
	var tickets []ticketdb.NewTicket
	var jobs []outbox.Job
	var keys []content.Key
	for n := a; n < b; n++ {
		text, err := content.Canonical("", r.text(n))
		if err != nil {
			r.t.Fatal(err)
		}
		id := uuid.Must(uuid.NewV7())
		key := content.KeyOf(text.Hash(), r.version.Digest())
		keys = append(keys, key)
		tickets = append(tickets, ticketdb.NewTicket{ID: id, ClientID: "c", Message: text.Message, ContentHash: text.Hash()})
		jobs = append(jobs, outbox.Job{Key: key, ContentHash: text.Hash(), TicketID: id})
	}
	err := postgres.InTx(r.t.Context(), r.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := ticketdb.Insert(ctx, tx, tickets); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: r.version.ID, Route: r.version.Route, Lane: lane}, jobs)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return keys
}

// start runs a worker; the function stops it and waits for it.
func (r *rig) start(change ...func(*evaluate.Options)) (stop func()) {
	r.t.Helper()
	openai, err := inference.NewOpenAI(inference.Config{BaseURL: r.sim.URL() + "/v1", APIKey: "sk-test"})
	if err != nil {
		r.t.Fatal(err)
	}
	pool := func() *pgxpool.Pool {
		p, err := postgres.Open(r.t.Context(), postgres.Config{URL: pgtest.As(r.url, pgtest.EvaluatorWorker), MaxConns: 8})
		if err != nil {
			r.t.Fatal(err)
		}
		return p
	}
	claims, settles := pool(), pool()
	o := evaluate.Options{
		Claims: claims, Settles: settles, Listen: pgtest.As(r.url, pgtest.EvaluatorWorker), Providers: map[string]evaluate.Provider{"openai": openai},
		Name: uuid.NewString(), Concurrency: 16, Lease: 30 * time.Second, PollInterval: 20 * time.Millisecond, Grace: patience, Tracer: r.tracer,
	}
	for _, c := range change {
		c(&o)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	w := evaluate.New(o)
	if r.prepare != nil {
		r.prepare(w)
	}
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("the worker failed: %v", err)
			}
			claims.Close()
			settles.Close()
		})
	}
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) count(what string, args ...any) int {
	r.t.Helper()
	var n int
	if err := r.db.QueryRow(r.t.Context(), "SELECT count(*) FROM "+what, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	return n
}

// until waits for a query that counts to count n.
func (r *rig) until(n int, what string, args ...any) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.count(what, args...) != n {
		select {
		case <-deadline:
			r.t.Fatalf("%s: %d after %s, want %d", what, r.count(what, args...), patience, n)
		case <-tick.C:
		}
	}
}

// untilMore waits for a query that counts to count more than n.
func (r *rig) untilMore(n int, what string) {
	r.t.Helper()
	r.until(1, fmt.Sprintf("(SELECT FROM %s HAVING count(*) > %d) more", what, n))
}

// untilDespiteErrors is until for a database that may not be there yet.
func (r *rig) untilDespiteErrors(n int, what string) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var got int
		if err := r.db.QueryRow(r.t.Context(), "SELECT count(*) FROM "+what).Scan(&got); err == nil && got == n {
			return
		}
		select {
		case <-deadline:
			r.t.Fatalf("%s: %d after %s, want %d", what, got, patience, n)
		case <-tick.C:
		}
	}
}

// due lets every pause and delay be over.
func (r *rig) due() {
	r.exec("UPDATE provider_route SET not_before = now() WHERE not_before > now()")
	r.exec("UPDATE evaluation_outbox SET available_at = now() WHERE status = 'pending' AND available_at > now()")
}

// check ends a test: the promises hold, and the ledger and the provider tell the same.
func (r *rig) check() {
	r.t.Helper()
	fscktest.Require(r.t, r.db)
	if err := r.sim.WaitIdle(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	sent := r.count("model_call WHERE outcome <> 'unsent'")
	if got := r.sim.Stats().Requests; got != sent {
		r.t.Errorf("the provider received %d requests, the ledger has %d", got, sent)
	}
}
