package rows

import (
	"context"
	"fmt"
	"time"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
)

// claims is whether work that must wait is in the way of work that is due.
func (b *Bench) claims() harness.Group {
	const p99 = "claim p99, ms"
	rounds := b.rounds(3)
	n, waiting := b.sized(100_000, 500), b.sized(1_000_000, 1_000)
	drained := func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Settle(ctx); err != nil {
			return nil, err
		}
		m, err := b.drainWith(ctx, db, n)
		return harness.Figures{p99: m.Claims.P99, rate: m.PerSecond}, err
	}
	// As much as all rounds together drain, and a batch more, so that no claim comes up short.
	due := bed.Backlog{Count: n*rounds + b.sized(10_000, 1_000)*rounds, Route: bed.Main}
	crowded := b.onKept("with them", func(ctx context.Context, db *bed.Database) error {
		if _, err := db.Pool.Exec(ctx, `
			UPDATE provider_route SET state = 'halted', reason = 'unauthorized', not_before = now() + interval '1 day', changed_at = now()
			WHERE name = $1`, bed.Other); err != nil {
			return fmt.Errorf("halt a route: %w", err)
		}
		later := bed.Backlog{First: due.Count, Count: waiting, Route: bed.Main, DueIn: 12 * time.Hour}
		halted := bed.Backlog{First: due.Count + waiting, Count: waiting, Route: bed.Other}
		return db.Fill(ctx, due, later, halted)
	}, drained)
	alone := b.onKept("without them", func(ctx context.Context, db *bed.Database) error { return db.Fill(ctx, due) }, drained)
	return harness.Group{Name: "claims", Rounds: rounds, Rows: []harness.Row{{
		Name: fmt.Sprintf("claim p99 beside %s for later and %s halted", harness.Thousands(waiting), harness.Thousands(waiting)), Unit: "ms", Figure: p99,
		Of: crowded, Against: alone, Must: harness.AtMost(1.5),
	}}}
}
