package evaluate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/prompt"
)

// delay is how much later than another one a call may arrive that was claimed before it.
const delay = 2 * time.Second

// Three workers together stay within the limits of their route, as its provider sees them.
func TestFleetStaysWithinLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits route.Limits
		calls  int
		weight func(providersim.Entry) float64
	}{
		"requests": {route.Limits{RequestsPerMinute: 6000}, 600, func(providersim.Entry) float64 { return 1 }},
		"tokens":   {route.Limits{TokensPerMinute: 1_200_000}, 200, func(e providersim.Entry) float64 { return float64(e.InputTokens) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newLimitedRig(t, c.limits, quick)
			r.create(outbox.Live, 0, c.calls)
			for range 3 {
				r.start()
			}
			r.until(c.calls, "evaluation_result")
			perMinute := float64(c.limits.RequestsPerMinute) + float64(c.limits.TokensPerMinute)
			calls := r.sim.Ledger(0)
			slices.SortFunc(calls, func(a, b providersim.Entry) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
			for first := range calls {
				sum := 0.0
				for _, e := range calls[first:] {
					sum += c.weight(e)
					window := e.ReceivedAt.Sub(calls[first].ReceivedAt)
					if most := perMinute * (0.05 + 0.93*(window+delay).Minutes()); sum > most {
						t.Fatalf("%.0f within %s, allowed are %.0f", sum, window, most)
					}
				}
			}
			r.checkNoRefusal()
		})
	}
}

// A call that ends makes room for the next one at once, long before the next poll.
func TestRoomIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	r := newLimitedRig(t, route.Limits{ConcurrentCalls: 2}, quick)
	r.create(outbox.Live, 0, 30)
	r.start(func(o *evaluate.Options) { o.PollInterval = time.Hour })
	r.until(30, "evaluation_result")
	r.checkNoRefusal()
}

func TestFleetStaysWithinConcurrentCalls(t *testing.T) {
	t.Parallel()
	const most = 5
	r := newLimitedRig(t, route.Limits{ConcurrentCalls: most}, quick)
	r.create(outbox.Live, 0, 200)
	r.create(outbox.Bulk, 200, 300)
	for range 3 {
		r.start()
	}
	r.until(300, "evaluation_result")
	type event struct {
		at    time.Time
		begun int
	}
	var events []event
	for _, e := range r.sim.Ledger(0) {
		events = append(events, event{e.ReceivedAt, 1}, event{e.EndedAt, -1})
	}
	slices.SortFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	running, highest := 0, 0
	for _, e := range events {
		running += e.begun
		highest = max(highest, running)
	}
	if highest > most || highest < 2 {
		t.Errorf("%d calls at once, allowed are %d", highest, most)
	}
	r.checkNoRefusal()
}

var quick = providersim.Latency{Min: 5 * time.Millisecond, Max: 40 * time.Millisecond}

// newLimitedRig is a rig whose provider enforces the limits that its route has.
func newLimitedRig(t testing.TB, l route.Limits, latency providersim.Latency) *rig {
	t.Helper()
	r := newRigWith(t, providersim.Options{
		Latency: latency,
		Limits:  providersim.Limits{RequestsPerMinute: l.RequestsPerMinute, TokensPerMinute: int(l.TokensPerMinute), Concurrent: l.ConcurrentCalls},
	})
	r.text = func(n int) string { return fmt.Sprintf("ticket <%d> %s", n, strings.Repeat("lorem ipsum ", n%500)) }
	r.limit(l)
	return r
}

func (r *rig) limit(l route.Limits) {
	r.t.Helper()
	if err := route.SetLimits(r.t.Context(), r.db, r.version.Route, l); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) checkNoRefusal() {
	r.t.Helper()
	if n := r.sim.Stats().ByOutcome[providersim.RateLimited]; n != 0 {
		r.t.Errorf("the provider refused %d calls", n)
	}
	r.check()
}

// BenchmarkLimits measures how much of its limit a fleet of three uses, in percent, with calls that take as long as those
// of a model. A run takes about half a minute.
func BenchmarkLimits(b *testing.B) {
	for name, l := range map[string]route.Limits{
		"requests":   {RequestsPerMinute: 6000},
		"tokens":     {TokensPerMinute: 1_200_000},
		"concurrent": {ConcurrentCalls: 100},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				const settling, window = 5 * time.Second, 20 * time.Second
				r := newLimitedRig(b, l, providersim.Latency{Min: 500 * time.Millisecond, Max: 1500 * time.Millisecond})
				r.create(outbox.Live, 0, 5_000)
				for range 3 {
					r.start(func(o *evaluate.Options) { o.Concurrency = 100 })
				}
				from := time.Now().Add(settling)
				to := from.Add(window)
				<-time.After(time.Until(to))
				used := 0.0
				for _, e := range r.sim.Ledger(0) {
					begun, ended := e.ReceivedAt, e.EndedAt
					if ended.IsZero() || ended.After(to) {
						ended = to
					}
					within := !begun.Before(from)
					switch {
					case l.ConcurrentCalls > 0 && ended.After(from):
						used += min(ended.Sub(begun), ended.Sub(from)).Seconds() / float64(l.ConcurrentCalls)
					case l.RequestsPerMinute > 0 && within:
						used += 60 / float64(l.RequestsPerMinute)
					case l.TokensPerMinute > 0 && within:
						used += 60 * float64(e.InputTokens) / float64(l.TokensPerMinute)
					}
				}
				b.ReportMetric(100*used/window.Seconds(), "%used")
				b.ReportMetric(float64(r.sim.Stats().ByOutcome[providersim.RateLimited]), "refused")
			}
		})
	}
}

// newPricedRig is a rig whose calls cost something, at the provider too.
func newPricedRig(t testing.TB, rules ...providersim.Rule) *rig {
	t.Helper()
	usd := decimal.RequireFromString
	return newRigWith(t, providersim.Options{
		Prices: providersim.Prices{InputUSDPerMTok: usd("2.5"), CachedInputUSDPerMTok: usd("0.25"), OutputUSDPerMTok: usd("10")}, Script: rules,
	}, func(v *evaluation.Version) {
		v.Prices = evaluation.Prices{InputUSDPerMTok: usd("2.5"), CachedInputUSDPerMTok: usd("0.25"), OutputUSDPerMTok: usd("10")}
	})
}

func (r *rig) budget(scope string, period route.Period, usd string) {
	r.t.Helper()
	limit := decimal.RequireFromString(usd)
	if err := route.SetSpendLimit(r.t.Context(), r.db, route.Budget{Scope: scope, Period: period}, &limit); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) parked() string {
	r.t.Helper()
	routes, err := route.New(r.db).List(r.t.Context())
	if err != nil || len(routes) != 1 {
		r.t.Fatalf("routes %v, %v", routes, err)
	}
	if routes[0].State != route.Closed {
		r.t.Errorf("a budget has moved the breaker: %+v", routes[0])
	}
	return routes[0].Parked()
}

// awaitParked waits until the route is parked and all its calls are settled, and checks that no more was spent than the
// limit: at the provider, and in the accounts, the worst case of every call included.
func (r *rig) awaitParked(by, limit string) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	// Both at once: with no call under way nothing makes room any more.
	for r.count(`provider_route r WHERE NOT EXISTS (SELECT FROM evaluation_outbox WHERE status = 'processing') AND EXISTS (
			SELECT FROM spend s JOIN spend_limit l USING (scope, period)
			WHERE s.period_start = spend_period(s.period, now()) AND s.used_usd + r.short_usd > l.limit_usd)`) == 0 {
		r.checkSpent(limit)
		select {
		case <-deadline:
			r.t.Fatalf("not parked after %s", patience)
		case <-tick.C:
		}
	}
	if got := r.parked(); got != by {
		r.t.Fatalf("parked: %q, want %q", got, by)
	}
	if left := r.count("evaluation_outbox WHERE status = 'pending' AND attempts = 0"); left == 0 || left != r.count("evaluation_outbox") {
		r.t.Errorf("%d of %d tickets wait as they were", left, r.count("evaluation_outbox"))
	}
	r.check()
}

func (r *rig) checkSpent(limit string) {
	r.t.Helper()
	if over := r.count("spend s JOIN spend_limit l USING (scope, period) WHERE s.used_usd > l.limit_usd"); over > 0 {
		r.t.Fatal("a budget is overspent")
	}
	if cost := r.sim.Stats().CostUSD; cost.GreaterThan(decimal.RequireFromString(limit)) {
		r.t.Fatalf("the provider billed %s US$ of %s", cost, limit)
	}
}

// An exhausted budget parks work, and it goes on by itself when the limit is raised and when the day turns. Calls cost
// a fraction of what they may cost at the worst, and a fleet never spends more than the limit.
func TestBudget(t *testing.T) {
	t.Parallel()
	r := newPricedRig(t)
	// Of one length, so that what the last call was short of is what the next one would be.
	r.text = func(n int) string { return fmt.Sprintf("ticket <%04d>", n) }
	r.budget(route.AllRoutes, route.Day, "0.05")
	r.budget(r.version.Route, route.Month, "0.15")
	r.create(outbox.Live, 0, 500)
	for range 3 {
		r.start()
	}
	r.awaitParked("budget exhausted: all routes, day", "0.05")
	first := r.count("evaluation_result")

	r.budget(route.AllRoutes, route.Day, "0.09")
	r.untilMore(first, "evaluation_result")
	r.awaitParked("budget exhausted: all routes, day", "0.09")
	second := r.count("evaluation_result")

	var lastMonth decimal.Decimal // that was billed before this one began
	if r.count("generate_series(1, 1) WHERE spend_period('month', now() - interval '1 day') <> spend_period('month', now())") == 1 {
		lastMonth = r.sim.Stats().CostUSD
	}
	r.turnDay()
	r.untilMore(second, "evaluation_result")
	if lastMonth.IsZero() {
		r.awaitParked("budget exhausted: route main, month", "0.15")
	} else { // on the first of a month the month has turned, too
		r.awaitParked("budget exhausted: all routes, day", "0.18")
	}

	r.budget(r.version.Route, route.Month, "100")
	r.budget(route.AllRoutes, route.Day, "100")
	r.until(500, "evaluation_result")
	if cost := r.spent(route.Budget{Scope: r.version.Route, Period: route.Month}).Add(lastMonth); !cost.Equal(r.sim.Stats().CostUSD) {
		t.Errorf("the accounts say %s, the provider billed %s", cost, r.sim.Stats().CostUSD)
	}
	r.check()
}

// A probe costs what any call does: it is charged, and it waits for the budget.
func TestProbeIsCharged(t *testing.T) {
	t.Parallel()
	r := newPricedRig(t)
	r.budget(route.AllRoutes, route.Day, "0.000001")
	r.create(outbox.Live, 0, 1)
	gate := route.New(r.db)
	if _, err := gate.Failed(t.Context(), r.version.Route, uuid.Nil, 5, failure.New(failure.Overloaded, "", nil)); err != nil {
		t.Fatal(err)
	}
	r.due()
	r.start()
	r.until(1, "provider_route WHERE short_usd > 0 AND state <> 'closed'")
	if n := r.sim.Stats().Requests; n != 0 {
		t.Errorf("%d calls for which there was no money", n)
	}
	r.budget(route.AllRoutes, route.Day, "1")
	r.until(1, "evaluation_result")
	r.until(1, "model_call WHERE outcome = 'answered' AND charged_usd = cost_usd")
	r.until(1, "provider_route WHERE state = 'closed'")
	r.check()
}

// turnDay makes all that was spent yesterday's.
func (r *rig) turnDay() {
	r.t.Helper()
	tx, err := r.db.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(r.t.Context())) }()
	for _, sql := range []string{
		"LOCK TABLE spend IN EXCLUSIVE MODE",
		"DELETE FROM spend WHERE period = 'day' AND period_start > spend_period('day', now())",
		"UPDATE spend SET period_start = period_start - 1 WHERE period = 'day'",
		"UPDATE model_call SET started_at = started_at - interval '1 day' WHERE charged_usd IS NOT NULL",
		// On the first of a month it is the month before that yesterday's is of.
		"UPDATE spend SET period_start = spend_period('month', now() - interval '1 day') WHERE period = 'month' AND period_start = spend_period('month', now())" +
			" AND spend_period('month', now() - interval '1 day') <> spend_period('month', now())",
	} {
		if _, err := tx.Exec(r.t.Context(), sql); err != nil {
			r.t.Fatalf("%s: %v", sql, err)
		}
	}
	if err := tx.Commit(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) spent(b route.Budget) decimal.Decimal {
	r.t.Helper()
	all, err := route.Spend(r.t.Context(), r.db)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range all {
		if s.Budget == b {
			return s.UsedUSD
		}
	}
	r.t.Fatalf("nothing is known of the budget of %s", b)
	return decimal.Zero
}

// What a call is charged once it is over: its cost; nothing, where nothing was bought; the worst case, where nobody
// knows; and what it did cost, once a late response tells.
func TestChargesFollowOutcomes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action  providersim.Action
		outcome string
		charged string
	}{
		"answered":      {providersim.Action{}, "answered", "charged_usd = cost_usd AND charged_usd > 0"},
		"refused":       {providersim.Action{Answer: providersim.AnswerRefusal}, "rejected", "charged_usd = cost_usd AND charged_usd > 0"},
		"without usage": {providersim.Action{Answer: providersim.AnswerNoUsage}, "answered", "cost_usd IS NULL AND charged_usd > 0.005"},
		"failed":        {providersim.Action{Error: providersim.ServerError500}, "failed", "charged_usd = 0"},
		"throttled":     {providersim.Action{Error: providersim.RateLimit, RetryAfter: time.Minute}, "failed", "charged_usd = 0"},
		"cut":           {providersim.Action{Close: providersim.CloseAfterAnswer}, "unknown", "charged_usd > 0.005"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newPricedRig(t, providersim.Rule{Action: c.action, Times: 1})
			r.budget(route.AllRoutes, route.Day, "1")
			r.create(outbox.Live, 0, 1)
			stop := r.start()
			r.until(1, "model_call WHERE outcome = $1", c.outcome)
			stop()
			if r.count("model_call WHERE outcome = $1 AND "+c.charged, c.outcome) != 1 {
				t.Errorf("a call that is %s is not charged: %s", c.outcome, c.charged)
			}
			r.check()
		})
	}
}

// A lost lease leaves the worst case, which the late response corrects.
func TestLateResponseCorrectsItsCharge(t *testing.T) {
	t.Parallel()
	r := newPricedRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangAfterAnswer}})
	r.budget(route.AllRoutes, route.Day, "1")
	r.create(outbox.Live, 0, 1)
	stop := r.start()
	if err := r.sim.WaitHanging(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	worst := r.spent(route.Budget{Scope: route.AllRoutes, Period: route.Day})
	r.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 second', available_at = now() + interval '1 hour'")
	if err := postgres.InTx(t.Context(), r.db, func(ctx context.Context, tx pgx.Tx) error {
		if err := outbox.Recheck(ctx, tx); err != nil {
			return err
		}
		_, _, err := outbox.Reclaim(ctx, tx, 10)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if still := r.spent(route.Budget{Scope: route.AllRoutes, Period: route.Day}); !still.Equal(worst) || !still.IsPositive() {
		t.Errorf("%s are charged for a call that may be paid, want the %s it may cost", still, worst)
	}
	r.sim.ClearRules()
	r.sim.Release()
	r.until(1, "model_call WHERE late AND outcome = 'answered'")
	stop()
	if n := r.count("spend s WHERE used_usd = (SELECT sum(charged_usd) FROM model_call) AND used_usd < $1 AND period_start = spend_period('day', now())", worst); n != 1 {
		t.Error("the late response did not correct the charge")
	}
	r.check()
}

// Calls that were never made are not charged.
func TestReleasedCallsAreNotCharged(t *testing.T) {
	t.Parallel()
	r := newPricedRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangBeforeAnswer}})
	r.budget(route.AllRoutes, route.Day, "1")
	r.create(outbox.Live, 0, 20)
	stop := r.start(func(o *evaluate.Options) { o.Grace = 0; o.Concurrency = 4 })
	if err := r.sim.WaitHanging(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	stop()
	if n := r.count("model_call WHERE outcome = 'open'"); n != 0 {
		t.Errorf("%d calls are open", n)
	}
	if n := r.count("model_call WHERE outcome = 'unsent' AND charged_usd <> 0"); n != 0 {
		t.Errorf("%d calls are charged that were never sent", n)
	}
	r.check()
}

// A route that was throttled or that a probe has found well gets one call, then twice as many with each round that goes
// well: for the whole fleet.
func TestRampDoublesWithEachRound(t *testing.T) {
	t.Parallel()
	for _, reason := range []failure.Reason{failure.RateLimited, failure.Overloaded, failure.Unauthorized} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangBeforeAnswer}})
			r.create(outbox.Live, 0, 500)
			if _, err := route.New(r.db).Failed(t.Context(), r.version.Route, uuid.Nil, 5, failure.New(reason, "", nil)); err != nil {
				t.Fatal(err)
			}
			r.due()
			for range 3 {
				r.start()
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for width := 1; width <= 8; width *= 2 {
				if err := r.sim.WaitHanging(ctx, width); err != nil {
					t.Fatal(err)
				}
				if got := r.sim.Stats().Hanging; got != width {
					t.Errorf("%d calls at the provider, want %d", got, width)
				}
				r.sim.Release()
			}
			// As wide as one worker, the ramp is over.
			if err := r.sim.WaitHanging(ctx, 3*16); err != nil {
				t.Fatal(err)
			}
			r.until(1, "provider_route WHERE ramp_id IS NULL")
			r.sim.ClearRules()
			r.sim.Release()
			r.until(500, "evaluation_result")
			r.check()
		})
	}
}

// The calls of a ramp that are lost with their worker are forgotten when no call can take any longer.
func TestRampForgetsLostCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("UPDATE provider_route SET ramp_id = gen_random_uuid(), ramp_level = 2, ramp_calls = 2, ramp_at = now() - call_timeout")
	r.create(outbox.Live, 0, 50)
	r.start()
	r.until(50, "evaluation_result")
	r.check()
}

// The failures that lead to the opening of a breaker cost nothing, the one that sent work to the dead letters included.
func TestTripIsRefunded(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, providersim.Options{Script: []providersim.Rule{{Action: providersim.Action{Error: providersim.Overloaded503}}}},
		func(v *evaluation.Version) { v.MaxAttempts = 2 })
	r.create(outbox.Live, 0, 2)
	r.start()
	r.until(2, "evaluation_outbox WHERE status = 'pending' AND attempts = 1")
	r.due()
	r.until(2, "evaluation_outbox WHERE status = 'dead' AND last_reason = 'attempts_spent'")
	r.create(outbox.Live, 2, 3) // its failure is the fifth in a row
	r.until(1, "provider_route WHERE state = 'open'")
	r.until(3, "evaluation_outbox WHERE status = 'pending' AND attempts = 0")
	r.sim.ClearRules()
	r.due()
	r.until(3, "evaluation_result")
	r.check()
}

// Work that could not be tried for days is no older for that; work that was tried for as long as its version allows is.
func TestWaitingDoesNotAge(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Action: providersim.Action{Error: providersim.ServerError500}})
	r.create(outbox.Live, 0, 1)
	r.exec("UPDATE evaluation_outbox SET created_at = now() - interval '10 days'")
	r.start()
	r.until(1, "evaluation_outbox WHERE status = 'pending' AND attempts = 1")
	r.exec("UPDATE model_call SET started_at = started_at - interval '25 hours'")
	r.due()
	r.until(1, "evaluation_outbox WHERE status = 'dead' AND last_reason = 'too_old' AND attempts = 2")
	r.check()
}

// What failed before the route's last success has spent its attempt.
func TestTripRefundsNothingOlder(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Match: providersim.Match{Text: "<0>"}, Action: providersim.Action{Error: providersim.ServerError500}})
	r.create(outbox.Live, 0, 1)
	r.start()
	r.until(1, "evaluation_outbox WHERE status = 'pending' AND attempts = 1")
	r.exec("UPDATE evaluation_outbox SET available_at = now() + interval '1 hour'")
	r.create(outbox.Live, 1, 2)
	r.until(1, "provider_route WHERE consecutive_failures = 0 AND failing_since IS NULL")
	if err := r.sim.StartOutage(providersim.Action{Error: providersim.Overloaded503}); err != nil {
		t.Fatal(err)
	}
	r.create(outbox.Live, 2, 12)
	r.until(1, "provider_route WHERE state = 'open'")
	r.until(10, "evaluation_outbox WHERE status = 'pending' AND attempts = 0")
	r.until(1, "evaluation_outbox WHERE status = 'pending' AND attempts = 1")
	r.check()
}

// Nothing that a request holds is outside of what it is charged for at the worst.
func TestWorstCaseBoundsTheRequest(t *testing.T) {
	t.Parallel()
	r := newPricedRig(t)
	rapid.Check(t, func(t *rapid.T) {
		text, err := content.Canonical(rapid.StringMatching(`[a-z ]{0,50}`).Draw(t, "subject"), rapid.StringMatching(`\S.{0,300}\S`).Draw(t, "message"))
		if err != nil {
			t.Skip(err)
		}
		v := r.version
		v.Prompt = rapid.String().Draw(t, "prompt")
		v.Departments = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) evaluation.Department {
			return evaluation.Department{Name: rapid.StringMatching(`[a-z<>&é]{1,40}`).Draw(t, "name"), Description: rapid.StringMatching(`.{0,100}`).Draw(t, "description")}
		}), 1, 20).Draw(t, "departments")
		p := prompt.Build(v, text, rand.Reader)
		var schema bytes.Buffer
		encode := json.NewEncoder(&schema)
		encode.SetEscapeHTML(false)
		if err := encode.Encode(evaluation.AnswerJSONSchema(v.Departments)); err != nil {
			t.Fatal(err)
		}
		departments, err := json.Marshal(v.Departments)
		if err != nil {
			t.Fatal(err)
		}
		var stored int
		if err := r.db.QueryRow(context.Background(), "SELECT octet_length($1::jsonb::text)", departments).Scan(&stored); err != nil {
			t.Skip(err) // no version with such departments can be stored
		}
		const framing = 512
		if sent, bound := len(p.System)+len(p.User)+schema.Len()+framing, evaluate.FixedBytes+len(v.Prompt)+2*stored+len(text.Subject)+len(text.Message); sent > bound {
			t.Fatalf("%d bytes are sent, %d charged", sent, bound)
		}
	})
}
