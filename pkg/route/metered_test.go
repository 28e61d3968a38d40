package route_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
)

func (w *world) limit(l route.Limits) {
	w.t.Helper()
	if err := route.SetLimits(w.t.Context(), w.db, "r", l); err != nil {
		w.t.Fatal(err)
	}
}

// refill gives the route's buckets all the time they want.
func (w *world) refill() { w.exec("UPDATE provider_route SET refilled_at = now() - interval '1 hour'") }

// version registers a version of a route, under the route's name.
func (w *world) version(name string) {
	w.t.Helper()
	w.exec(`INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
		VALUES ($1, 'p', 'openai', 'm', '', '[{"name": "a"}]', 1, 1, sha256(convert_to($1, 'UTF8')), $1, 'test')`, name)
}

// claim takes a permit and uses what use says of it; what it costs is charged to one call.
func (w *world) claim(probe uuid.UUID, use func(*route.Permit) route.Use) {
	w.t.Helper()
	err := postgres.InTx(w.t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		p, err := route.Reserve(ctx, tx, "r", probe)
		if err != nil {
			return err
		}
		u := use(p)
		if u.USD.IsPositive() {
			if _, err := tx.Exec(ctx, `INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, charged_usd)
				VALUES (uuid_v7(), '', 'r', gen_random_uuid(), 1, $1)`, u.USD); err != nil {
				return err
			}
		}
		return p.Use(ctx, tx, u)
	})
	if err != nil {
		w.t.Error(err)
	}
}

// permitted is how many calls may start now.
func (w *world) permitted() int {
	w.t.Helper()
	calls := 0
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		calls = p.Calls
		return route.Use{}
	})
	return calls
}

func (w *world) spend(b route.Budget, usd string) {
	w.t.Helper()
	limit := decimal.RequireFromString(usd)
	if err := route.SetSpendLimit(w.t.Context(), w.db, b, &limit); err != nil {
		w.t.Fatal(err)
	}
}

// used is what is spent in a budget's period.
func (w *world) used(b route.Budget) string {
	w.t.Helper()
	all, err := route.Spend(w.t.Context(), w.db)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range all {
		if s.Budget == b {
			return s.UsedUSD.String()
		}
	}
	return "nothing is known"
}

func usd(s string) decimal.Decimal { return decimal.RequireFromString(s) }

var (
	today    = route.Budget{Scope: route.AllRoutes, Period: route.Day}
	month    = route.Budget{Scope: route.AllRoutes, Period: route.Month}
	ofRoute  = route.Budget{Scope: "r", Period: route.Day}
	ofOthers = route.Budget{Scope: "other", Period: route.Day}
)

func TestLimitsAreSetAndRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if r := w.route(); r.Metered() {
		t.Errorf("a new route is metered: %+v", r)
	}
	want := route.Limits{RequestsPerMinute: 600, TokensPerMinute: 5_000_000_000, ConcurrentCalls: 7, CountOutput: true}
	w.limit(want)
	if r := w.route(); r.Limits != want || !r.Metered() || !r.Flowing() {
		t.Errorf("route is %+v, want the limits %+v", r, want)
	}
	w.limit(route.Limits{})
	if r := w.route(); r.Metered() {
		t.Errorf("route is %+v, want no limits", r)
	}
	if err := route.SetLimits(t.Context(), w.db, "gone", want); !errors.Is(err, route.ErrUnknownRoute) {
		t.Errorf("limits of no route: %v", err)
	}
	for _, bad := range []route.Limits{{RequestsPerMinute: -1}, {TokensPerMinute: -1}, {ConcurrentCalls: -1}, {RequestsPerMinute: 1 << 40}} {
		if err := route.SetLimits(t.Context(), w.db, "r", bad); err == nil {
			t.Errorf("limits %+v were set", bad)
		}
	}
}

// What is taken is gone for the others, whoever they are, and what was taken before the limits were set does not count
// as room.
func TestPermitsAreShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(route.Limits{RequestsPerMinute: 1200})
	if got := w.permitted(); got > 5 {
		t.Errorf("%d calls at once after the limit was set", got)
	}
	w.refill()
	const burst = 61
	var mu sync.Mutex
	taken := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				w.claim(uuid.Nil, func(p *route.Permit) route.Use {
					n := min(p.Calls, 4)
					mu.Lock()
					defer mu.Unlock()
					taken += n
					return route.Use{Calls: n}
				})
			}
		})
	}
	began := time.Now()
	wg.Wait()
	if most := burst + int(18.6*time.Since(began).Seconds()) + 1; taken < burst || taken > most {
		t.Errorf("%d calls were permitted at once, want %d to %d", taken, burst, most)
	}
}

func TestPermitOfTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(route.Limits{TokensPerMinute: 60_000})
	w.refill()
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Tokens != 3001 || !p.TokensFull || p.TokenRatio != 1 || p.Calls < 1000 {
			t.Errorf("permit is %+v, want 3001 tokens and any number of calls", p)
		}
		return route.Use{Calls: 2, Tokens: 5000}
	})
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Tokens != 0 || p.TokensFull || p.WaitForTokens(100) < time.Second {
			t.Errorf("permit is %+v, want none while the debt lasts", p)
		}
		return route.Use{}
	})
	// They took less than half of what was expected: the debt is undone, and less is expected from now on.
	for range 200 {
		if err := w.gate.LearnTokens(t.Context(), "r", route.Tokens{Calls: 1, Expected: 25, Estimated: 25, Input: 10, Output: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Tokens < 1000 || p.TokenRatio < 0.39 || p.TokenRatio > 0.42 {
			t.Errorf("permit is %+v, want a ratio of 0.4", p)
		}
		return route.Use{}
	})
	w.limit(route.Limits{TokensPerMinute: 60_000, CountOutput: true})
	if err := w.gate.LearnTokens(t.Context(), "r", route.Tokens{Calls: 1000, Expected: 1, Estimated: 1, Output: 2}); err != nil {
		t.Fatal(err)
	}
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.TokenRatio < 1.99 || p.TokenRatio > 2 {
			t.Errorf("ratio of %f, want that of input and output", p.TokenRatio)
		}
		return route.Use{}
	})
	// Whatever a provider reports, the route recovers within about a minute.
	if err := w.gate.LearnTokens(t.Context(), "r", route.Tokens{Calls: 1, Estimated: 1, Input: 1 << 62}); err != nil {
		t.Fatal(err)
	}
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if wait := p.WaitForTokens(1); wait > 70*time.Second {
			t.Errorf("waits %s", wait)
		}
		return route.Use{}
	})
}

// lease leases all work.
const lease = `WITH leased AS (
	  UPDATE evaluation_outbox SET status = 'processing', lease_id = gen_random_uuid(), locked_by = 'w', locked_until = now() RETURNING route, idempotency_key
	)
	INSERT INTO evaluation_claim (id, route, worker, keys, size, check_at) SELECT gen_random_uuid(), route, 'w', ARRAY[idempotency_key], 1, now() FROM leased`

func TestPermitOfConcurrentCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(route.Limits{ConcurrentCalls: 2})
	if got := w.permitted(); got != 2 {
		t.Errorf("%d calls, want 2", got)
	}
	w.work()
	w.exec(lease)
	if got := w.permitted(); got != 1 {
		t.Errorf("%d calls beside one, want 1", got)
	}
	w.exec("WITH moved AS (UPDATE evaluation_outbox SET route = 'other') UPDATE evaluation_claim SET route = 'other'")
	if got := w.permitted(); got != 2 {
		t.Errorf("%d calls beside one of another route, want 2", got)
	}
}

// A permit sees what was claimed while it waited for the route.
func TestPermitSeesWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(route.Limits{ConcurrentCalls: 1})
	w.work()
	waiting := make(chan int, 1)
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := route.Reserve(ctx, tx, "r", uuid.Nil); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lease); err != nil {
			return err
		}
		go func() { waiting <- w.permitted() }()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			var blocked bool
			if err := w.db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&blocked); err != nil {
				return err
			}
			if blocked {
				return nil
			}
		}
		t.Error("the second permit did not wait for the first")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-waiting; got != 0 {
		t.Errorf("%d calls beside the one that is allowed", got)
	}
}

func TestNoPermitWhileShut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(route.Limits{RequestsPerMinute: 6000})
	w.refill()
	w.work()
	f := failure.New(failure.RateLimited, "", nil)
	f.RetryAfter = time.Minute
	w.fail(uuid.Nil, 0, f)
	if got := w.permitted(); got != 0 {
		t.Errorf("%d calls before the pause is over", got)
	}
	w.due()
	w.fail(uuid.Nil, 5, outage)
	if got := w.permitted(); got != 0 {
		t.Errorf("%d calls while the breaker is open", got)
	}
	w.due()
	probe, ok := w.probe()
	if !ok {
		t.Fatal("no probe")
	}
	if got := w.permitted(); got != 0 {
		t.Errorf("%d calls beside the probe", got)
	}
	w.claim(uuid.New(), func(p *route.Permit) route.Use {
		if p.Calls != 0 {
			t.Error("a permit for a probe that is none")
		}
		return route.Use{}
	})
	w.claim(probe, func(p *route.Permit) route.Use {
		if p.Calls == 0 {
			t.Error("no permit for the probe")
		}
		return route.Use{Calls: 1}
	})
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		_, err := route.Reserve(ctx, tx, "gone", uuid.Nil)
		return err
	})
	if !errors.Is(err, route.ErrUnknownRoute) {
		t.Errorf("a permit of no route: %v", err)
	}
}

// After a rate limit one call, then twice as many with every round; whoever does not belong to the ramp has no say in it.
func TestRamp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fail(uuid.Nil, 0, failure.New(failure.RateLimited, "", nil))
	w.due()
	if r := w.route(); !r.Metered() || r.Ramp != 1 || !r.Flowing() {
		t.Errorf("route is %+v, want it ramping from 1", r)
	}
	var ramp uuid.UUID
	all := func(p *route.Permit) route.Use {
		ramp = p.Ramp
		return route.Use{Calls: p.Calls}
	}
	ended := func(id uuid.UUID, ended, succeeded int) {
		t.Helper()
		if err := w.gate.Ramped(t.Context(), "r", id, ended, succeeded, 8); err != nil {
			t.Fatal(err)
		}
	}
	for width := 1; width < 8; width *= 2 {
		if got := w.permitted(); got != width {
			t.Fatalf("%d calls, want %d", got, width)
		}
		w.claim(uuid.Nil, all)
		if got := w.permitted(); got != 0 {
			t.Fatalf("%d calls beside the %d that are allowed", got, width)
		}
		ended(uuid.New(), 100, 100) // of a ramp before
		if got := w.permitted(); got != 0 {
			t.Fatalf("calls of another ramp made room for %d", got)
		}
		ended(ramp, width, width)
	}
	if r := w.route(); r.Metered() || r.Ramp != 0 {
		t.Errorf("route is %+v, want it as wide as a worker", r)
	}

	// What fails makes room for what comes after it, and for no more.
	w.fail(uuid.Nil, 0, failure.New(failure.RateLimited, "", nil))
	w.due()
	w.claim(uuid.Nil, all)
	ended(ramp, 1, 0)
	if got := w.permitted(); got != 1 {
		t.Errorf("%d calls after one that failed, want 1", got)
	}
	// A new pause begins a new ramp, and calls of the old one do not count.
	w.claim(uuid.Nil, all)
	w.fail(uuid.Nil, 0, failure.New(failure.RateLimited, "", nil))
	w.due()
	ended(ramp, 1, 1)
	if got := w.permitted(); got != 1 {
		t.Errorf("%d calls after the second pause, want 1", got)
	}
	// Those of which nothing is heard are lost after the time that a call may take.
	w.claim(uuid.Nil, all)
	w.exec("UPDATE provider_route SET ramp_at = now() - call_timeout + interval '10 seconds'")
	if got := w.permitted(); got != 0 {
		t.Errorf("%d calls beside one that may be under way", got)
	}
	w.exec("UPDATE provider_route SET ramp_at = now() - call_timeout")
	if got := w.permitted(); got != 1 {
		t.Errorf("%d calls beside one that is lost, want 1", got)
	}
}

func TestRampAfterAProbe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work()
	w.fail(uuid.Nil, 5, outage)
	w.due()
	probe, ok := w.probe()
	if !ok {
		t.Fatal("no probe")
	}
	w.succeed(probe)
	if got := w.permitted(); got != 2 {
		t.Errorf("%d calls after the probe, want 2", got)
	}
	w.fail(uuid.Nil, 0, failure.New(failure.Unauthorized, "", nil))
	if r := w.route(); r.Ramp != 0 || r.State != route.Halted {
		t.Errorf("route is %+v, want it halted and no ramp", r)
	}
}

// The states of routes wait for who has held them.
func TestHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("INSERT INTO provider_route (name, state, reason) VALUES ('down', 'open', 'x')")
	opened := make(chan error, 1)
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		shut, err := route.Hold(ctx, tx, []string{"r", "down", "gone"})
		if err != nil || len(shut) != 1 || !shut["down"] {
			t.Errorf("shut are %v, %v, want one", shut, err)
		}
		go func() {
			_, err := w.gate.Failed(context.WithoutCancel(ctx), "r", uuid.Nil, 5, outage)
			opened <- err
		}()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			var blocked bool
			if err := w.db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&blocked); err != nil {
				return err
			}
			if blocked {
				return nil
			}
		}
		t.Error("the breaker opened under a route that was held")
		return nil
	})
	if err = errors.Join(err, <-opened); err != nil {
		t.Fatal(err)
	}
}

func TestBudgetsBoundPermits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("INSERT INTO provider_route (name) VALUES ('other')")
	w.version("r")
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Budget != nil {
			t.Errorf("a budget of %s where no limit is", p.Budget)
		}
		return route.Use{}
	})
	w.spend(month, "100")
	w.spend(ofRoute, "1")
	w.spend(ofOthers, "0.1")
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Budget == nil || p.Budget.String() != "1" {
			t.Errorf("a budget of %s, want the least of those that apply", p.Budget)
		}
		return route.Use{Calls: 3, USD: usd("0.75")}
	})
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Budget == nil || p.Budget.String() != "0.25" {
			t.Errorf("a budget of %s, want what is left", p.Budget)
		}
		return route.Use{ShortUSD: usd("0.3")}
	})
	if got := w.used(month) + " " + w.used(ofRoute) + " " + w.used(ofOthers); got != "0.75 0.75 0" {
		t.Errorf("used are %s", got)
	}
	parked := func(want string) {
		t.Helper()
		routes, err := w.gate.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if r.Name == "r" && (r.Parked() != want || r.State != route.Closed || !r.Budgeted) {
				t.Errorf("route is %+v, parked %q, want %q", r, r.Parked(), want)
			}
		}
	}
	parked("budget exhausted: route r, day")
	w.claim(uuid.Nil, func(*route.Permit) route.Use { return route.Use{} }) // of the other lane, where nothing is due
	parked("budget exhausted: route r, day")
	w.spend(ofRoute, "1.05") // just enough for the call that had no room
	parked("")
	w.spend(ofRoute, "1")
	parked("budget exhausted: route r, day")
	w.exec("UPDATE spend SET period_start = period_start - 2 WHERE period = 'day'") // and that of the next day, which is there already
	parked("")
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Budget == nil || p.Budget.String() != "1" {
			t.Errorf("a budget of %s on the next day", p.Budget)
		}
		return route.Use{Calls: 1, USD: usd("1")}
	})
	if got := w.used(month) + " " + w.used(ofRoute); got != "1.75 1" {
		t.Errorf("used are %s", got)
	}
	if err := route.SetSpendLimit(t.Context(), w.db, ofRoute, nil); err != nil {
		t.Fatal(err)
	}
	w.claim(uuid.Nil, func(p *route.Permit) route.Use {
		if p.Budget == nil || p.Budget.String() != "98.25" {
			t.Errorf("a budget of %s after the day's was removed", p.Budget)
		}
		return route.Use{}
	})
}

func TestSpendLimitsThatAreNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		budget route.Budget
		limit  string
	}{
		"zero":        {today, "0"},
		"negative":    {today, "-1"},
		"no period":   {route.Budget{Scope: route.AllRoutes, Period: "week"}, "1"},
		"no route":    {ofOthers, "1"},
		"empty scope": {route.Budget{Period: route.Day}, "1"},
	} {
		limit := usd(c.limit)
		if err := route.SetSpendLimit(t.Context(), w.db, c.budget, &limit); err == nil {
			t.Errorf("%s: the limit was set", name)
		}
	}
	if all, err := route.Spend(t.Context(), w.db); err != nil || len(all) != 0 {
		t.Errorf("spending is %v, %v", all, err)
	}
}

// What was spent before the first limit counts, of the scope and the period that it is for.
func TestLimitCountsWhatWasSpent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("INSERT INTO provider_route (name) VALUES ('other')")
	w.version("r")
	w.version("other")
	call := func(version string, day int, cost string) {
		w.exec(`INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, outcome, started_at, finished_at, cost_usd)
			VALUES (uuid_v7(), '', $1, gen_random_uuid(), 1, 'answered', spend_period('month', now()) + make_interval(days => $2), now(), $3)`, version, day, usd(cost))
	}
	call("r", 0, "1")
	call("r", 1, "2")
	call("other", 0, "4")
	call("r", -1, "8")
	w.spend(month, "100")
	w.spend(route.Budget{Scope: "r", Period: route.Month}, "50")
	if got := w.used(month) + " " + w.used(route.Budget{Scope: "r", Period: route.Month}); got != "7 3" {
		t.Errorf("used are %s, want 7 of all and 3 of the route", got)
	}
	// Setting it again counts nothing twice.
	w.claim(uuid.Nil, func(*route.Permit) route.Use { return route.Use{} })
	w.spend(month, "200")
	if got := w.used(month); got != "7" {
		t.Errorf("used are %s, want 7", got)
	}
}

// A charge that is under way while a limit is set counts once, whoever comes first.
func TestLimitIsSetBesideCharges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("r")
	w.spend(today, "1000")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				w.claim(uuid.Nil, func(*route.Permit) route.Use { return route.Use{Calls: 1, USD: usd("1")} })
			}
		})
	}
	w.spend(month, "1000")
	w.spend(ofRoute, "1000")
	wg.Wait()
	if got := w.used(today) + " " + w.used(month) + " " + w.used(ofRoute); got != "100 100 100" {
		t.Errorf("used are %s, want 100 each", got)
	}
}
