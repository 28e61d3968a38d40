package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// Count is a number of rows, counted as far as it is worth; beyond that it is what the planner believes.
type Count struct {
	Value     int64
	Estimated bool
}

// LaneLoad is what waits and runs on one lane of a route.
type LaneLoad struct {
	Route     string
	Lane      Lane
	Ready     Count // due now
	Scheduled Count // due later
	Running   int64
	Dead      Count         // not discarded
	OldestAge time.Duration // of what is ready; 0 when nothing is
}

const (
	// countMost and deadMost bound what is counted, so that it takes some milliseconds whatever there is.
	countMost = 10_000
	deadMost  = 100_000
)

// Loads returns the lanes of routes, the live one first.
func Loads(ctx context.Context, tx pgx.Tx, routes []string) ([]LaneLoad, error) {
	q := outboxsql.New(tx)
	if err := q.PlanWalk(ctx); err != nil {
		return nil, fmt.Errorf("plan to count the work of %d routes: %w", len(routes), err)
	}
	rows, err := q.LaneLoads(ctx, outboxsql.LaneLoadsParams{Routes: routes, Most: countMost + 1})
	if err != nil {
		return nil, fmt.Errorf("count the work of %d routes: %w", len(routes), err)
	}
	dead, err := q.DeadLoads(ctx, deadMost+1)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters by route: %w", err)
	}
	loads := make([]LaneLoad, len(rows))
	for i, r := range rows {
		l := LaneLoad{Route: r.Route, Lane: Lane(r.Lane), Running: r.Running, OldestAge: max(0, time.Duration(r.OldestSeconds*float64(time.Second)))}
		if l.Ready, err = counted(ctx, tx, r.Ready, "<=", r.Route, r.Lane); err != nil {
			return nil, err
		}
		if l.Scheduled, err = counted(ctx, tx, r.Scheduled, ">", r.Route, r.Lane); err != nil {
			return nil, err
		}
		for _, d := range dead {
			// What is beyond the bound may be of any route.
			l.Dead.Estimated = d.Counted > deadMost
			if d.Route == r.Route && d.Lane == r.Lane {
				l.Dead.Value = d.Count
			}
		}
		loads[i] = l
	}
	return loads, nil
}

// counted is a count of pending work, or the planner's estimate of it where counting stopped.
func counted(ctx context.Context, tx pgx.Tx, n int64, due, route, lane string) (Count, error) {
	if n <= countMost {
		return Count{Value: n}, nil
	}
	var plan []byte
	err := tx.QueryRow(ctx, "EXPLAIN (FORMAT JSON) SELECT FROM evaluation_outbox WHERE route = $1 AND lane = $2 AND dead_at IS NULL AND status = 'pending' AND available_at "+due+" now()",
		route, lane).Scan(&plan)
	var nodes []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		} `json:"Plan"`
	}
	if err == nil {
		err = json.Unmarshal(plan, &nodes)
	}
	if err != nil || len(nodes) == 0 {
		return Count{}, fmt.Errorf("estimate the work of route %s, lane %s: %w", route, lane, err)
	}
	return Count{Value: max(n, int64(nodes[0].Plan.Rows)), Estimated: true}, nil
}
