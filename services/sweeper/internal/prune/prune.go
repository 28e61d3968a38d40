// Package prune deletes the requests of clients and operators whose retention is over; their keys are free again.
package prune

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/auditdb"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

const batch = 2000

// Run prunes until nothing is left that nobody else is at. What it returns was done, also beside an error.
func Run(ctx context.Context, db postgres.Beginner) (total int, err error) {
	clients, err := all(ctx, db, func(ctx context.Context, tx pgx.Tx) (int, error) { return ticketdb.PruneRequests(ctx, tx, batch) })
	if err != nil {
		return clients, err
	}
	operators, err := all(ctx, db, func(ctx context.Context, tx pgx.Tx) (int, error) { return auditdb.PruneRequests(ctx, tx, batch) })
	return clients + operators, err
}

func all(ctx context.Context, db postgres.Beginner, prune func(context.Context, pgx.Tx) (int, error)) (total int, err error) {
	for {
		var n int
		err := postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
			n, err = prune(ctx, tx)
			crashpoint.PassIf(n > 0, crashpoint.SweepPruned)
			return err
		})
		if err != nil {
			return total, err
		}
		crashpoint.PassIf(n > 0, crashpoint.SweepPruneCommitted)
		total += n
		if n < batch {
			return total, nil
		}
	}
}
