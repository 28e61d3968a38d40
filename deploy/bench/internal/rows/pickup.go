package rows

import (
	"context"
	"fmt"
	"time"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
)

// pickup is how long a ticket waits that comes to an idle worker, from its commit to its call, and what it costs to be
// idle.
func (b *Bench) pickup() harness.Group {
	const p50, p99, statements = "p50, ms", "p99, ms", "statements per second"
	n := b.sized(500, 10)
	idle := max(time.Second, time.Duration(10*float64(time.Second)*b.Scale))
	ours := &harness.Subject{Name: evalonce, Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Settle(ctx); err != nil {
			return nil, err
		}
		m, err := b.worker(ctx, db, "pickup", fmt.Sprintf("-n=%d", n), "-gap=20ms")
		if err != nil {
			return nil, err
		}
		f := harness.Figures{p50: m.Pickup.P50, p99: m.Pickup.P99}
		if m, err = b.worker(ctx, db, "idle", "-for="+idle.String()); err != nil {
			return nil, err
		}
		f[statements] = m.Statements
		return f, nil
	})}
	return harness.Group{Name: "pickup", Rounds: b.rounds(3), Rows: []harness.Row{
		{Name: "pickup, commit to call, idle, p50", Unit: "ms", Figure: p50, Of: ours, Must: harness.AtMost(5)},
		{Name: "pickup, commit to call, idle, p99", Unit: "ms", Figure: p99, Of: ours, Must: harness.AtMost(25)},
		{Name: "idle worker, statements", Unit: perSec, Figure: statements, Of: ours},
	}}
}
