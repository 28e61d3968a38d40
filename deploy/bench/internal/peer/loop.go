package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
)

// EnqueueInLoop gives every stored ticket work under a version, as a script would: it reads them, and inserts one row for
// each, in a statement that is prepared and a transaction of its own.
func EnqueueInLoop(ctx context.Context, db *bed.Database, version string) (perSecond float64, err error) {
	conn, err := db.Pool.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("enqueue in a loop: %w", err)
	}
	defer conn.Release()
	began := time.Now()
	rows, err := conn.Query(ctx, "SELECT id, content_hash FROM ticket ORDER BY created_at")
	if err != nil {
		return 0, fmt.Errorf("enqueue in a loop: %w", err)
	}
	type ticket struct {
		ID   uuid.UUID
		Hash []byte
	}
	tickets, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ticket])
	if err != nil {
		return 0, fmt.Errorf("enqueue in a loop: %w", err)
	}
	for _, t := range tickets {
		if _, err := conn.Exec(ctx, `
			INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
			SELECT evaluation_key($2, v.digest), $2, $3, v.id, v.route, 'bulk' FROM evaluator_version v WHERE v.id = $1
			ON CONFLICT DO NOTHING`, version, t.Hash, t.ID); err != nil {
			return 0, fmt.Errorf("enqueue ticket %s: %w", t.ID, err)
		}
	}
	return float64(len(tickets)) / time.Since(began).Seconds(), nil
}
