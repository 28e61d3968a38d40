package route

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/route/internal/routesql"
)

// Control is a route as operators see it.
type Control struct {
	Route
	PausedAt    time.Time // zero while it is not paused
	PausedBy    string
	PauseReason string
	ChangedAt   time.Time
	ReadAt      time.Time // by the database's clock; Wait is from then on

	// What of the limits may be used at once now; meaningless without the limit.
	RequestsLeft int64
	TokensLeft   int64
}

// Controls returns all routes by name, or the one of a name.
func Controls(ctx context.Context, db routesql.DBTX, name string) ([]Control, error) {
	rows, err := routesql.New(db).Controls(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read what operators have set: %w", err)
	}
	routes, err := New(db).List(ctx)
	if err != nil {
		return nil, err
	}
	known := make(map[string]Route, len(routes))
	for _, r := range routes {
		known[r.Name] = r
	}
	controls := make([]Control, len(rows))
	for i, r := range rows {
		c := Control{Route: known[r.Name], PausedBy: r.PausedBy, PauseReason: r.PauseReason, ChangedAt: r.ChangedAt, ReadAt: r.ReadAt}
		if r.PausedAt != nil {
			c.PausedAt = *r.PausedAt
		}
		elapsed := time.Duration(r.ElapsedSeconds * float64(time.Second))
		c.RequestsLeft = int64(max(bucket{float64(c.Limits.RequestsPerMinute), r.RequestCredit}.refilled(elapsed).credit, 0))
		c.TokensLeft = int64(max(bucket{float64(c.Limits.TokensPerMinute), r.TokenCredit}.refilled(elapsed).credit, 0))
		controls[i] = c
	}
	return controls, nil
}

// Lock keeps a route from being changed by others until the transaction ends. It returns ErrUnknownRoute when there is
// no such route.
func Lock(ctx context.Context, tx pgx.Tx, name string) error {
	rows, err := routesql.New(tx).LockForChange(ctx, name)
	if err == nil && len(rows) == 0 {
		err = ErrUnknownRoute
	}
	if err != nil {
		return fmt.Errorf("lock route %s: %w", name, err)
	}
	return nil
}

// Pause keeps everybody from claiming work of a route, and from probing it. It reports false when it is paused already.
func Pause(ctx context.Context, tx pgx.Tx, name, by, reason string) (bool, error) {
	n, err := routesql.New(tx).PauseRoute(ctx, routesql.PauseRouteParams{Name: name, PausedBy: by, PauseReason: reason})
	if err != nil {
		return false, fmt.Errorf("pause route %s: %w", name, err)
	}
	return n > 0, nil
}

// Resume ends the pause of a route. It reports false when there was none.
func Resume(ctx context.Context, tx pgx.Tx, name string) (bool, error) {
	n, err := routesql.New(tx).ResumeRoute(ctx, name)
	if err != nil {
		return false, fmt.Errorf("resume route %s: %w", name, err)
	}
	return n > 0, nil
}

// Reset closes the breaker of a route, and forgets what opened it. It reports false when there is nothing to forget.
func Reset(ctx context.Context, tx pgx.Tx, name string) (bool, error) {
	n, err := routesql.New(tx).ResetRoute(ctx, name)
	if err != nil {
		return false, fmt.Errorf("reset route %s: %w", name, err)
	}
	return n > 0, nil
}

// SetCallTimeout sets how long one call of a route may take. It reports false when it is so already.
func SetCallTimeout(ctx context.Context, tx pgx.Tx, name string, timeout time.Duration) (bool, error) {
	n, err := routesql.New(tx).SetCallTimeout(ctx, routesql.SetCallTimeoutParams{Name: name, Seconds: timeout.Seconds()})
	if err != nil {
		return false, fmt.Errorf("set the call timeout of route %s: %w", name, err)
	}
	return n > 0, nil
}
