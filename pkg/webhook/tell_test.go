package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/pgtest/plan"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook"
)

func (w *world) wantTold(endpoint, ticket uuid.UUID, want ...string) {
	w.t.Helper()
	if got := w.told(endpoint, ticket); !slices.Equal(got, want) {
		w.t.Errorf("told %q, want %q", got, want)
	}
}

const (
	succeeded1  = "evaluation.succeeded v1"
	superseded2 = "evaluation.superseded v2"
	superseded1 = "evaluation.superseded v1"
)

func TestEveryTicketOfAContentIsToldOfOnceForEachEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all, dead := w.endpoint("acme"), w.endpoint("acme", webhook.DeadLetter)
	theirs := w.endpoint("globex")
	first, second, other := w.ticket("acme", "a"), w.ticket("acme", "a"), w.ticket("globex", "a")
	w.ticket("initech", "a") // has no endpoint
	if told := w.finish("a", "v1"); told != 3 {
		t.Errorf("%d deliveries, want 3", told)
	}
	for range 2 { // the same work finished once more, as after a create that came at the same time
		if told := w.finish("a", "v1"); told != 0 {
			t.Errorf("told again: %d deliveries", told)
		}
	}
	w.wantTold(all.Endpoint.ID, first, succeeded1)
	w.wantTold(all.Endpoint.ID, second, succeeded1)
	w.wantTold(theirs.Endpoint.ID, other, succeeded1)
	w.wantTold(theirs.Endpoint.ID, first)
	w.wantTold(dead.Endpoint.ID, first)

	buried := w.ticket("acme", "b")
	if told := w.bury(buried, "b", "v1"); told != 2 {
		t.Errorf("%d deliveries of a dead letter, want 2", told)
	}
	w.wantTold(all.Endpoint.ID, buried, "evaluation.dead_letter v1")
	// It is asked again, and answered.
	w.exec(`DELETE FROM evaluation_outbox`)
	w.finish("b", "v1")
	w.wantTold(all.Endpoint.ID, buried, "evaluation.dead_letter v1", succeeded1)
	w.wantTold(dead.Endpoint.ID, buried, "evaluation.dead_letter v1")
}

func TestNewTicketsOfAKnownAnswerAreToldOfAtBirth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	w.finish("a", "v1")
	w.bury(w.ticket("globex", "b"), "b", "v1")
	born := []webhook.Born{}
	for _, text := range []string{"a", "b", "c"} {
		born = append(born, webhook.Born{TicketID: w.ticket("acme", text), Key: w.key(text, "v1")})
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		n, err := webhook.TellBorn(ctx, tx, born)
		if n != 2 {
			t.Errorf("told of %d tickets, want 2", n)
		}
		return err
	})
	w.wantTold(e, born[0].TicketID, succeeded1)
	w.wantTold(e, born[1].TicketID, "evaluation.dead_letter v1")
	w.wantTold(e, born[2].TicketID)
	w.finish("a", "v1")
	w.wantTold(e, born[0].TicketID, succeeded1)
}

func TestWhatIsDisabledOrNeverPromotedIsNotToldOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	ticket := w.ticket("acme", "a")
	w.register("candidate")
	if told := w.finish("a", "candidate"); told != 0 {
		t.Error("told of an answer that nobody is shown")
	}
	off, on := false, true
	if _, err := w.endpoints.Update(t.Context(), "acme", e, webhook.Change{Enabled: &off}); err != nil {
		t.Fatal(err)
	}
	if told := w.finish("a", "v1"); told != 0 {
		t.Error("told a disabled endpoint")
	}
	if _, err := w.endpoints.Update(t.Context(), "acme", e, webhook.Change{Enabled: &on}); err != nil {
		t.Fatal(err)
	}
	w.wantTold(e, ticket)
}

func TestAPromotionTellsOfEachAnswerThatItChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, only := w.endpoint("acme").Endpoint.ID, w.endpoint("acme", webhook.Superseded).Endpoint.ID
	var changed []uuid.UUID
	for n := range 7 {
		text := fmt.Sprint(n)
		changed = append(changed, w.ticket("acme", text))
		w.finish(text, "v1")
	}
	kept, unanswered := w.ticket("acme", "kept"), w.ticket("acme", "unanswered")
	w.finish("kept", "v1")
	w.register("v2")
	for n := range 7 {
		w.finish(fmt.Sprint(n), "v2") // reprocessed in advance
	}
	w.finish("unanswered", "v2")
	w.promote("v2")
	if told := w.supersede(3); told != 15 {
		t.Errorf("%d deliveries, want 7 for each endpoint, and 1", told)
	}
	if told := w.supersede(3); told != 0 {
		t.Errorf("told again: %d", told)
	}
	for _, ticket := range changed {
		w.wantTold(e, ticket, succeeded1, superseded2)
		w.wantTold(only, ticket, superseded2)
	}
	w.wantTold(e, kept, succeeded1)
	w.wantTold(e, unanswered, "evaluation.succeeded v2") // its first answer, whatever version it is from
	// The answer of the version before, which comes too late, is shown to nobody.
	w.finish("unanswered", "v1")
	w.wantTold(e, unanswered, "evaluation.succeeded v2")

	// Back and forth: each change is one, and what never changed for a ticket is none.
	w.promote("v1")
	w.promote("v2")
	w.supersede(100)
	w.wantTold(e, changed[0], succeeded1, superseded2)
	w.promote("v1")
	w.supersede(100)
	w.wantTold(e, changed[0], succeeded1, superseded2, superseded1)
	w.wantTold(e, kept, succeeded1)
	w.promote("v2")
	w.supersede(100)
	w.wantTold(e, changed[0], succeeded1, superseded2, superseded1, superseded2)
}

func TestAnAnswerUnderTheNewVersionSupersedesTheOneBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	old := w.ticket("acme", "a")
	w.finish("a", "v1")
	late := w.ticket("acme", "late")
	w.promote("v2")
	young := w.ticket("acme", "a") // never had the first answer
	w.finish("a", "v2")
	w.wantTold(e, old, succeeded1, superseded2)
	w.wantTold(e, young, "evaluation.succeeded v2")
	// One that was asked under v1 is answered under it: that is what it shows.
	w.finish("late", "v1")
	w.wantTold(e, late, succeeded1)
	w.finish("late", "v2")
	w.wantTold(e, late, succeeded1, superseded2)

	// Both in one transaction: the active version's is the answer.
	both := w.ticket("acme", "both")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		keys := []content.Key{w.key("both", "v1"), w.key("both", "v2")}
		for i, v := range []string{"v1", "v2"} {
			if err := answer(ctx, tx, keys[i], hashOf(t, "both"), v); err != nil {
				return err
			}
		}
		_, err := webhook.Tell(ctx, tx, keys)
		return err
	})
	w.wantTold(e, both, "evaluation.succeeded v2")
	w.supersede(100)
	w.wantTold(e, old, succeeded1, superseded2)
	w.wantTold(e, both, "evaluation.succeeded v2")
}

// A worker that settles while a promotion commits may not know of it. The promotion waits for it.
func TestAPromotionWaitsForThoseWhoMayNotKnowOfIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	ticket := w.ticket("acme", "a")
	w.finish("a", "v1")
	w.register("v2")
	settling, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = settling.Rollback(context.WithoutCancel(t.Context())) }()
	if err := answer(t.Context(), settling, w.key("a", "v2"), hashOf(t, "a"), "v2"); err != nil {
		t.Fatal(err)
	}
	if _, err := webhook.Tell(t.Context(), settling, []content.Key{w.key("a", "v2")}); err != nil {
		t.Fatal(err)
	}
	w.promote("v2")
	for range 3 {
		if p, err := webhook.Supersede(t.Context(), w.db, 100); err != nil || p.Worked {
			t.Fatalf("%+v, %v: went on while an older transaction was open", p, err)
		}
	}
	if err := settling.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.supersede(100)
	w.wantTold(e, ticket, succeeded1, superseded2)
}

// The minutes around a promotion are looked through again, for tickets that were stored under the version before.
func TestAPromotionLooksForTicketsThatWereStoredMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	w.register("v2")
	w.finish("a", "v2")
	w.promote("v2")
	w.supersede(100)
	ticket := w.ticket("acme", "a") // whose create had read v1
	w.supersede(100)
	w.wantTold(e, ticket)
	w.exec(`ALTER TABLE version_promotion DISABLE TRIGGER ALL`)
	w.exec(`UPDATE version_promotion SET promoted_at = promoted_at - interval '6 minutes'`)
	w.exec(`UPDATE ticket SET created_at = created_at - interval '6 minutes'`)
	w.exec(`UPDATE webhook_endpoint SET listening_since = listening_since - interval '6 minutes'`)
	w.supersede(100)
	w.wantTold(e, ticket, "evaluation.succeeded v2")
	if left := get[int](w, `SELECT count(*) FROM webhook_supersession WHERE state <> 'done'`); left != 0 {
		t.Errorf("%d promotions are not done", left)
	}
}

func TestTheBodySaysWhatTheAnswerIsAndNothingOfTheText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.endpoint("acme")
	w.ticket("acme", "secret words")
	w.finish("secret words", "v1")
	body := get[string](w, `SELECT convert_from(body, 'UTF8') FROM webhook_delivery`)
	want := get[string](w, `SELECT json_build_object('type', 'evaluation.succeeded', 'timestamp', to_char(d.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
		'data', json_build_object('ticket_id', t.id, 'external_id', 'ext-secret words', 'sequence', 1, 'state', 'SUCCEEDED', 'version_id', 'v1',
			'evaluation_key', r.idempotency_key, 'answer', json_build_object('department', 'billing', 'urgency_score', 0.5, 'is_urgent', 0.25,
				'model_version', 'm-1', 'prompt_version', 'p', 'policy_version', 'pol', 'priority', 'high', 'queue', 'q', 'model_call_id', r.model_call_id,
				'compute_time', to_char(r.computed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))))::text
		FROM webhook_delivery d, ticket t, evaluation_result r`)
	if squeeze(body) != squeeze(want) {
		t.Errorf("the body is\n%s\nwant\n%s", body, want)
	}
}

func squeeze(s string) string {
	return string(slices.DeleteFunc([]byte(s), func(b byte) bool { return b == ' ' }))
}

// Without an endpoint, what a worker does after each group of answers reads nothing. With one, it reads what the group
// is about.
func TestTellPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), 'acme', '', n::text, sha256(n::text::bytea) FROM generate_series(1, 20000) n`)
	w.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT evaluation_key(content_hash, $1), content_hash, id, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id FROM ticket`, digest(w, "v1"))
	w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, sequence, body)
		SELECT gen_random_uuid(), 'evaluation.succeeded', id, '', 1, '' FROM ticket`)
	w.exec("ANALYZE")
	var keys []content.Key
	rows, err := w.db.Query(t.Context(), `SELECT idempotency_key FROM evaluation_result LIMIT 100`)
	if err != nil {
		t.Fatal(err)
	}
	if keys, err = pgx.CollectRows(rows, pgx.RowTo[content.Key]); err != nil {
		t.Fatal(err)
	}
	explain := func(statement string) *plan.Plan {
		tx, err := w.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		return plan.Named(t, tx, statement, func(tx pgx.Tx) error {
			_, err := webhook.Tell(t.Context(), tx, keys)
			return err
		})
	}
	explain("LockTickets").ReadsAtMost(1)
	w.endpoint("acme")
	w.endpoint("globex")
	for _, statement := range []string{"LockTickets", "Tell"} {
		p := explain(statement)
		p.ReadsAtMost(400)
		p.NoSeqScan("ticket")
		p.NoSeqScan("evaluation_result")
		p.NoSeqScan("webhook_delivery")
	}
}

func digest(w *world, version string) []byte {
	d := w.versions[version].Digest()
	return d[:]
}

// A chunk of a promotion reads its own tickets, however many there are, and of clients that want to know.
func TestPromotionPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.endpoint("acme")
	w.register("v2")
	w.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), CASE n % 2 WHEN 0 THEN 'acme' ELSE 'globex' END, '', n::text, sha256(n::text::bytea) FROM generate_series(1, 40000) n`)
	w.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT evaluation_key(content_hash, $1), content_hash, id, 'v2', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id FROM ticket`, digest(w, "v2"))
	w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, sequence, body)
		SELECT gen_random_uuid(), 'evaluation.succeeded', id, '', 1, '' FROM ticket`)
	w.exec("ANALYZE")
	w.promote("v2")
	if _, err := webhook.Supersede(t.Context(), w.db, 100); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE webhook_supersession SET barrier = '1'`)
	for _, statement := range []string{"NextTickets", "Tell"} {
		tx, err := w.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := plan.Named(t, tx, statement, func(tx pgx.Tx) error {
			beginner, ok := tx.(postgres.Beginner)
			if !ok {
				t.Fatal("the transaction begins none")
			}
			_, err := webhook.Supersede(t.Context(), beginner, 100)
			return err
		})
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.ReadsAtMost(400)
		p.NoSeqScan("ticket")
		p.NoSeqScan("evaluation_result")
	}
}

// Who begins to listen while a promotion is worked off hears of tickets that are new to it, and of no older ones.
func TestAPromotionIsNotToldToThoseWhoListenSince(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.endpoint("acme").Endpoint.ID
	old := w.ticket("acme", "old")
	w.register("v2")
	w.finish("old", "v1")
	w.finish("old", "v2")
	w.promote("v2")
	since := w.endpoint("acme").Endpoint.ID
	young := w.ticket("acme", "young") // by somebody who knows v1 alone
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		return answer(ctx, tx, w.key("young", "v2"), hashOf(t, "young"), "v2")
	})
	w.supersede(10)
	if told := w.told(before, old); !slices.Equal(told, []string{"evaluation.succeeded v1", "evaluation.superseded v2"}) {
		t.Errorf("the one that listened before was told %v", told)
	}
	if told := w.told(since, old); len(told) != 0 {
		t.Errorf("the one that listens since was told %v of an older ticket", told)
	}
	if told := w.told(since, young); !slices.Equal(told, []string{"evaluation.succeeded v2"}) {
		t.Errorf("the one that listens since was told %v of a new one", told)
	}
}
