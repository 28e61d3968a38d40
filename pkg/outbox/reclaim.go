package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// checkInterval is the longest time between two looks at a claim: how long a lease that is over may wait to be reclaimed,
// beside the interval of those who reclaim, when it was over sooner than it was made for.
const checkInterval = 5 * time.Second

// Reclaimed counts what became of expired leases.
type Reclaimed struct {
	Pending int // work that goes on
	Dead    int // work whose version allows no further call of unknown outcome
	Unknown int // calls closed as unknown
}

// EndClaims strikes claims off the list in which expired leases are looked for, once all that they claimed is settled. A
// claim that stays on it costs a look, and is struck off by who takes it.
func EndClaims(ctx context.Context, tx pgx.Tx, claims []uuid.UUID) error {
	if len(claims) == 0 {
		return nil
	}
	if err := outboxsql.New(tx).EndClaims(ctx, claims); err != nil {
		return fmt.Errorf("end %d claims: %w", len(claims), err)
	}
	return nil
}

// Reclaim takes back expired leases, about most of them where there are more. An open call of such a lease may have been
// paid: it is closed as unknown, and its work goes on only as the version's policy allows. Safe to run anywhere, by several
// at once. The keys of what is a dead letter now come back: those who follow it are waited for, so that the caller sees their
// tickets.
func Reclaim(ctx context.Context, tx pgx.Tx, most int) (r Reclaimed, dead []content.Key, err error) {
	q := outboxsql.New(tx)
	if err := q.PlanKeys(ctx); err != nil {
		return Reclaimed{}, nil, fmt.Errorf("plan to reclaim expired leases: %w", err)
	}
	var buried []string
	for r.Pending+r.Dead < most {
		row, err := q.Reclaim(ctx, outboxsql.ReclaimParams{Most: int64(most), CheckSeconds: checkInterval.Seconds()})
		if err != nil {
			return Reclaimed{}, nil, fmt.Errorf("reclaim expired leases: %w", err)
		}
		if row.Claims == 0 {
			break
		}
		r.Pending += int(row.Pending)
		r.Dead += len(row.Dead)
		r.Unknown += int(row.Unknown)
		buried = append(buried, row.Dead...)
	}
	if len(buried) == 0 {
		return r, nil, nil
	}
	if err := q.LockForBurial(ctx, buried); err != nil {
		return Reclaimed{}, nil, fmt.Errorf("lock %d evaluations that were given up: %w", len(buried), err)
	}
	for _, key := range buried {
		dead = append(dead, content.Key(key))
	}
	return r, dead, nil
}

// lostMost is how many leases a claim lists that is made of lost ones.
const lostMost = 500

// Recheck has the next Reclaim look at every lease there is, also at those that no claim lists. It reads all work.
func Recheck(ctx context.Context, tx pgx.Tx) error {
	q := outboxsql.New(tx)
	if err := q.LookAtClaims(ctx); err != nil {
		return fmt.Errorf("have all claims be looked at: %w", err)
	}
	if err := q.ListLost(ctx, lostMost); err != nil {
		return fmt.Errorf("list lost leases: %w", err)
	}
	return nil
}
