package rows

import (
	"context"
	"fmt"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
)

// backlog is whether a long queue is a slow queue. Both are drained in the same portions, each by a worker that was
// started for it, so that what a start takes is the same in both.
func (b *Bench) backlog() harness.Group {
	large, small, portions := b.sized(10_000_000, 2_000), b.sized(10_000, 200), b.sized(5, 1)
	portion := func(ctx context.Context, db *bed.Database, sum *measured) error {
		m, err := b.drainWith(ctx, db, small)
		sum.Evaluations += m.Evaluations
		sum.Seconds += m.Seconds
		return err
	}
	long := b.onKept("at "+harness.Thousands(large), func(ctx context.Context, db *bed.Database) error {
		return db.Fill(ctx, bed.Backlog{Count: large, Route: bed.Main})
	}, func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		var sum measured
		for range portions {
			if err := portion(ctx, db, &sum); err != nil {
				return nil, err
			}
		}
		return harness.Figures{rate: float64(sum.Evaluations) / sum.Seconds}, nil
	})
	filled := 0
	short := b.onKept("at "+harness.Thousands(small), func(context.Context, *bed.Database) error { return nil },
		func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
			var sum measured
			for range portions {
				if err := db.Fill(ctx, bed.Backlog{First: filled, Count: small, Route: bed.Main}); err != nil {
					return nil, err
				}
				filled += small
				if err := portion(ctx, db, &sum); err != nil {
					return nil, err
				}
			}
			return harness.Figures{rate: float64(sum.Evaluations) / sum.Seconds}, nil
		})
	return harness.Group{Name: "backlog", Rounds: b.rounds(5), Rows: []harness.Row{{
		Name: fmt.Sprintf("drained at a backlog of %s", harness.Thousands(large)), Unit: perSec, Figure: rate, Of: long, Against: short, Must: harness.AtLeast(0.9),
	}}}
}
