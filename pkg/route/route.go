// Package route owns provider_route: whether work of a route may be claimed, shared by all replicas through its
// row alone.
//
// Failures that the route is to blame for open its breaker: nothing is claimed, so nothing burns attempts. When
// the pause is over one probe goes out for the whole fleet; its success closes the breaker. A fault that only an
// operator can mend halts the route with its reason; it is probed all the same, at a slower pace, and resumes by
// itself. A rate limit closes the route until the time the provider named. The row is written when something
// changes, never for a call that went well on a route that is well.
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
}

// Flowing reports whether work of the route may be claimed freely.
func (r Route) Flowing() bool { return r.State == Closed && r.Wait == 0 }

// ProbeDue reports whether it is time to probe the route.
func (r Route) ProbeDue() bool { return r.State != Closed && r.Wait == 0 }

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
