// Package route owns provider_route: whether work of a route may be claimed, how much of it, and for how much money,
// shared by all replicas through Postgres alone. It owns spend_limit and spend, too.
//
// # The breaker
//
// Failures that the route is to blame for open its breaker: nothing is claimed, so nothing burns attempts. When
// the pause is over one probe goes out for the whole fleet; its success closes the breaker. A fault that only an
// operator can mend halts the route with its reason; it is probed all the same, at a slower pace, and resumes by
// itself. A rate limit closes the route until the time the provider named. The row is written when something
// changes, never for a call that went well on a route that is well.
//
// A route that comes back, or whose pause for a rate limit is over, ramps up: one call for the whole fleet, and for
// each that goes well one more, so that every round of calls is twice the one before, until the route is as wide as one
// worker. So a fault that lasts through n pauses is met by at most
//
//	W·C + n calls for a rate limit or an operator's fault,
//	W·C + 4 + n calls for an outage,
//
// where W workers have C calls in flight each when it begins: each of them stops claiming at the first failure it
// sees. The 4 are the failures that the breaker forgives. A fault that begins while the route ramps up meets fewer. The
// pauses are 2 s, doubling to 60 s, in an outage, 30 s for an operator's fault, and what the provider asks for, or 1 s,
// for a rate limit.
//
// # The pause
//
// An operator may pause a route: nothing of it is claimed and nothing probed until the operator resumes it, whatever the
// breaker's state is and comes to. Workers see a pause within about a second; a claim that needs a permit, and a probe,
// see it at once. Calls under way end as they do, and tell the breaker.
//
// # Limits
//
// A route may have limits: requests and tokens per minute, and concurrent calls. A claim on such a route locks its row,
// takes a [Permit] and uses it, in one transaction, so that the replicas together stay within them. A limit for a minute
// is a bucket that gains 93 % of the limit in a minute, and holds 5 % of it and one call: no 60 seconds see more than the
// limit, also where calls arrive a second later than they were claimed, and a fleet that has work always uses more than
// nine tenths of it. Concurrent calls are the leased work of the route.
//
// The token limit counts the input tokens that the provider reports, cached ones included, and the output tokens only
// where the limits say so. Before a call that is an estimate: a quarter of the bytes of prompt and ticket, times a
// ratio that is learnt from what calls of the route really took. A call that is expected to take more than the bucket
// holds waits until it is full, and leaves a debt; so the limit holds as long as no call takes more than 7 % of it.
//
// # Spend
//
// A limit may be set on what is spent in a day or in a month (of UTC, by the database's clock), by one route or by all.
// While there is one, the ledger has the charge of each call: what it costs at the worst from the claim on (a token for
// every byte that is sent, at the price of input that is written to a cache, and all the output that the version
// allows), what it did cost once that is known, and the worst case for good where the outcome stays unknown. A claim
// takes no work whose charge has no room in all of the budgets. Such work waits, and goes on within about a second after
// the period has turned or the limit was raised; it never dies of it.
package route

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/route/internal/routesql"
)

// State is the state of a route's breaker.
type State string

// The states.
const (
	Closed   State = "closed"    // calls pass
	Open     State = "open"      // none pass
	HalfOpen State = "half_open" // one probe passes
	Halted   State = "halted"    // none pass, until an operator has mended what the reason says
)

const (
	failureThreshold = 5 // consecutive failures that open the breaker
	openPause        = 2 * time.Second
	openPauseMost    = 60 * time.Second
	haltPause        = 30 * time.Second
	throttlePause    = time.Second // when the provider names no time
)

// Route is a route as its row stands.
type Route struct {
	Name        string
	State       State
	Reason      string
	CallTimeout time.Duration
	Wait        time.Duration // until calls, or the next probe, may pass; 0 when they may
	Failures    int           // consecutive ones
	Limits      Limits
	Ramp        int    // calls that may be under way while the route ramps up; 0 when it does not
	Budgeted    bool   // a spend limit applies
	Exhausted   Budget // the one without room for the next call; zero when there is none
	Paused      bool   // by an operator: nobody claims, and nobody probes
}

// Flowing reports whether work of the route may be claimed freely.
func (r Route) Flowing() bool { return r.State == Closed && r.Wait == 0 && !r.Paused }

// Metered reports whether claims on the route need a [Permit].
func (r Route) Metered() bool { return r.Limits != Limits{} || r.Budgeted || r.Ramp > 0 }

// Parked says why work of the route waits although its breaker lets calls pass; empty when it does not. It is no state
// of the breaker: it goes by itself, with the period or when the limit is raised.
func (r Route) Parked() string {
	if r.Exhausted == (Budget{}) {
		return ""
	}
	return "budget exhausted: " + r.Exhausted.String()
}

// ProbeDue reports whether it is time to probe the route.
func (r Route) ProbeDue() bool { return r.State != Closed && r.Wait == 0 && !r.Paused }

// Gate reads and writes the routes' rows.
type Gate struct {
	q *routesql.Queries
}

// New makes a gate on a pool.
func New(db routesql.DBTX) *Gate { return &Gate{q: routesql.New(db)} }

// List returns all routes, by name.
func (g *Gate) List(ctx context.Context) ([]Route, error) {
	rows, err := g.q.ListRoutes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	routes := make([]Route, len(rows))
	for i, r := range rows {
		routes[i] = Route{
			Name: r.Name, State: State(r.State), Reason: r.Reason, Failures: int(r.ConsecutiveFailures),
			CallTimeout: time.Duration(r.CallTimeoutSeconds * float64(time.Second)),
			Wait:        time.Duration(r.WaitSeconds * float64(time.Second)),
			Limits: Limits{
				RequestsPerMinute: int(r.RequestsPerMinute), TokensPerMinute: r.TokensPerMinute, ConcurrentCalls: int(r.ConcurrentCalls),
				CountOutput: r.CountOutput,
			},
			Ramp: int(r.RampLevel), Budgeted: r.Budgeted, Exhausted: Budget{Scope: r.ExhaustedScope, Period: Period(r.ExhaustedPeriod)},
			Paused: r.Paused,
		}
	}
	return routes, nil
}

// BeginProbe takes the fleet's one probe of a route that does not flow. It reports false when another has it, it
// is not due, or there is no work to probe with. A probe that is not concluded within ttl is up for another.
func (g *Gate) BeginProbe(ctx context.Context, name string, ttl time.Duration) (probe uuid.UUID, ok bool, err error) {
	id, err := g.q.BeginProbe(ctx, routesql.BeginProbeParams{Name: name, ProbeSeconds: ttl.Seconds()})
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, false, nil
	}
	if err != nil {
		return uuid.Nil, false, fmt.Errorf("begin a probe of route %s: %w", name, err)
	}
	return *id, true, nil
}

// CancelProbe gives a probe back that found nothing to do.
func (g *Gate) CancelProbe(ctx context.Context, name string, probe uuid.UUID) error {
	if err := g.q.CancelProbe(ctx, routesql.CancelProbeParams{Name: name, ProbeID: &probe}); err != nil {
		return fmt.Errorf("cancel the probe of route %s: %w", name, err)
	}
	return nil
}

// Ramped tells of calls that a ramp allowed and that have ended: how many, and how many of them the provider answered.
// The route is as wide as it gets once its ramp reaches full calls.
func (g *Gate) Ramped(ctx context.Context, name string, ramp uuid.UUID, ended, succeeded, full int) error {
	if err := g.q.Ramped(ctx, routesql.RampedParams{
		Name: name, RampID: &ramp, Ended: int32(ended), Succeeded: int32(succeeded), FullLevel: int32(full),
	}); err != nil {
		return fmt.Errorf("ramp up route %s: %w", name, err)
	}
	return nil
}

// Hold keeps the states of routes as they are until tx ends, and returns those whose breaker lets no calls pass. It
// comes first in a transaction that locks work, and must not be followed by what writes the routes.
func Hold(ctx context.Context, tx pgx.Tx, names []string) (shut map[string]bool, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := routesql.New(tx).Hold(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("hold the states of %d routes: %w", len(names), err)
	}
	shut = map[string]bool{}
	for _, r := range rows {
		if State(r.State) != Closed {
			shut[r.Name] = true
		}
	}
	return shut, nil
}

// Succeeded tells that the provider answered. Probe is uuid.Nil for a call that was none.
func (g *Gate) Succeeded(ctx context.Context, name string, probe uuid.UUID) error {
	if _, err := g.q.Succeeded(ctx, routesql.SucceededParams{Name: name, ProbeID: optional(probe)}); err != nil {
		return fmt.Errorf("record a success on route %s: %w", name, err)
	}
	return nil
}

// Failed tells of calls that failed with f, and returns the state that follows.
func (g *Gate) Failed(ctx context.Context, name string, probe uuid.UUID, calls int, f *failure.Failure) (State, error) {
	reason := string(f.Reason)
	var err error
	switch {
	case f.Class == failure.Throttled:
		pause := max(f.RetryAfter, throttlePause)
		err = g.q.Throttled(ctx, routesql.ThrottledParams{Name: name, ProbeID: optional(probe), PauseSeconds: pause.Seconds(), Reason: reason})
		if err == nil {
			return Closed, nil
		}
	case f.Class == failure.Operator:
		err = g.q.Halted(ctx, routesql.HaltedParams{Name: name, ProbeID: optional(probe), PauseSeconds: haltPause.Seconds(), Reason: reason})
		if err == nil {
			return Halted, nil
		}
	default:
		var state string
		state, err = g.q.Failed(ctx, routesql.FailedParams{
			Name: name, ProbeID: optional(probe), Failures: int32(calls), Threshold: failureThreshold, Reason: reason,
			PauseSeconds: openPause.Seconds(), MostSeconds: openPauseMost.Seconds(),
		})
		if err == nil {
			return State(state), nil
		}
	}
	return "", fmt.Errorf("record a %s failure on route %s: %w", f.Class, name, err)
}

func optional(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}
