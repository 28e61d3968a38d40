package route_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/route"
)

type world struct {
	t    *testing.T
	db   *pgxpool.Pool
	gate *route.Gate
}

func newWorld(t *testing.T) *world {
	db := pgtest.New(t)
	w := &world{t: t, db: db, gate: route.New(db)}
	w.exec("INSERT INTO provider_route (name) VALUES ('r')")
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// work gives the route something to probe with.
func (w *world) work() {
	w.t.Helper()
	w.exec(`WITH t AS (INSERT INTO ticket (id, client_id, subject, message, content_hash) VALUES (uuid_v7(), 'c', '', 'm', sha256('m')) RETURNING *)
		INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT encode(substring(content_hash FROM 1 FOR 16), 'hex'), content_hash, id, 'v', 'r', 'live' FROM t`)
}

// due lets the route's pause be over.
func (w *world) due() { w.exec("UPDATE provider_route SET not_before = now()") }

func (w *world) route() route.Route {
	w.t.Helper()
	routes, err := w.gate.List(w.t.Context())
	if err != nil || len(routes) != 1 {
		w.t.Fatalf("listed %v, %v", routes, err)
	}
	return routes[0]
}

func (w *world) fail(probe uuid.UUID, calls int, f *failure.Failure) route.State {
	w.t.Helper()
	state, err := w.gate.Failed(w.t.Context(), "r", probe, calls, f)
	if err != nil {
		w.t.Fatal(err)
	}
	if got := w.route().State; got != state {
		w.t.Errorf("reported state %s, the row says %s", state, got)
	}
	return state
}

func (w *world) probe() (uuid.UUID, bool) {
	w.t.Helper()
	id, ok, err := w.gate.BeginProbe(w.t.Context(), "r", time.Minute)
	if err != nil {
		w.t.Fatal(err)
	}
	return id, ok
}

func (w *world) succeed(probe uuid.UUID) {
	w.t.Helper()
	if err := w.gate.Succeeded(w.t.Context(), "r", probe); err != nil {
		w.t.Fatal(err)
	}
}

var outage = failure.New(failure.Overloaded, "", nil)

func TestBreakerOpensOnConsecutiveFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.fail(uuid.Nil, 4, outage); got != route.Closed {
		t.Fatalf("state %s after 4 failures", got)
	}
	w.succeed(uuid.Nil)
	if got := w.route(); got.Failures != 0 {
		t.Errorf("%d failures after a success", got.Failures)
	}
	if got := w.fail(uuid.Nil, 4, outage); got != route.Closed {
		t.Errorf("state %s: the failures were not consecutive", got)
	}
	if got := w.fail(uuid.Nil, 1, outage); got != route.Open {
		t.Errorf("state %s after 5 failures in a row", got)
	}
	if r := w.route(); r.Flowing() || r.ProbeDue() || r.Wait <= 0 || r.Reason != "overloaded" {
		t.Errorf("route is %+v", r)
	}
	// A success of a call that left before says nothing of the route now.
	w.succeed(uuid.Nil)
	if got := w.route().State; got != route.Open {
		t.Errorf("state %s after a stale success", got)
	}
}

func TestOneProbeForTheFleet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fail(uuid.Nil, 5, outage)
	w.work()
	if _, ok := w.probe(); ok {
		t.Fatal("probed before the pause was over")
	}
	w.due()
	first, ok := w.probe()
	if !ok {
		t.Fatal("no probe when it was due")
	}
	if _, ok := w.probe(); ok {
		t.Fatal("two probes at once")
	}
	w.fail(first, 1, outage)
	r := w.route()
	if r.State != route.Open || r.Wait <= 2*time.Second || r.Wait > 4*time.Second {
		t.Errorf("route is %+v, want open for twice the first pause", r)
	}
	w.due()
	second, ok := w.probe()
	if !ok {
		t.Fatal("no second probe")
	}
	w.succeed(first)
	if got := w.route().State; got != route.HalfOpen {
		t.Errorf("state %s: another's probe closed the breaker", got)
	}
	w.succeed(second)
	if r := w.route(); !r.Flowing() || r.Reason != "" {
		t.Errorf("route is %+v, want flowing", r)
	}
	w.fail(uuid.Nil, 5, outage)
	if r := w.route(); r.Wait > 2*time.Second {
		t.Errorf("pause of %s after a recovery, want the first one", r.Wait)
	}
}

func TestProbeNeedsWorkAndIsReplacedWhenLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fail(uuid.Nil, 5, outage)
	w.due()
	if _, ok := w.probe(); ok {
		t.Fatal("probed with nothing to do")
	}
	w.work()
	lost, ok := w.probe()
	if !ok {
		t.Fatal("no probe")
	}
	w.due() // its worker died and its time is up
	second, ok := w.probe()
	if !ok || second == lost {
		t.Fatal("a lost probe was not replaced")
	}
	if err := w.gate.CancelProbe(t.Context(), "r", lost); err != nil {
		t.Fatal(err)
	}
	if got := w.route().State; got != route.HalfOpen {
		t.Errorf("state %s: the lost probe cancelled the other", got)
	}
	if err := w.gate.CancelProbe(t.Context(), "r", second); err != nil {
		t.Fatal(err)
	}
	if r := w.route(); !r.ProbeDue() {
		t.Errorf("route is %+v, want a probe due at once", r)
	}
}

func TestThrottledRouteWaitsForRetryAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := failure.New(failure.RateLimited, "", nil)
	f.RetryAfter = time.Minute
	w.fail(uuid.Nil, 0, f)
	r := w.route()
	if r.State != route.Closed || r.Flowing() || r.Wait < 50*time.Second {
		t.Errorf("route is %+v, want no claims for a minute", r)
	}
	f.RetryAfter = 0
	w.fail(uuid.Nil, 0, f)
	if again := w.route(); again.Wait < 50*time.Second {
		t.Errorf("wait of %s: a shorter pause replaced a longer one", again.Wait)
	}
	w.due()
	if r := w.route(); !r.Flowing() || r.Failures != 0 {
		t.Errorf("route is %+v, want flowing", r)
	}
}

func TestHaltedRouteResumesByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work()
	key := failure.New(failure.Unauthorized, "", nil)
	if got := w.fail(uuid.Nil, 0, key); got != route.Halted {
		t.Fatalf("state %s", got)
	}
	if r := w.route(); r.Reason != "unauthorized" || r.Wait < 25*time.Second {
		t.Errorf("route is %+v", r)
	}
	// What was under way when it halted does not turn it into an outage.
	if got := w.fail(uuid.Nil, 9, outage); got != route.Halted {
		t.Errorf("state %s", got)
	}
	w.due()
	probe, ok := w.probe()
	if !ok {
		t.Fatal("no probe")
	}
	w.fail(probe, 0, key)
	if got := w.route().State; got != route.Halted {
		t.Errorf("state %s after a probe that found the same fault", got)
	}
	w.due()
	if probe, ok = w.probe(); !ok {
		t.Fatal("no second probe")
	}
	w.succeed(probe)
	if r := w.route(); !r.Flowing() || r.Reason != "" {
		t.Errorf("route is %+v, want flowing", r)
	}
}
