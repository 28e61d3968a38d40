package evaluate_test

import (
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

// Whatever shuts the route of 10,000 tickets, for however many pauses: no dead letter, no attempt, and no more calls than
// the allowance of package route. When it is over all are answered without a hand, each by one paid call.
func TestStorms(t *testing.T) {
	t.Parallel()
	const (
		tickets     = 10_000
		workers     = 3
		concurrency = 4
		pauses      = 3
		forgiven    = 4 // failures before the breaker opens
	)
	r := newRigWith(t, providersim.Options{Latency: providersim.Latency{Min: time.Millisecond, Max: 10 * time.Millisecond}})
	r.create(outbox.Live, 0, tickets)
	for range workers {
		r.start(func(o *evaluate.Options) { o.Concurrency = concurrency })
	}
	for _, storm := range []struct {
		name   string
		action providersim.Action
		most   int
	}{
		{"rate limits", providersim.Action{Error: providersim.RateLimit, RetryAfter: time.Hour}, workers*concurrency + pauses},
		{"an outage", providersim.Action{Error: providersim.Overloaded503}, workers*concurrency + forgiven + pauses},
		{"a revoked key", providersim.Action{Error: providersim.InvalidAPIKey}, workers*concurrency + pauses},
		{"an exhausted quota", providersim.Action{Error: providersim.InsufficientQuota}, workers*concurrency + pauses},
	} {
		r.awaitFullWidth()
		before := r.sim.Stats().ByRule["outage"]
		if err := r.sim.StartOutage(storm.action); err != nil {
			t.Fatal(err)
		}
		r.awaitShut()
		for range pauses {
			met := r.sim.Stats().ByRule["outage"]
			r.due()
			if err := r.sim.Wait(t.Context(), func(s providersim.Stats) bool { return s.ByRule["outage"] > met }); err != nil {
				t.Fatal(err)
			}
			r.awaitShut()
		}
		if met := r.sim.Stats().ByRule["outage"] - before; met > storm.most {
			t.Errorf("%s met %d calls in %d pauses, allowed are %d", storm.name, met, pauses, storm.most)
		}
		if dead := r.count("evaluation_outbox WHERE status = 'dead'"); dead != 0 {
			t.Errorf("%s made %d dead letters", storm.name, dead)
		}
		if spent := r.count("evaluation_outbox WHERE attempts > 0"); spent != 0 {
			t.Errorf("%s cost %d tickets an attempt", storm.name, spent)
		}
		r.sim.EndOutage()
		r.due()
	}
	r.start(func(o *evaluate.Options) { o.Concurrency = 100 }) // only to have it over sooner
	for part := 1; part <= 4; part++ {
		r.untilMore(part*tickets/4-1, "evaluation_result")
	}
	if s := r.sim.Stats(); s.Billed != tickets || s.MaxBilledPerContent != 1 {
		t.Errorf("billed %d answers, %d for one content", s.Billed, s.MaxBilledPerContent)
	}
	r.check()
}

// awaitShut waits until the route lets no call pass and all that were under way are settled.
func (r *rig) awaitShut() {
	r.t.Helper()
	r.until(1, "provider_route WHERE not_before > now() AND reason <> '' AND state <> 'half_open'")
	r.until(0, "evaluation_outbox WHERE status = 'processing'")
	r.until(1, "provider_route WHERE not_before > now() AND reason <> '' AND state <> 'half_open'")
}

// awaitFullWidth waits until the route's calls flow, and not by a ramp, and some more have been answered.
func (r *rig) awaitFullWidth() {
	r.t.Helper()
	r.until(1, "provider_route WHERE state = 'closed' AND not_before <= now() AND ramp_id IS NULL")
	r.untilMore(r.count("evaluation_result")+100, "evaluation_result")
}
