package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest/plan"
)

// Dead letters are counted by reason without those that are discarded, up to a bound that keeps the statement from
// reading more, whatever the statistics say.
func TestDeadReasons(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("ALTER TABLE evaluation_outbox SET (autovacuum_enabled = off)")
	w.exec("ANALYZE evaluation_outbox") // while it is empty
	w.enqueue(0, 1)
	dead := func(n int, class, reason, discarded string) {
		w.exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status, dead_at, last_class, last_reason, discarded_at)
			SELECT md5(gen_random_uuid()::text), o.content_hash, o.ticket_id, o.version_id, o.route, 'live', 'dead', now(), $2, $3, `+discarded+`
			FROM (SELECT * FROM evaluation_outbox WHERE status = 'pending' LIMIT 1) o, generate_series(1, $1::int) n`, n, class, reason)
	}
	const many, most = 25_000, 10_000
	dead(many, "permanent", "refusal", "NULL")
	dead(many, "permanent", "truncated", "now()")
	dead(3, "permanent", "truncated", "NULL")
	dead(2, "unknown", "unknown_outcome", "NULL")
	dead(1, "transient", "attempts_spent", "NULL")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		reasons, err := outbox.DeadReasons(ctx, tx)
		got := map[failure.Reason]int64{}
		for _, r := range reasons {
			if r.Reason.Class() != r.Class {
				t.Errorf("%s is of class %s", r.Reason, r.Class)
			}
			got[r.Reason] = r.Count
		}
		if len(got) != 4 || got[failure.Refusal] != most || got[failure.Truncated] != 3 || got[failure.UnknownOutcome] != 2 || got[failure.AttemptsSpent] != 1 {
			t.Errorf("counted %v", got)
		}
		return err
	})
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		p := plan.Named(t, tx, "DeadReasons", func(tx pgx.Tx) error {
			_, err := outbox.DeadReasons(ctx, tx)
			return err
		})
		p.Uses("evaluation_outbox_buried_reason")
		p.NoSort()
		p.NoSeqScan("evaluation_outbox")
		p.ReadsAtMost(most + 10)
		return nil
	})
}
