package rows

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/bench/internal/peer"
)

// snapshot is what a long report or a backup costs: while its snapshot is held, no vacuum removes what is deleted.
func (b *Bench) snapshot() harness.Group {
	n := b.sized(1_000_000, 500)
	drain := func(name string, held bool) *harness.Subject {
		return &harness.Subject{Name: name, Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
			if err := db.Fill(ctx, bed.Backlog{Count: n, Route: bed.Main}); err != nil {
				return nil, err
			}
			return while(ctx, db, held, func() (float64, error) {
				m, err := b.drainWith(ctx, db, n)
				return m.PerSecond, err
			})
		})}
	}
	return harness.Group{Name: "snapshot", Rounds: b.rounds(3), Rows: []harness.Row{{
		Name: fmt.Sprintf("drained, snapshot held, %s", harness.Thousands(n)), Unit: perSec, Figure: rate,
		Of: drain("snapshot held", true), Against: drain("none held", false), Must: harness.AtLeast(0.95),
	}}}
}

// riversSnapshot is what the same does to river. Fewer jobs show it well enough, and take long enough.
func (b *Bench) riversSnapshot() harness.Group {
	n := b.sized(200_000, 500)
	drain := func(name string, held bool) *harness.Subject {
		return &harness.Subject{Name: name, Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
			q, err := peer.NewRiver(ctx, db, n, false)
			if err != nil {
				return nil, err
			}
			return while(ctx, db, held, func() (float64, error) { return q.Drain(ctx) })
		})}
	}
	return harness.Group{Name: "snapshot", Rounds: b.rounds(1), Rows: []harness.Row{{
		Name: fmt.Sprintf("river, no-op jobs, snapshot held, %s", harness.Thousands(n)), Unit: perSec, Figure: rate,
		Of: drain("river, snapshot held", true), Against: drain("river, none held", false),
	}}}
}

// while drains with a snapshot held in another session, or without.
func while(ctx context.Context, db *bed.Database, held bool, drain func() (float64, error)) (_ harness.Figures, err error) {
	if held {
		tx, err := db.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err != nil {
			return nil, fmt.Errorf("hold a snapshot: %w", err)
		}
		defer func() { err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx))) }()
		// The first statement takes it.
		if _, err := tx.Exec(ctx, "SELECT count(*) FROM active_version"); err != nil {
			return nil, fmt.Errorf("hold a snapshot: %w", err)
		}
	}
	r, err := drain()
	return harness.Figures{rate: r}, err
}
