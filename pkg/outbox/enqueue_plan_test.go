package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest/plan"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// Neither the backlog nor what is answered makes a create dearer: its statements look up the keys of its batch.
func TestPlansOfCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const batch, most = 30, 2*30 + 1
	known := w.enqueue(0, batch)
	for _, sql := range []string{
		`INSERT INTO ticket (id, client_id, subject, message, content_hash)
			SELECT uuid_v7(), 'other', '', n::text, sha256(n::text::bytea) FROM generate_series(1, 20000) n`,
		`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status, dead_at, last_class, last_reason)
			SELECT evaluation_key(content_hash, sha256('v')), content_hash, id, 'v1', 'main', 'live',
				CASE WHEN message < '5' THEN 'pending' ELSE 'dead' END, CASE WHEN message >= '5' THEN now() END, 'transient', 'attempts_spent'
			FROM ticket WHERE client_id = 'other'`,
		`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
				model_version, prompt_version, policy_version, priority, queue, model_call_id)
			SELECT evaluation_key(content_hash, sha256('w')), content_hash, id, 'w', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id
			FROM ticket WHERE client_id = 'other'`,
		`UPDATE evaluation_outbox SET status = 'dead', dead_at = now(), last_class = 'transient', last_reason = 'attempts_spent'
			WHERE version_id = 'v1' AND ticket_id IN (SELECT id FROM ticket WHERE client_id <> 'other')`,
		"ANALYZE",
	} {
		w.exec(sql)
	}
	keys := make([]content.Key, batch)
	for i, j := range known {
		keys[i] = j.Key
	}
	var jobs []outbox.Job
	var tickets []ticketdb.NewTicket
	for n := batch; n < 2*batch; n++ {
		j, ticket := w.job(n)
		jobs, tickets = append(jobs, j), append(tickets, ticket)
	}
	for name, do := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Enqueue": func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.Offer(ctx, tx, w.demand(), jobs)
			return err
		},
		"States": func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.StateOf(ctx, tx, keys)
			return err
		},
		"Follow": func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.Follow(ctx, tx, keys)
			return err
		},
		"Rearm": func(ctx context.Context, tx pgx.Tx) error { return outbox.Enqueue(ctx, tx, w.demand(), known) },
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := w.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if err := ticketdb.PlanLookups(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			if _, err := ticketdb.Insert(t.Context(), tx, tickets); err != nil {
				t.Fatal(err)
			}
			p := plan.Named(t, tx, name, func(tx pgx.Tx) error { return do(t.Context(), tx) })
			if name != "Enqueue" {
				p.Uses("evaluation_outbox_pkey")
			}
			if name == "Enqueue" || name == "States" {
				p.Uses("evaluation_result_pkey")
			}
			p.NoSeqScan("*")
			p.ReadsAtMost(most)
		})
	}
}
