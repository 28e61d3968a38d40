package rows

import (
	"context"
	"errors"
	"fmt"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/bench/internal/peer"
)

// create is how many tickets a second one ticket-api takes, each with an idempotency key, durable when answered.
func (b *Bench) create() harness.Group {
	n := b.sized(60_000, 200)
	overGRPC := b.creating("over gRPC", n, distinct, (*api).createGRPC)
	overREST := b.creating("over REST", n, distinct, (*api).createREST)
	driver := &harness.Subject{Name: "pgx alone", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Settle(ctx); err != nil {
			return nil, err
		}
		r, err := createAll(ctx, n, distinct, func(ctx context.Context, _ int, t ticket) error {
			return peer.CreateByDriver(ctx, db, t.subject, t.message, t.key)
		})
		if err != nil {
			return nil, err
		}
		return harness.Figures{rate: r}, stored(ctx, db, n, n)
	})}
	return harness.Group{Name: "create", Rounds: b.rounds(3), Rows: []harness.Row{
		{Name: "created over gRPC, 64 in flight", Unit: perSec, Figure: rate, Of: overGRPC, Against: driver, Must: harness.AtLeast(1)},
		{Name: "created over REST, 64 in flight", Unit: perSec, Figure: rate, Of: overREST, Against: overGRPC},
	}}
}

// creating makes tickets through a ticket-api that was started for it.
func (b *Bench) creating(name string, n int, text func(int) ticket, create func(*api, context.Context, int, func(int) ticket) (float64, error)) *harness.Subject {
	return &harness.Subject{Name: name, Run: b.onFresh(func(ctx context.Context, db *bed.Database) (_ harness.Figures, err error) {
		if err := db.Settle(ctx); err != nil {
			return nil, err
		}
		a, err := b.startAPI(ctx, db)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, a.Stop()) }()
		r, err := create(a, ctx, n, text)
		if err != nil {
			return nil, err
		}
		work := n
		if text(0).message == text(1).message {
			work = 1
		}
		return harness.Figures{rate: r}, stored(ctx, db, n, work)
	})}
}

// stored checks that everything is there that was said to be.
func stored(ctx context.Context, db *bed.Database, tickets, work int) error {
	for table, want := range map[string]int{"ticket": tickets, "client_request": tickets, "evaluation_outbox": work} {
		got, err := db.Count(ctx, "SELECT count(*) FROM "+table)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%d rows in %s, want %d", got, table, want)
		}
	}
	return nil
}
