// Package reclaim takes expired leases back when no worker lives to do it.
//
// An expired lease never proves a death, so nothing is taken for undone: an open call of such a lease is closed as
// unknown, and its work goes on only as its version allows. Clients that want to know hear of what became a dead letter.
package reclaim

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook"
)

const batch = 500

// Run reclaims until no expired lease is left that nobody else is at, those too that no claim lists. What it returns was
// done, also beside an error.
func Run(ctx context.Context, db postgres.Beginner) (total outbox.Reclaimed, err error) {
	if err := postgres.InTx(ctx, db, outbox.Recheck); err != nil {
		return outbox.Reclaimed{}, err
	}
	for {
		var r outbox.Reclaimed
		err := postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
			var dead []content.Key
			if r, dead, err = outbox.Reclaim(ctx, tx, batch); err != nil {
				return err
			}
			_, err = webhook.Tell(ctx, tx, dead)
			crashpoint.PassIf(r != outbox.Reclaimed{}, crashpoint.SweepReclaimed)
			return err
		})
		if err != nil {
			return total, err
		}
		crashpoint.PassIf(r != outbox.Reclaimed{}, crashpoint.SweepReclaimCommitted)
		total.Pending += r.Pending
		total.Dead += r.Dead
		total.Unknown += r.Unknown
		if r.Pending+r.Dead < batch {
			return total, nil
		}
	}
}
