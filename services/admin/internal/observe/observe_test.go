package observe_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/observedb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/services/admin/internal/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type world struct {
	t     *testing.T
	db    *pgxpool.Pool
	admin *pgxpool.Pool // with the rights of the service
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t)}
	w.admin = pgtest.PoolAs(t, w.db, pgtest.Admin)
	v := evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "m", Prompt: "Sort it.", AnswerSchema: evaluation.AnswerSchema,
		Departments: []evaluation.Department{{Name: "billing"}}, MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2,
	}.WithDefaults()
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, v.ID, "", "test")
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// What takes long to look up is left out, and holds up nothing else.
func TestSavingsHoldUpNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := slow.Exec(t.Context(), "LOCK TABLE evaluation_result IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	taken, shown := look(t, observe.New(w.admin, time.Hour))
	if !taken {
		t.Error("no snapshot was taken")
	}
	if _, ok := shown[metrics.RouteState+" main closed"]; !ok {
		t.Errorf("the routes are not shown: %v", shown)
	}
}

// work adds evaluations of a state, with columns that it needs.
func (w *world) work(n int, columns, values string) {
	w.t.Helper()
	w.exec(`WITH t AS (INSERT INTO ticket (id, client_id, subject, message, content_hash)
		  SELECT uuid_v7(), 'c', '', '', sha256(gen_random_uuid()::text::bytea) FROM generate_series(1, $1) RETURNING id, content_hash)
		INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane`+columns+`)
		SELECT md5(id::text), content_hash, id, 'v1', 'main', 'live'`+values+` FROM t`, n)
}

// look makes an observer look, and returns what it shows.
func look(t *testing.T, o *observe.Observer) (taken bool, shown map[string]float64) {
	t.Helper()
	taken, err := o.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	samples, _, ok := o.Read()
	if !ok {
		t.Fatal("nothing is shown")
	}
	shown = map[string]float64{}
	for _, s := range samples {
		name := s.Metric
		for _, l := range s.Labels {
			name += " " + l
		}
		if _, twice := shown[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		shown[name] = s.Value
	}
	return taken, shown
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work(3, "", "")
	w.work(1, ", available_at", ", now() - interval '2 hours'")
	w.work(2, ", available_at", ", now() + interval '1 hour'")
	w.work(1, ", status, lease_id, locked_by, locked_until", ", 'processing', gen_random_uuid(), 'w', now() + interval '1 hour'")
	w.exec(`INSERT INTO evaluation_claim (id, route, worker, keys, size, check_at)
		SELECT gen_random_uuid(), route, 'w', ARRAY[idempotency_key], 1, now() FROM evaluation_outbox WHERE status = 'processing'`)
	w.work(4, ", status, dead_at, last_class, last_reason", ", 'dead', now(), 'permanent', 'refusal'")
	w.work(2, ", status, dead_at, last_class, last_reason", ", 'dead', now(), 'unknown', 'unknown_outcome'")
	w.work(5, ", status, dead_at, last_class, last_reason, discarded_at", ", 'dead', now(), 'unknown', 'unknown_outcome', now()")
	limits := route.Limits{RequestsPerMinute: 600, ConcurrentCalls: 20}
	if err := route.SetLimits(t.Context(), w.db, "main", limits); err != nil {
		t.Fatal(err)
	}
	budget := decimal.NewFromInt(500)
	if err := route.SetSpendLimit(t.Context(), w.db, route.Budget{Scope: "main", Period: route.Month}, &budget); err != nil {
		t.Fatal(err)
	}
	w.exec("UPDATE provider_route SET state = 'halted', reason = 'unauthorized', not_before = now() + interval '1 minute' WHERE name = 'main'")
	w.exec("UPDATE spend SET used_usd = 450")
	w.exec("INSERT INTO reprocess_job (kind, spec, created_by) VALUES ('replay', '{}', 'ops')")
	w.exec(`INSERT INTO webhook_endpoint (client_id, url, events, fingerprint) SELECT 'c', 'https://e.example', ARRAY['evaluation.succeeded'], sha256('') FROM generate_series(1, 3)`)
	w.exec("UPDATE webhook_endpoint SET state = 'disabled', disabled_reason = 'gone', disabled_at = now() WHERE id = (SELECT id FROM webhook_endpoint LIMIT 1)")
	w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, body, available_at) SELECT id, 'endpoint.test', '', now() - interval '1 hour' FROM webhook_endpoint WHERE state = 'enabled' LIMIT 1`)
	w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, body, available_at) SELECT id, 'endpoint.test', '', now() - interval '2 hours' FROM webhook_endpoint WHERE state = 'disabled'`)
	if err := observedb.RecordSweep(t.Context(), w.db, time.Second, false, map[string]int64{"reconciled": 7}); err != nil {
		t.Fatal(err)
	}

	o := observe.New(w.admin, time.Hour)
	taken, shown := look(t, o)
	if !taken {
		t.Error("the first one is not taken")
	}
	for name, want := range map[string]float64{
		metrics.QueueDepth + " main live ready": 4, metrics.QueueDepth + " main live scheduled": 2, metrics.QueueDepth + " main live running": 1,
		metrics.QueueDepth + " main live dead": 6, metrics.QueueDepth + " main bulk ready": 0, metrics.OldestReadyAge + " main bulk": 0,
		metrics.DeadLetters + " permanent refusal": 4, metrics.DeadLetters + " unknown unknown_outcome": 2, metrics.DeadLetters + " permanent truncated": 0,
		metrics.RouteState + " main halted": 1, metrics.RouteState + " main closed": 0, metrics.RouteState + " main paused": 0,
		metrics.RouteLimit + " main requests_per_minute": 600, metrics.RouteLimit + " main concurrent_calls": 20,
		metrics.Spend + " main month": 450, metrics.SpendLimit + " main month": 500,
		metrics.Jobs + " replay running": 1, metrics.Jobs + " policy paused": 0,
		metrics.WebhookEndpoints + " enabled none": 2, metrics.WebhookEndpoints + " disabled gone": 1, metrics.WebhookEndpoints + " disabled failing": 0,
		metrics.SweepOK: 0, metrics.SweepCount + " reconciled": 7,
	} {
		if got, ok := shown[name]; !ok || got != want {
			t.Errorf("%s is %v (%t), want %v", name, got, ok, want)
		}
	}
	if age := shown[metrics.OldestReadyAge+" main live"]; age < 7200 || age > 7200+3600 {
		t.Errorf("the oldest is ready since %v s, want two hours", age)
	}
	if age := shown[metrics.WebhookOldestDue]; age < 3600 || age >= 7200 {
		t.Errorf("the oldest delivery is due since %v s, want one hour: those of disabled endpoints are not", age)
	}
	for _, name := range []string{metrics.TableSize + " evaluation_outbox", metrics.SweepAge, metrics.RoutePermits + " main requests_per_minute"} {
		if _, ok := shown[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	known := map[string]metrics.Metric{}
	for _, m := range metrics.Catalogue() {
		if m.Snapshot {
			known[m.Name] = m
		}
	}
	samples, _, _ := o.Read()
	for _, s := range samples {
		m, ok := known[s.Metric]
		if !ok || len(m.Labels) != len(s.Labels) {
			t.Fatalf("%s %v is not in the catalogue", s.Metric, s.Labels)
		}
		for i, value := range s.Labels {
			if !m.Labels[i].Has(value) {
				t.Errorf("%s has %s=%q, which the catalogue does not know", s.Metric, m.Labels[i].Name, value)
			}
		}
	}
}

// However many replicas look at once, the tables are read once in an interval, and all show the same.
func TestOneReplicaMeasuresForAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work(3, "", "")
	const replicas = 6
	all := make([]*observe.Observer, replicas)
	for i := range all {
		all[i] = observe.New(w.admin, time.Hour)
	}
	round := func() int {
		var taken atomic.Int32
		var wg sync.WaitGroup
		for _, o := range all {
			wg.Go(func() {
				took, err := o.Look(t.Context())
				if err != nil {
					t.Error(err)
				}
				if took {
					taken.Add(1)
				}
			})
		}
		wg.Wait()
		return int(taken.Load())
	}
	if n := round(); n != 1 {
		t.Errorf("%d replicas have taken the first one", n)
	}
	w.work(2, "", "")
	if n := round(); n != 0 {
		t.Errorf("%d replicas have taken one that is not due", n)
	}
	for i, o := range all {
		if _, shown := look(t, o); shown[metrics.QueueDepth+" main live ready"] != 3 {
			t.Errorf("replica %d shows %v", i, shown[metrics.QueueDepth+" main live ready"])
		}
	}
	w.exec("UPDATE queue_snapshot SET taken_at = taken_at - interval '2 hours'")
	if n := round(); n != 1 {
		t.Errorf("%d replicas have taken the one that was due", n)
	}
	for i, o := range all {
		if _, shown := look(t, o); shown[metrics.QueueDepth+" main live ready"] != 5 {
			t.Errorf("replica %d shows %v", i, shown[metrics.QueueDepth+" main live ready"])
		}
		if _, age, _ := o.Read(); age < 0 || age > time.Hour {
			t.Errorf("replica %d says that it is %s old", i, age)
		}
	}
}

// A replica that is at it keeps no other from showing what there is.
func TestNobodyWaitsForWhoMeasures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if taken, _ := look(t, observe.New(w.admin, time.Hour)); !taken {
		t.Fatal("the first one is not taken")
	}
	w.exec("UPDATE queue_snapshot SET taken_at = taken_at - interval '2 hours'")
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if stale, err := observedb.LockStale(t.Context(), tx, time.Hour); err != nil || !stale {
		t.Fatalf("%t, %v", stale, err)
	}
	o := observe.New(w.admin, time.Hour)
	if taken, _ := look(t, o); taken {
		t.Error("it is taken twice")
	}
	if _, age, _ := o.Read(); age < 2*time.Hour {
		t.Errorf("an old snapshot says that it is %s old", age)
	}
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := observe.New(w.admin, 50*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	deadline := time.After(time.Minute)
	for {
		if _, _, ok := o.Read(); ok {
			break
		}
		select {
		case <-deadline:
			t.Fatal("nothing is shown")
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
