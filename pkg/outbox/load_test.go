package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
)

func (w *world) loads() (live, bulk outbox.LaneLoad) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		loads, err := outbox.Loads(ctx, tx, []string{routeName})
		if err != nil || len(loads) != 2 || loads[0].Lane != outbox.Live || loads[1].Lane != outbox.Bulk {
			w.t.Fatalf("loads %v, %v", loads, err)
		}
		live, bulk = loads[0], loads[1]
		return nil
	})
	return live, bulk
}

func TestLoads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if live, bulk := w.loads(); live != (outbox.LaneLoad{Route: routeName, Lane: outbox.Live}) || bulk != (outbox.LaneLoad{Route: routeName, Lane: outbox.Bulk}) {
		t.Errorf("of nothing: %+v, %+v", live, bulk)
	}
	w.enqueue(0, 10)
	claimed := w.claim("a", 5)
	w.settle(claimed[0], ledger.Failed, failure.AttemptsSpent)
	w.settle(claimed[1], ledger.Rejected, failure.Refusal)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.DiscardDead(ctx, tx, []content.Key{claimed[1].Key})
		return err
	})
	w.exec("UPDATE evaluation_outbox SET available_at = now() + interval '1 hour' WHERE idempotency_key = (SELECT min(idempotency_key) FROM evaluation_outbox WHERE status = 'pending')")
	w.exec("UPDATE evaluation_outbox SET lane = 'bulk' WHERE idempotency_key = (SELECT min(idempotency_key) FROM evaluation_outbox WHERE status = 'pending' AND available_at <= now())")
	w.exec("UPDATE evaluation_outbox SET available_at = now() - interval '1 hour' WHERE status = 'pending' AND lane = 'live' AND available_at <= now()")
	live, bulk := w.loads()
	if live.Ready != (outbox.Count{Value: 3}) || live.Running != 3 || live.Scheduled != (outbox.Count{Value: 1}) || live.Dead != (outbox.Count{Value: 1}) || live.OldestAge.Hours() < 1 {
		t.Errorf("live is %+v", live)
	}
	if bulk.Ready != (outbox.Count{Value: 1}) || bulk.Running != 0 || bulk.Dead.Value != 0 {
		t.Errorf("bulk is %+v", bulk)
	}
}

// Counting stops; what lies beyond is estimated, and said to be.
func TestALongBacklogIsEstimated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	const all = 30_000
	w.exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT encode(substring(sha256(convert_to(n::text, 'UTF8')) FROM 1 FOR 16), 'hex'), o.content_hash, o.ticket_id, o.version_id, o.route, 'live'
		FROM evaluation_outbox o, generate_series(2, $1) n`, all)
	w.exec("ANALYZE evaluation_outbox")
	live, _ := w.loads()
	if !live.Ready.Estimated || live.Ready.Value < all/2 || live.Ready.Value > 2*all {
		t.Errorf("%d evaluations are told to be %+v", all, live.Ready)
	}
	if live.Scheduled != (outbox.Count{}) {
		t.Errorf("scheduled are %+v", live.Scheduled)
	}
}
