package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// reasonMost bounds what is counted of one reason.
const reasonMost = 10_000

// DeadReason counts dead letters of one reason that nobody has discarded, up to ten thousand.
type DeadReason struct {
	Class  failure.Class
	Reason failure.Reason
	Count  int64
}

// DeadReasons counts dead letters by what they are for. As [Loads] it keeps the planner to indexes for the rest of the
// transaction.
func DeadReasons(ctx context.Context, tx pgx.Tx) ([]DeadReason, error) {
	q := outboxsql.New(tx)
	if err := q.PlanWalk(ctx); err != nil {
		return nil, fmt.Errorf("plan to count the dead letters: %w", err)
	}
	rows, err := q.DeadReasons(ctx, reasonMost)
	if err != nil {
		return nil, fmt.Errorf("count the dead letters by reason: %w", err)
	}
	reasons := make([]DeadReason, len(rows))
	for i, r := range rows {
		reasons[i] = DeadReason{Class: failure.Class(r.Class), Reason: failure.Reason(r.Reason), Count: r.Count}
	}
	return reasons, nil
}
