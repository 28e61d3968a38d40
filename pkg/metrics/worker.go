package metrics

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Worker is what evaluator-worker measures of evaluations.
type Worker struct {
	claims, evaluations, calls, tokens, substitutions, unknown, lost, reclaimed counter
	cost                                                                        sum
	callDuration, pickup, latency                                               histogram
	running                                                                     gauge
	meter                                                                       metric.Meter
}

// NewWorker makes its instruments.
func NewWorker(meter metric.Meter) (*Worker, error) {
	m := maker{meter: meter}
	w := &Worker{
		meter:  meter,
		claims: m.counter("evalonce.claims"), evaluations: m.counter("evalonce.evaluations"), calls: m.counter("evalonce.model.calls"),
		tokens: m.counter("evalonce.model.tokens"), substitutions: m.counter("evalonce.model.substitutions"),
		unknown: m.counter("evalonce.unknown.outcomes"), lost: m.counter("evalonce.leases.lost"), reclaimed: m.counter("evalonce.leases.reclaimed"),
		cost: m.sum("evalonce.model.cost"), callDuration: m.histogram("evalonce.model.call.duration"),
		pickup: m.histogram("evalonce.pickup.latency"), latency: m.histogram("evalonce.evaluation.latency"), running: m.gauge("evalonce.calls.running"),
	}
	return w, m.err()
}

// Claimed counts the evaluations of a claim, on one route and lane.
func (w *Worker) Claimed(ctx context.Context, route, lane string, call, answered, saved int) {
	if w == nil {
		return
	}
	w.claims.add(ctx, int64(call), route, lane, KnownCall)
	w.claims.add(ctx, int64(answered), route, lane, KnownAnswered)
	w.claims.add(ctx, int64(saved), route, lane, KnownSaved)
}

// Alike is what evaluations have in common that are counted together.
type Alike struct {
	Route, Lane, Outcome, Class string
	Call                        Call
}

// Call is what calls have in common; without an outcome there was none.
type Call struct {
	Provider, Model, Version, Outcome, Class string
}

// Settled is what evaluations that are alike have come to.
type Settled struct {
	Evaluations, Calls                    int
	Input, CachedInput, Output, Reasoning int64 // tokens
	CostUSD                               float64
	Substituted                           int
	CallSeconds, PickupSeconds, Seconds   []float64
}

// Settled counts a group of evaluations whose settlement is committed.
func (w *Worker) Settled(ctx context.Context, group map[Alike]*Settled) {
	if w == nil {
		return
	}
	for k, s := range group {
		w.evaluations.add(ctx, int64(s.Evaluations), k.Route, k.Lane, k.Outcome, k.Class)
		w.pickup.record(ctx, s.PickupSeconds, k.Lane)
		w.latency.record(ctx, s.Seconds, k.Lane)
		c := k.Call
		if c.Outcome == "" {
			continue
		}
		w.calls.add(ctx, int64(s.Calls), c.Provider, c.Model, c.Version, c.Outcome, c.Class)
		w.callDuration.record(ctx, s.CallSeconds, c.Provider, c.Model, c.Outcome)
		w.tokens.add(ctx, s.Input, c.Model, c.Version, "input")
		w.tokens.add(ctx, s.CachedInput, c.Model, c.Version, "cached_input")
		w.tokens.add(ctx, s.Output, c.Model, c.Version, "output")
		w.tokens.add(ctx, s.Reasoning, c.Model, c.Version, "reasoning")
		w.cost.add(ctx, s.CostUSD, c.Model, c.Version)
		w.substitutions.add(ctx, int64(s.Substituted), c.Model, c.Version)
		if c.Outcome == "unknown" {
			w.unknown.add(ctx, int64(s.Calls), FoundByCall)
		}
	}
}

// LostLeases counts leases that were over before they could be extended.
func (w *Worker) LostLeases(ctx context.Context, n int) {
	if w != nil {
		w.lost.add(ctx, int64(n))
	}
}

// Reclaimed counts leases of others that were over, and what became of their work and their calls.
func (w *Worker) Reclaimed(ctx context.Context, pending, dead, unknown int) {
	if w == nil {
		return
	}
	w.reclaimed.add(ctx, int64(pending), Pending)
	w.reclaimed.add(ctx, int64(dead), Dead)
	w.unknown.add(ctx, int64(unknown), FoundByLease)
}

// ObserveRunning asks for the evaluations under way, by route, whenever somebody reads them, until stop is called.
func (w *Worker) ObserveRunning(running func(observe func(route string, n int))) (stop func() error, err error) {
	if w == nil {
		return func() error { return nil }, nil
	}
	r, err := w.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		running(func(route string, n int) { w.running.observe(o, float64(n), route) })
		return nil
	}, w.running.of)
	if err != nil {
		return nil, err
	}
	return r.Unregister, nil
}

// Webhooks is what evaluator-worker measures of webhooks.
type Webhooks struct {
	attempts, disabled counter
	duration           histogram
}

// NewWebhooks makes its instruments.
func NewWebhooks(meter metric.Meter) (*Webhooks, error) {
	m := maker{meter: meter}
	w := &Webhooks{
		attempts: m.counter("evalonce.webhook.attempts"), disabled: m.counter("evalonce.webhook.endpoints.disabled"),
		duration: m.histogram("evalonce.webhook.attempt.duration"),
	}
	return w, m.err()
}

// Attempted counts one attempt; it was delivered where there is no reason.
func (w *Webhooks) Attempted(ctx context.Context, reason string, took time.Duration) {
	if w == nil {
		return
	}
	outcome := Failed
	if reason == "" {
		outcome, reason = Delivered, None
	}
	w.attempts.add(ctx, 1, outcome, reason)
	w.duration.record(ctx, []float64{took.Seconds()}, outcome)
}

// Disabled counts an endpoint that was disabled.
func (w *Webhooks) Disabled(ctx context.Context, reason string) {
	if w != nil {
		w.disabled.add(ctx, 1, reason)
	}
}
