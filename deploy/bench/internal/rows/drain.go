package rows

import (
	"context"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/bench/internal/peer"
)

// drain is how many evaluations a second one worker gets through when the provider takes no time.
func (b *Bench) drain() harness.Group {
	n := b.sized(200_000, 500)
	ours := &harness.Subject{Name: evalonce, Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Fill(ctx, bed.Backlog{Count: n, Route: bed.Main}); err != nil {
			return nil, err
		}
		m, err := b.drainWith(ctx, db, n)
		return harness.Figures{rate: m.PerSecond}, err
	})}
	limit := &harness.Subject{Name: "its statements alone, four loops", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Fill(ctx, bed.Backlog{Count: n, Route: bed.Main}); err != nil {
			return nil, err
		}
		r, err := peer.DrainByStatements(ctx, db, n)
		return harness.Figures{rate: r}, err
	})}
	const what = "evaluations drained"
	return harness.Group{Name: "drain", Rounds: b.rounds(3), Rows: []harness.Row{
		{Name: what, Unit: perSec, Figure: rate, Of: ours, Against: b.river("river, no-op jobs", n, false), Must: harness.AtLeast(1.5)},
		{Name: what, Unit: perSec, Figure: rate, Of: ours, Against: b.river("river, one result row each", b.sized(100_000, 500), true), Must: harness.AtLeast(4)},
		{Name: what, Unit: perSec, Figure: rate, Of: ours, Against: limit, Must: harness.AtLeast(0.7)},
	}}
}

func (b *Bench) river(name string, n int, results bool) *harness.Subject {
	return &harness.Subject{Name: name, Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		q, err := peer.NewRiver(ctx, db, n, results)
		if err != nil {
			return nil, err
		}
		r, err := q.Drain(ctx)
		return harness.Figures{rate: r}, err
	})}
}
