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
		"FollowNow": func(ctx context.Context, tx pgx.Tx) error { return outbox.EnqueueMore(ctx, tx, w.demand(), known) },
		"Rearm":     func(ctx context.Context, tx pgx.Tx) error { return outbox.Enqueue(ctx, tx, w.demand(), known) },
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

// The same of plans that were made on a queue that was empty, and known to be, as a quiet one is.
func TestPlansOfCreateMadeOnEmptyTables(t *testing.T) {
	t.Parallel()
	const batch, most, stored = 30, 30*30 + 100, 20_000
	w := newWorld(t)
	s := w.sessionOnEmptyTables("evaluation_outbox", "evaluation_result", "client_request")
	tx, exec := s.tx, s.exec
	var jobs, known []outbox.Job
	var keys []content.Key
	var tickets []ticketdb.NewTicket
	for n := range batch {
		j, ticket := w.job(n)
		jobs, tickets, keys = append(jobs, j), append(tickets, ticket), append(keys, j.Key)
	}
	known = jobs
	statements := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"InsertTickets": func(ctx context.Context, tx pgx.Tx) error {
			_, err := ticketdb.Insert(ctx, tx, tickets)
			return err
		},
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
		"FollowNow": func(ctx context.Context, tx pgx.Tx) error { return outbox.EnqueueMore(ctx, tx, w.demand(), known) },
		"Rearm":     func(ctx context.Context, tx pgx.Tx) error { return outbox.Enqueue(ctx, tx, w.demand(), known) },
	}
	each := func(fn func(name string, do func(tx pgx.Tx) error)) {
		t.Helper()
		for name, do := range statements {
			s.within(func() {
				fn(name, func(tx pgx.Tx) error {
					if err := ticketdb.PlanLookups(t.Context(), tx); err != nil {
						return err
					}
					return do(t.Context(), tx)
				})
			})
		}
	}
	insertDead := func() {
		exec(`WITH dead AS (
				INSERT INTO ticket (id, client_id, subject, message, content_hash)
				SELECT uuid_v7(), 'dead', '', k, sha256(k::bytea) FROM unnest($1::text[]) k RETURNING id, message, content_hash
			)
			INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status, dead_at, last_class, last_reason)
			SELECT message, content_hash, id, 'v1', 'main', 'live', 'dead', now(), 'transient', 'attempts_spent' FROM dead`, keys)
	}
	each(func(name string, do func(tx pgx.Tx) error) {
		if name == "Rearm" || name == "FollowNow" {
			insertDead()
		}
		plan.Keep(t, tx, name, do)
	})
	exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), 'other', '', n::text, sha256(n::text::bytea) FROM generate_series(1, $1::int) n`, stored)
	exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT evaluation_key(content_hash, sha256('v')), content_hash, id, 'v1', 'main', 'live' FROM ticket`)
	exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT evaluation_key(content_hash, sha256('w')), content_hash, id, 'w', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id FROM ticket`)
	exec(`INSERT INTO client_request (scope, key, fingerprint, response, response_schema, ticket_id, expires_at)
		SELECT 'acme Create', message, content_hash, '{}', 1, id, now() + interval '1 hour' FROM ticket`)
	each(func(name string, do func(tx pgx.Tx) error) {
		if name == "Rearm" || name == "FollowNow" {
			insertDead()
		}
		p := plan.Kept(t, tx, name, do)
		p.NoSeqScan("*")
		p.ReadsAtMost(most)
		if t.Failed() {
			t.Fatal(name)
		}
	})
}
