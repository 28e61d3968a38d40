package ticketdb_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// A page looks at a bounded number of tickets and returns a bounded amount of text; the pages together are the list.
func TestPagesAreBoundedAndComplete(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	const all = 12_000
	exec(`INSERT INTO provider_route (name) VALUES ('r')`)
	exec(`INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
		VALUES ('v1', 'p', 'openai', 'm', '', '[{"name": "billing"}]', 1, 1, sha256('v1'), 'r', 'test')`)
	exec(`INSERT INTO active_version (version_id, promoted_by) VALUES ('v1', 'test')`)
	// Many in each microsecond, so that positions must tell tickets of one time apart.
	exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		SELECT uuid_v7(), 'acme', '', 'ticket ' || n, sha256(n::text::bytea), '2026-01-01'::timestamptz + (n / 100) * interval '1 microsecond' FROM generate_series(1, $1) n`, all)
	exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash) VALUES (uuid_v7(), 'globex', '', 'theirs', sha256('x'))`)
	// Three of them answered: the oldest, the newest, and one between.
	exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT evaluation_key(content_hash, sha256('v1')), content_hash, id, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id
		FROM ticket WHERE message IN ('ticket 1', 'ticket 6666', $1)`, fmt.Sprintf("ticket %d", all))

	store := ticketdb.New(db)
	walk := func(f ticketdb.ListFilter, limit int) (ids []uuid.UUID, pages int) {
		t.Helper()
		var after *ticketdb.Position
		for {
			tickets, next, err := store.List(t.Context(), ticketdb.OfClient("acme"), f, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(tickets) > limit {
				t.Fatalf("%d tickets on a page of %d", len(tickets), limit)
			}
			for _, ticket := range tickets {
				ids = append(ids, ticket.ID)
			}
			if pages++; next == nil {
				return ids, pages
			}
			after = next
		}
	}
	ids, pages := walk(ticketdb.ListFilter{}, 1000)
	if len(ids) != all || pages != all/1000 {
		t.Errorf("%d tickets on %d pages, want %d on %d", len(ids), pages, all, all/1000)
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	if distinct := len(slices.Compact(ids)); distinct != all {
		t.Errorf("%d distinct tickets, want %d", distinct, all)
	}
	zero := 0.0
	for name, f := range map[string]ticketdb.ListFilter{
		"state": {State: outbox.Succeeded}, "department": {Department: "billing"}, "urgency": {MinUrgency: &zero},
	} {
		if ids, pages := walk(f, 10); len(ids) != 3 || pages != 3 {
			t.Errorf("by %s: %d tickets on %d pages, want 3 on 3 windows", name, len(ids), pages)
		}
		if ids, pages := walk(f, 1); len(ids) != 3 || pages > 6 {
			t.Errorf("by %s, one to a page: %d tickets on %d pages", name, len(ids), pages)
		}
	}
	from := time.Date(2026, 1, 1, 0, 0, 0, 100_000, time.UTC)
	if ids, _ := walk(ticketdb.ListFilter{From: from, To: from.Add(2 * time.Microsecond)}, 1000); len(ids) != 200 {
		t.Errorf("%d tickets in a range of two microseconds, want 200", len(ids))
	}

	exec(`UPDATE ticket SET message = repeat('x', 60000) WHERE client_id = 'acme' AND created_at < '2026-01-01'::timestamptz + interval '1 microsecond'`)
	tickets, next, err := store.List(t.Context(), ticketdb.OfClient("acme"), ticketdb.ListFilter{To: time.Date(2026, 1, 1, 0, 0, 0, 1000, time.UTC)}, nil, 1000)
	if err != nil || next == nil || len(tickets) != (2<<20)/60000 {
		t.Errorf("%d tickets of 60 kB on a page, next %v, %v, want 2 MiB of text", len(tickets), next, err)
	}
}

func TestOthersTicketsAreNotFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := uuid.Must(uuid.NewV7())
	if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash) VALUES ($1, 'globex', '', 'theirs', sha256('x'))`, id); err != nil {
		t.Fatal(err)
	}
	store := ticketdb.New(db)
	if _, err := store.Get(t.Context(), ticketdb.OfClient("acme"), id); !errors.Is(err, ticketdb.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
	if _, err := store.Evaluations(t.Context(), ticketdb.OfClient("acme"), id); !errors.Is(err, ticketdb.ErrNotFound) {
		t.Errorf("Evaluations: %v", err)
	}
	if tickets, _, err := store.List(t.Context(), ticketdb.OfClient("acme"), ticketdb.ListFilter{}, nil, 10); err != nil || len(tickets) != 0 {
		t.Errorf("List: %v, %v", tickets, err)
	}
	if tickets, _, err := store.List(t.Context(), ticketdb.Scope{}, ticketdb.ListFilter{}, nil, 10); err != nil || len(tickets) != 0 {
		t.Errorf("List of nobody's: %v, %v", tickets, err)
	}
	if ticket, err := store.Get(t.Context(), ticketdb.OfClient("globex"), id); err != nil || ticket.Evaluation.State != outbox.Pending {
		t.Errorf("a ticket that awaits reconciliation: %+v, %v", ticket, err)
	}
}

func TestEveryClientsTicketsAreOneList(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const each = 40
	for n, client := range []string{"acme", "a", "Zeta", "globex", "~"} {
		// The clients' tickets lie between each other's, and some are of one time.
		if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
			SELECT uuid_v7(), $1, '', 'x', sha256('x'), '2026-01-01'::timestamptz + ($2 + 7 * n) / 3 * interval '1 second' FROM generate_series(1, $3) n`, client, n, each); err != nil {
			t.Fatal(err)
		}
	}
	want := rowsOf[uuid.UUID](t, db, "SELECT id FROM ticket ORDER BY created_at DESC, id DESC")
	store := ticketdb.New(db)
	var got []uuid.UUID
	var after *ticketdb.Position
	for {
		page, next, err := store.List(t.Context(), ticketdb.EveryClient, ticketdb.ListFilter{}, after, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, ticket := range page {
			got = append(got, ticket.ID)
		}
		if after = next; after == nil {
			break
		}
	}
	if len(want) != 5*each || !slices.Equal(got, want) {
		t.Errorf("listed %d tickets, want all %d in order", len(got), len(want))
	}
	if ticket, err := store.Get(t.Context(), ticketdb.EveryClient, want[0]); err != nil || ticket.ClientID == "" {
		t.Errorf("got %+v, %v", ticket, err)
	}
	if _, err := store.Evaluations(t.Context(), ticketdb.EveryClient, want[0]); err != nil {
		t.Errorf("evaluations: %v", err)
	}
}
