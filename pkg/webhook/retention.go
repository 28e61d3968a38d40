package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

// RetentionLeast is the shortest retention of bodies.
const RetentionLeast = 24 * time.Hour

const retentionWindow = 2000 // deliveries of one transaction

// EraseOldBodies takes the bodies of deliveries that were made longer ago than the retention and are finished. Their rows
// stay, so that nobody is told twice; they cannot be delivered again. What it returns was done, also beside an error.
func EraseOldBodies(ctx context.Context, db postgres.Beginner, retention time.Duration) (erased int64, err error) {
	for more := true; more; {
		var n int64
		err := postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			n, more = 0, false
			q := webhooksql.New(tx)
			marks, err := q.LockRetention(ctx)
			if err != nil || len(marks) == 0 {
				return err
			}
			row, err := q.EraseBodies(ctx, webhooksql.EraseBodiesParams{After: marks[0], RetentionSeconds: retention.Seconds(), Most: retentionWindow})
			if err != nil || row.Last == uuid.Nil {
				return err
			}
			n, more = row.Erased, true
			return q.SaveRetention(ctx, row.Last)
		})
		if err != nil {
			return erased, fmt.Errorf("erase the bodies of old deliveries: %w", err)
		}
		erased += n
	}
	return erased, nil
}
