package ticketdb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/pgtest/plan"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// What a request costs does not grow with what is stored: every statement of the create path and of the reads looks
// rows up, by the batch or by the page.
func TestPlans(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const stored, batch, most = 20_000, 40, 3 * 40
	if _, err := db.Exec(t.Context(), `
		INSERT INTO provider_route (name) VALUES ('r');
		INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
		VALUES ('v1', 'p', 'openai', 'm', '', '[{"name": "billing"}]', 1, 1, sha256('v1'), 'r', 'test');
		INSERT INTO active_version (version_id, promoted_by) VALUES ('v1', 'test');`); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
			SELECT uuid_v7(), 'acme', '', 'ticket ' || n, sha256(n::text::bytea), now() - n * interval '1 second' FROM generate_series(1, $1::int) n`,
		`INSERT INTO client_request (scope, key, fingerprint, response, response_schema, ticket_id, expires_at)
			SELECT 'acme Create', message, content_hash, '{}', 1, id, now() + interval '1 hour' FROM ticket LIMIT $1`,
		// Every second one is answered, the others wait.
		`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
				model_version, prompt_version, policy_version, priority, queue, model_call_id)
			SELECT evaluation_key(content_hash, sha256('v1')), content_hash, id, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id
			FROM (SELECT * FROM ticket ORDER BY created_at LIMIT $1) t WHERE extract(epoch FROM now() - created_at)::int % 2 = 0`,
		`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
			SELECT evaluation_key(content_hash, sha256('v1')), content_hash, id, 'v1', 'r', 'live'
			FROM (SELECT * FROM ticket ORDER BY created_at LIMIT $1) t WHERE extract(epoch FROM now() - created_at)::int % 2 = 1`,
		`INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, outcome, finished_at)
			SELECT model_call_id, idempotency_key, version_id, ticket_id, 1, 'answered', now() FROM evaluation_result LIMIT $1`,
	} {
		if _, err := db.Exec(t.Context(), sql, stored); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	ids := rowsOf[uuid.UUID](t, db, "SELECT id FROM ticket ORDER BY created_at LIMIT $1", batch)
	keys := rowsOf[string](t, db, "SELECT idempotency_key FROM evaluation_result LIMIT $1", batch)
	answered := make([]content.Key, len(keys))
	for i, k := range keys {
		answered[i] = content.Key(k)
	}
	if len(ids) != batch || len(answered) != batch {
		t.Fatalf("%d tickets, %d answers", len(ids), len(answered))
	}
	tickets := make([]ticketdb.NewTicket, batch)
	requests := make([]ticketdb.Request, batch)
	known := make([]ticketdb.RequestID, batch)
	for i := range tickets {
		id := uuid.Must(uuid.NewV7())
		requests[i] = ticketdb.Request{
			RequestID: ticketdb.RequestID{Scope: "acme Create", Key: fmt.Sprintf("new %d", i)}, Response: ticketdb.Response{TicketID: id},
		}
		tickets[i] = ticketdb.NewTicket{ID: id, ClientID: "acme", Request: requests[i].RequestID}
		known[i] = ticketdb.RequestID{Scope: "acme Create", Key: fmt.Sprintf("ticket %d", i+1)}
	}

	// Of a create.
	explain := func(name string, prepare, do func(ctx context.Context, tx pgx.Tx) error) *plan.Plan {
		t.Helper()
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if err := prepare(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		return plan.Named(t, tx, name, func(tx pgx.Tx) error { return do(t.Context(), tx) })
	}
	reserve := func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Reserve(ctx, tx, requests, time.Hour)
		return err
	}
	p := explain("ReserveRequests", ticketdb.PlanLookups, reserve)
	p.NoSeqScan("*")
	p.ReadsAtMost(most)

	p = explain("InsertTickets", func(ctx context.Context, tx pgx.Tx) error {
		if err := ticketdb.PlanLookups(ctx, tx); err != nil {
			return err
		}
		return reserve(ctx, tx)
	}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Insert(ctx, tx, tickets)
		return err
	})
	p.Uses("client_request_pkey")
	p.NoSeqScan("*")
	p.ReadsAtMost(most)

	p = explain("Answers", ticketdb.PlanLookups, func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Answers(ctx, tx, answered)
		return err
	})
	p.Uses("evaluation_result_pkey")
	p.Uses("model_call_*pkey")
	p.NoSeqScan("*")
	p.ReadsAtMost(most)

	// Of reads, and of replays, which have nothing but the planner's own judgement.
	alone := func(context.Context, pgx.Tx) error { return nil }
	p = explain("GetRequests", alone, func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Requests(ctx, tx, known)
		return err
	})
	p.Uses("client_request_pkey")
	p.NoSeqScan("*")
	p.ReadsAtMost(most)

	get := func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.New(tx).GetAll(ctx, ticketdb.OfClient("acme"), ids)
		return err
	}
	p = explain("GetTickets", alone, get)
	p.Uses("ticket_pkey")
	p.NoSeqScan("ticket")
	p.ReadsAtMost(most)

	shown := func(p *plan.Plan) {
		t.Helper()
		p.Uses("evaluation_result_pkey")
		p.Uses("evaluation_outbox_pkey")
		p.NoSeqScan("ticket")
		p.NoSeqScan("evaluation_*[tx]") // versions, and the months of calls to come, are few or none
	}
	p = explain("ShownEvaluations", alone, get)
	p.Uses("ticket_pkey")
	p.Uses("model_call_*pkey")
	shown(p)
	p.ReadsAtMost(most)

	p = explain("ListEvaluations", alone, func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.New(tx).Evaluations(ctx, ticketdb.OfClient("acme"), ids[0])
		return err
	})
	p.Uses("ticket_pkey")
	shown(p)
	p.ReadsAtMost(3)

	list := func(scope ticketdb.Scope, f ticketdb.ListFilter) *plan.Plan {
		t.Helper()
		return explain("ScanTickets", alone, func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := ticketdb.New(tx).List(ctx, scope, f, nil, batch)
			return err
		})
	}
	for _, scope := range []ticketdb.Scope{ticketdb.OfClient("acme"), ticketdb.EveryClient} {
		p = list(scope, ticketdb.ListFilter{})
		p.Uses("ticket_client_created")
		p.NoSeqScan("ticket")
		p.ReadsAtMost(most)
	}

	p = list(ticketdb.OfClient("acme"), ticketdb.ListFilter{State: outbox.Dead})
	p.Uses("ticket_client_created")
	shown(p)
	const window = 5_000
	p.ReadsAtMost(window)
}

// rowsOf reads one column.
func rowsOf[T any](t *testing.T, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args ...any,
) []T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return values
}
