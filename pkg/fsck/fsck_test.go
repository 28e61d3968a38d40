package fsck_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/postgres"
)

func check(t *testing.T, db fsck.Beginner) []fsck.Finding {
	t.Helper()
	report, err := fsck.Run(t.Context(), db, fsck.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Violations {
		if f.Note {
			t.Errorf("the note %s is reported as a violation", f.Name)
		}
	}
	for _, f := range report.Notes {
		if !f.Note {
			t.Errorf("the violation %s is reported as a note", f.Name)
		}
	}
	return append(report.Violations, report.Notes...)
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	for _, f := range check(t, w.db) {
		t.Errorf("found %s", f)
	}
	// Every state is there, so that the checks had something to look at.
	for sql, want := range map[string]string{
		"SELECT string_agg(DISTINCT status, ' ' ORDER BY status) FROM evaluation_outbox": "dead pending processing",
		"SELECT string_agg(DISTINCT outcome, ' ' ORDER BY outcome) FROM model_call":      "answered failed open rejected saved unknown unsent",
	} {
		var got string
		if err := w.db.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", sql, got, err, want)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, f := range check(t, w.db) {
		t.Errorf("found %s", f)
	}
}

// breakages break a healthy database in one way each, which one check finds and no other. They return what is to
// be named.
var breakages = map[string]map[string]func(*world) string{
	"webhook_forgotten": {
		"not told": func(w *world) string {
			w.exec("DELETE FROM webhook_delivery WHERE ticket_id = $1", w.tickets["answered"])
			return w.tickets["answered"].String()
		},
	},
	"webhook_dead_letter_forgotten": {
		"not told": func(w *world) string {
			w.exec("DELETE FROM webhook_delivery WHERE ticket_id = $1", w.tickets["refused"])
			w.exec("UPDATE evaluation_outbox SET dead_at = now() WHERE idempotency_key = $1", string(w.keys["refused"]))
			return w.tickets["refused"].String()
		},
	},
	"webhook_outdated": {
		"told of another answer": func(w *world) string {
			w.exec("UPDATE webhook_delivery SET idempotency_key = 'another' WHERE ticket_id = $1", w.tickets["answered"])
			return w.tickets["answered"].String()
		},
	},
	"webhook_told_twice": {
		"two first answers": func(w *world) string {
			w.exec("UPDATE webhook_delivery SET sequence = 2 WHERE ticket_id = $1", w.tickets["answered"])
			w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, sequence, body)
				SELECT endpoint_id, event, ticket_id, 'another', 1, '' FROM webhook_delivery WHERE ticket_id = $1`, w.tickets["answered"])
			return w.tickets["answered"].String()
		},
	},
	"webhook_misnumbered": {
		"a gap": func(w *world) string {
			w.exec("UPDATE webhook_delivery SET sequence = 2 WHERE ticket_id = $1", w.tickets["answered"])
			return w.tickets["answered"].String()
		},
	},
	"webhook_of_no_ticket": {
		"another client's": func(w *world) string {
			w.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
				SELECT gen_random_uuid(), 'globex', subject, message, content_hash FROM ticket WHERE id = $1`, w.tickets["answered"])
			w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, sequence, body)
				SELECT e.id, 'evaluation.succeeded', t.id, 'x', 1, '' FROM webhook_endpoint e, ticket t WHERE t.client_id = 'globex'`)
			var id string
			if err := w.db.QueryRow(w.t.Context(), "SELECT id FROM ticket WHERE client_id = 'globex'").Scan(&id); err != nil {
				w.t.Fatal(err)
			}
			return id
		},
	},
	"webhook_lease_expired": {
		"a dead worker": func(w *world) string {
			w.exec(`UPDATE webhook_delivery SET state = 'sending', lease_id = gen_random_uuid(), locked_by = 'w', locked_until = now() - interval '1 second'
				WHERE ticket_id = $1`, w.tickets["answered"])
			var id string
			if err := w.db.QueryRow(w.t.Context(), "SELECT id FROM webhook_delivery WHERE ticket_id = $1", w.tickets["answered"]).Scan(&id); err != nil {
				w.t.Fatal(err)
			}
			return id
		},
	},
	"ticket_without_work": {
		"work deleted": func(w *world) string {
			w.exec("DELETE FROM evaluation_outbox WHERE idempotency_key = $1", string(w.keys["throttled"]))
			w.exec("DELETE FROM model_call WHERE idempotency_key = $1", string(w.keys["throttled"]))
			return w.tickets["throttled"].String()
		},
		"ticket alone": func(w *world) string {
			w.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
			        VALUES ('01900000-0000-7000-8000-000000000000', 'acme', '', 'x', sha256('x'))`)
			return "01900000-0000-7000-8000-000000000000"
		},
	},
	"request_without_ticket": {
		"no ticket": func(w *world) string {
			w.exec("UPDATE client_request SET ticket_id = '01900000-0000-7000-8000-000000000000' WHERE ticket_id = $1", w.tickets["refused"])
			return "01900000-0000-7000-8000-000000000000"
		},
		"another client": func(w *world) string {
			w.exec("UPDATE client_request SET scope = 'acm CreateTicket' WHERE ticket_id = $1", w.tickets["refused"])
			return w.tickets["refused"].String()
		},
	},
	"response_bought_again": {
		"after the answer": func(w *world) string {
			w.call(w.keys["answered"], "v1", "unknown", time.Second)
			return string(w.keys["answered"])
		},
		"after a refusal, without success": func(w *world) string {
			w.call(w.keys["refused"], "v1", "failed", time.Second)
			return string(w.keys["refused"])
		},
		"within a life": func(w *world) string {
			w.call(w.keys["recalled and refused"], "v1", "failed", time.Second)
			return string(w.keys["recalled and refused"])
		},
		"within a life that is over": func(w *world) string {
			w.call(w.keys["recalled"], "v1", "failed", -time.Second)
			w.exec(`UPDATE model_call m SET recalled_by = c.recalled_by, finished_at = now() FROM model_call c
			        WHERE c.id = $1 AND m.idempotency_key = c.idempotency_key AND m.outcome = 'failed'`, w.calls["recalled"])
			w.exec("UPDATE model_call SET finished_at = now() - interval '2 seconds' WHERE id = $1", w.calls["recalled"])
			w.exec("UPDATE reprocess_job SET created_at = now() + interval '1 hour'")
			return string(w.keys["recalled"])
		},
		"an answer, in another life": func(w *world) string {
			// A late answer of a call that was recalled is the answer all the same.
			w.call(w.keys["recalled and answered late"], "hold", "failed", time.Second)
			return string(w.keys["recalled and answered late"])
		},
		"in spite of a saved response": func(w *world) string {
			w.call(w.keys["saved"], "v1", "failed", time.Second)
			return string(w.keys["saved"])
		},
	},
	"paid_twice": {
		"beside the answer": func(w *world) string {
			w.call(w.keys["answered"], "v1", "answered", -time.Hour)
			w.exec("UPDATE model_call SET finished_at = now() + interval '1 hour' WHERE idempotency_key = $1 AND id <> $2",
				string(w.keys["answered"]), w.calls["answered"])
			return string(w.keys["answered"])
		},
		"beside a late answer": func(w *world) string {
			w.exec("UPDATE model_call SET late = false WHERE id = $1", w.calls["late"])
			return string(w.keys["late"])
		},
		"twice refused in the same life": func(w *world) string {
			w.call(w.keys["recalled and refused"], "v1", "rejected", -time.Hour)
			w.exec("UPDATE model_call SET finished_at = now() + interval '1 hour' WHERE idempotency_key = $1 AND recalled_by IS NULL", string(w.keys["recalled and refused"]))
			return string(w.keys["recalled and refused"])
		},
		"twice refused": func(w *world) string {
			w.call(w.keys["refused"], "v1", "rejected", -time.Hour)
			w.exec("UPDATE model_call SET finished_at = now() + interval '1 hour' WHERE idempotency_key = $1", string(w.keys["refused"]))
			return string(w.keys["refused"])
		},
	},
	"paid_too_often": {
		"resend": func(w *world) string {
			// Before the others, so that nothing is bought after it has arrived.
			w.call(w.keys["never answered"], "v1", "unknown", -time.Hour)
			w.exec("UPDATE evaluation_outbox SET unknown_calls = unknown_calls + 1 WHERE idempotency_key = $1", string(w.keys["never answered"]))
			return string(w.keys["never answered"])
		},
		"hold, in one life": func(w *world) string {
			w.call(w.keys["recalled and held"], "hold", "unknown", -time.Hour)
			w.exec("UPDATE evaluation_outbox SET unknown_calls = unknown_calls + 1 WHERE idempotency_key = $1", string(w.keys["recalled and held"]))
			return string(w.keys["recalled and held"])
		},
		"hold": func(w *world) string {
			w.call(w.keys["late, of dead work"], "hold", "unknown", -time.Hour)
			return string(w.keys["late, of dead work"])
		},
	},
	"unknown_calls_differ": {
		"recalled ones counted": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET unknown_calls = 1 WHERE idempotency_key = $1", string(w.keys["recalled and waiting"]))
			return string(w.keys["recalled and waiting"])
		},
		"too many": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET unknown_calls = 2 WHERE idempotency_key = $1", string(w.keys["unknown once"]))
			return string(w.keys["unknown once"])
		},
		"forgotten": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET unknown_calls = 0 WHERE idempotency_key = $1", string(w.keys["unknown once"]))
			return string(w.keys["unknown once"])
		},
		"late": func(w *world) string {
			w.exec("UPDATE model_call SET late = false WHERE id = $1", w.calls["refused late"])
			return string(w.keys["refused late"])
		},
		"never made": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET unknown_calls = 1 WHERE idempotency_key = $1", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
	},
	"open_call_without_lease": {
		"of waiting work": func(w *world) string {
			w.exec(`UPDATE model_call SET outcome = 'open', finished_at = NULL WHERE id = $1`, w.calls["throttled"])
			return w.calls["throttled"].String()
		},
		"of dead work": func(w *world) string {
			w.exec(`UPDATE model_call SET outcome = 'open', finished_at = NULL
			        WHERE idempotency_key = $1 AND id <> $2`, string(w.keys["never answered"]), w.calls["never answered"])
			w.exec("UPDATE evaluation_outbox SET unknown_calls = 1 WHERE idempotency_key = $1", string(w.keys["never answered"]))
			return "2"
		},
		"of another lease": func(w *world) string {
			w.call(w.keys["processing"], "v1", "open", 0)
			return "1"
		},
	},
	"lease_without_call": {
		"closed": func(w *world) string {
			w.exec("UPDATE model_call SET outcome = 'unsent', finished_at = now() WHERE id = $1", w.calls["processing"])
			return string(w.keys["processing"])
		},
		"never opened": func(w *world) string {
			w.exec("DELETE FROM model_call WHERE id = $1", w.calls["processing"])
			return string(w.keys["processing"])
		},
		"but for what was recalled": func(w *world) string {
			w.exec("DELETE FROM model_call WHERE idempotency_key = $1 AND outcome = 'open'", string(w.keys["recalled and under way"]))
			return string(w.keys["recalled and under way"])
		},
	},
	"lease_with_two_calls": {
		"": func(w *world) string {
			w.exec(`UPDATE model_call m SET lease_id = o.lease_id FROM model_call o WHERE m.id = $1 AND o.id <> $1 AND o.idempotency_key = m.idempotency_key`,
				w.calls["retried"])
			return string(w.keys["retried"])
		},
	},
	"attempt_out_of_bounds": {
		"too many": func(w *world) string {
			w.exec("UPDATE model_call SET attempt = 9 WHERE id = $1", w.calls["spent"])
			return w.calls["spent"].String()
		},
		"none": func(w *world) string {
			w.exec("UPDATE model_call SET attempt = 0 WHERE id = $1", w.calls["answered"])
			return w.calls["answered"].String()
		},
	},
	"recall_without_replay": {
		"no such replay": func(w *world) string {
			w.exec("UPDATE model_call SET recalled_by = gen_random_uuid() WHERE id = $1", w.calls["recalled"])
			return w.calls["recalled"].String()
		},
		"another job": func(w *world) string {
			w.exec("UPDATE reprocess_job SET kind = 'policy' WHERE id = (SELECT recalled_by FROM model_call WHERE id = $1)", w.calls["recalled"])
			return w.calls["recalled"].String()
		},
		"a replay that calls nobody": func(w *world) string {
			w.exec(`UPDATE reprocess_job SET spec = '{"mode": "revalidate"}' WHERE id = (SELECT recalled_by FROM model_call WHERE id = $1)`, w.calls["recalled"])
			return w.calls["recalled"].String()
		},
		"a replay that is older": func(w *world) string {
			w.exec("UPDATE reprocess_job SET created_at = created_at - interval '1 hour' WHERE id = (SELECT recalled_by FROM model_call WHERE id = $1)", w.calls["recalled"])
			return w.calls["recalled"].String()
		},
	},
	"call_without_evaluation": {
		"no such key": func(w *world) string {
			w.call(content.Key(strings.Repeat("0", 32)), "v1", "unknown", 0)
			return "1"
		},
		"another version": func(w *world) string {
			w.exec("UPDATE model_call SET version_id = 'next' WHERE id = $1", w.calls["lost"])
			return w.calls["lost"].String()
		},
	},
	"response_lost": {
		"nobody left to judge it": func(w *world) string {
			// An identical ticket under another version keeps the content from being without work.
			w.submit("saved", "next")
			w.exec("DELETE FROM evaluation_outbox WHERE version_id = 'v1' AND idempotency_key IN (SELECT idempotency_key FROM model_call WHERE outcome = 'saved')")
			return w.calls["saved"].String()
		},
		"nothing in it": func(w *world) string {
			w.exec("UPDATE model_call SET response = NULL WHERE id = $1", w.calls["saved"])
			return w.calls["saved"].String()
		},
	},
	"answer_without_result": {
		"": func(w *world) string {
			w.call(w.keys["pending"], "v1", "answered", 0)
			return "1"
		},
	},
	"dead_beside_result": {
		"": func(w *world) string {
			w.again("retried", "dead")
			return string(w.keys["retried"])
		},
	},
	"dead_without_cause": {
		"no call": func(w *world) string {
			w.exec("DELETE FROM model_call WHERE id = $1", w.calls["spent"])
			return string(w.keys["spent"])
		},
		"but for what was recalled": func(w *world) string {
			w.exec("DELETE FROM model_call WHERE idempotency_key = $1 AND recalled_by IS NULL", string(w.keys["recalled and refused"]))
			return string(w.keys["recalled and refused"])
		},
		"no call that ended": func(w *world) string {
			w.exec("UPDATE model_call SET outcome = 'unsent' WHERE id = $1", w.calls["spent"])
			return string(w.keys["spent"])
		},
		"no reason": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET last_reason = '' WHERE idempotency_key = $1", string(w.keys["spent"]))
			return string(w.keys["spent"])
		},
		"no class": func(w *world) string {
			w.unchecked("evaluation_outbox")
			w.exec("UPDATE evaluation_outbox SET last_class = NULL WHERE idempotency_key = $1", string(w.keys["spent"]))
			return string(w.keys["spent"])
		},
		"no time": func(w *world) string {
			w.unchecked("evaluation_outbox")
			w.exec("UPDATE evaluation_outbox SET dead_at = NULL WHERE idempotency_key = $1", string(w.keys["spent"]))
			return string(w.keys["spent"])
		},
	},
	"work_without_text": {
		"": func(w *world) string {
			w.exec("UPDATE ticket SET subject = '', message = '', erased_at = now() WHERE content_hash = (SELECT content_hash FROM evaluation_outbox WHERE idempotency_key = $1)", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
	},
	"dead_by_outage": {
		"quota": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET last_class = 'operator', last_reason = 'quota_exhausted' WHERE idempotency_key = $1", string(w.keys["spent"]))
			return string(w.keys["spent"])
		},
		"rate limit": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET last_class = 'throttled', last_reason = 'rate_limited' WHERE idempotency_key = $1", string(w.keys["spent"]))
			return string(w.keys["spent"])
		},
	},
	"unroutable_work": {
		"another route": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET route = 'route-next' WHERE idempotency_key = $1", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
		"no such route": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET route = 'nowhere' WHERE idempotency_key = $1", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
	},
	"key_differs": {
		"work": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET idempotency_key = repeat('0', 32) WHERE idempotency_key = $1", string(w.keys["pending"]))
			return strings.Repeat("0", 32)
		},
		"result": func(w *world) string {
			w.exec("UPDATE evaluation_result SET idempotency_key = repeat('0', 32) WHERE idempotency_key = $1", string(w.keys["answered"]))
			w.exec("UPDATE model_call SET idempotency_key = repeat('0', 32) WHERE idempotency_key = $1", string(w.keys["answered"]))
			return strings.Repeat("0", 32)
		},
		"no such version": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET version_id = 'gone' WHERE idempotency_key = $1", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
	},
	"content_differs": {
		"work": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET ticket_id = $2 WHERE idempotency_key = $1", string(w.keys["pending"]), w.tickets["spent"])
			return string(w.keys["pending"])
		},
		"result": func(w *world) string {
			w.exec("UPDATE evaluation_result SET ticket_id = $2 WHERE idempotency_key = $1", string(w.keys["answered"]), w.tickets["spent"])
			return string(w.keys["answered"])
		},
		"no such ticket": func(w *world) string {
			w.exec("UPDATE evaluation_result SET ticket_id = gen_random_uuid() WHERE idempotency_key = $1", string(w.keys["answered"]))
			return string(w.keys["answered"])
		},
	},
	"result_without_answer": {
		"no such call": func(w *world) string {
			w.exec("UPDATE evaluation_result SET model_call_id = gen_random_uuid() WHERE idempotency_key = $1", string(w.keys["answered"]))
			return string(w.keys["answered"])
		},
		"a call of another key": func(w *world) string {
			w.exec("UPDATE evaluation_result SET model_call_id = $2 WHERE idempotency_key = $1", string(w.keys["answered"]), w.calls["saved and judged"])
			return string(w.keys["answered"])
		},
		"a call of another version": func(w *world) string {
			w.exec("UPDATE model_call SET version_id = 'next' WHERE id = $1", w.calls["answered"])
			return string(w.keys["answered"])
		},
		"a call that was lost": func(w *world) string {
			w.exec("UPDATE evaluation_result SET model_call_id = $2 WHERE idempotency_key = $1", string(w.keys["lost"]), w.calls["lost"])
			return string(w.keys["lost"])
		},
	},
	"answer_off_contract": {
		"department": func(w *world) string {
			w.exec("UPDATE evaluation_result SET department = 'Billing' WHERE idempotency_key = $1", string(w.keys["answered"]))
			return string(w.keys["answered"])
		},
		"prompt": func(w *world) string {
			w.exec("UPDATE evaluation_result SET prompt_version = 'next-prompt' WHERE idempotency_key = $1", string(w.keys["answered"]))
			return string(w.keys["answered"])
		},
		"policy": func(w *world) string {
			w.exec("UPDATE evaluation_result SET policy_version = '' WHERE idempotency_key = $1", string(w.keys["answered"]))
			return string(w.keys["answered"])
		},
	},
	"active_version_differs": {
		"changed without a promotion": func(w *world) string {
			w.exec("UPDATE active_version SET version_id = 'next'")
			return "next"
		},
		"none": func(w *world) string {
			w.exec("DELETE FROM active_version")
			return "v1"
		},
		"never promoted": func(w *world) string {
			w.exec("DELETE FROM version_promotion")
			return "v1"
		},
	},
	"active_policy_differs": {
		"changed without an activation": func(w *world) string {
			w.exec("INSERT INTO policy (id, urgent_threshold, rules, digest, created_by) SELECT 'next', urgent_threshold, rules, sha256('next'), 'test' FROM policy")
			w.exec("UPDATE active_policy SET policy_id = 'next'")
			return "next"
		},
		"never activated": func(w *world) string {
			w.exec("ALTER TABLE policy_activation DISABLE TRIGGER ALL")
			w.exec("DELETE FROM policy_activation")
			return "builtin-1"
		},
	},
	"held_for_nobody": {
		"no job": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET available_at = 'infinity' WHERE idempotency_key = $1", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
		"a job that is done": func(w *world) string {
			w.exec("INSERT INTO reprocess_job (id, kind, spec, state, created_by, finished_at) VALUES ('01a22d32-0000-7000-8000-000000000001', 'evaluate', '{}', 'done', 'test', now())")
			w.exec("UPDATE evaluation_outbox SET available_at = 'infinity', lane = 'bulk', job_id = '01a22d32-0000-7000-8000-000000000001' WHERE idempotency_key = $1", string(w.keys["pending"]))
			return string(w.keys["pending"])
		},
	},
	"charge_differs": {
		"an answer": func(w *world) string {
			w.exec("UPDATE model_call SET cost_usd = cost_usd + 0.001 WHERE id = $1", w.calls["charged"])
			return w.calls["charged"].String()
		},
		"a failure that cost something": func(w *world) string {
			w.exec("UPDATE model_call SET cost_usd = 0.001 WHERE id = $1", w.calls["charged and failed"])
			return w.calls["charged and failed"].String()
		},
		"a failure": func(w *world) string {
			w.exec("UPDATE model_call SET charged_usd = 0.001 WHERE id = $1", w.calls["charged and failed"])
			w.exec("UPDATE spend SET used_usd = used_usd + 0.001 WHERE period_start = spend_period(period, now())")
			return w.calls["charged and failed"].String()
		},
	},
	"spend_differs": {
		"by a charge that was forgotten": func(w *world) string {
			w.exec("UPDATE spend SET used_usd = used_usd + 0.000001 WHERE period = 'day' AND period_start = spend_period('day', now())")
			return w.text("SELECT '*, day of ' || spend_period('day', now())")
		},
		"by a call that is charged no more": func(w *world) string {
			w.exec("UPDATE model_call SET charged_usd = NULL WHERE id = $1", w.calls["charged and open"])
			return "2"
		},
		"by what was not charged": func(w *world) string {
			w.exec("UPDATE spend SET uncharged_usd = 0 WHERE scope = 'route-v1' AND period_start = spend_period('month', now())")
			return w.text("SELECT 'route-v1, month of ' || spend_period('month', now())")
		},
	},
	"calls_over_limit": {
		"": func(w *world) string {
			w.exec("UPDATE provider_route SET concurrent_calls = 1 WHERE name = 'route-v1'")
			return "route-v1"
		},
	},
	"work_beside_result": {
		"waiting": func(w *world) string {
			w.again("answered", "pending")
			return string(w.keys["answered"])
		},
		"claimed": func(w *world) string {
			w.again("lost", "processing")
			return string(w.keys["lost"])
		},
	},
	"lease_expired": {
		"": func(w *world) string {
			w.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 second' WHERE idempotency_key = $1", string(w.keys["processing"]))
			return string(w.keys["processing"])
		},
	},
	"model_substituted": {
		"another": func(w *world) string {
			w.exec("UPDATE model_call SET served_model = 'another' WHERE id = $1", w.calls["lost"])
			return w.calls["lost"].String()
		},
		"a longer name": func(w *world) string {
			w.exec("UPDATE model_call c SET served_model = v.model || '-mini' FROM evaluator_version v WHERE v.id = c.version_id AND c.id = $1", w.calls["lost"])
			return w.calls["lost"].String()
		},
	},
	"response_unused": {
		"dead": func(w *world) string {
			w.drain()
			late := w.start("unused", "hold", lapsed)
			w.reclaim()
			w.save(late, 0)
			return late.CallID.String()
		},
		"answered": func(w *world) string {
			w.exec("UPDATE model_call SET outcome = 'saved', late = true, response = '{}', finished_at = now() + interval '1 hour' WHERE id = $1", w.calls["lost"])
			return w.calls["lost"].String()
		},
	},
	"text_left": {
		"a response": func(w *world) string {
			w.exec("UPDATE model_call SET response = '{}' WHERE id = $1", w.calls["erased when answered"])
			return w.calls["erased when answered"].String()
		},
		"words of an error": func(w *world) string {
			w.exec("UPDATE model_call SET error = 'your text' WHERE id = $1", w.calls["erased when dead"])
			return w.calls["erased when dead"].String()
		},
	},
	"call_in_default_partition": {
		"": func(w *world) string {
			w.exec("UPDATE model_call SET id = uuid_v7('1999-12-31') WHERE id = $1", w.calls["spent"])
			return "1"
		},
	},
}

func (w *world) text(sql string) string {
	w.t.Helper()
	var text string
	if err := w.db.QueryRow(w.t.Context(), sql).Scan(&text); err != nil {
		w.t.Fatal(err)
	}
	return text
}

// drain keeps the waiting work out of the way of further claims.
func (w *world) drain() {
	w.t.Helper()
	w.exec("UPDATE evaluation_outbox SET available_at = now() + interval '1 hour' WHERE status = 'pending'")
}

// unchecked drops the CHECK constraints of a table.
func (w *world) unchecked(table string) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), "SELECT conname FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'", table)
	if err != nil {
		w.t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		w.exec("ALTER TABLE " + table + " DROP CONSTRAINT " + pgx.Identifier{name}.Sanitize())
	}
}

func TestEachCheckFindsItsBreakage(t *testing.T) {
	t.Parallel()
	sound := healthy(t)
	for name, ways := range breakages {
		for way, damage := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				sound.vanishing(t, func(w *world) {
					want := damage(w)
					found := check(t, w.db)
					if len(found) != 1 || found[0].Name != name {
						t.Fatalf("found %v, want %s alone", found, name)
					}
					f := found[0]
					switch want {
					case "1", "2": // how many, where the ids are not known
						if len(f.Examples) != int(want[0]-'0') || f.Count != len(f.Examples) {
							t.Errorf("found %s, want %s", f, want)
						}
					default:
						if f.Count != 1 || !slices.Equal(f.Examples, []string{want}) {
							t.Errorf("found %s, want %s", f, want)
						}
					}
				})
			})
		}
	}
}

func TestEveryCheckHasABreakage(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range fsck.Checks() {
		if seen[c.Name] || c.Promise == "" {
			t.Errorf("check %q is there twice or promises nothing", c.Name)
		}
		seen[c.Name] = true
		if len(breakages[c.Name]) == 0 {
			t.Errorf("check %s has never found anything", c.Name)
		}
	}
	for name := range breakages {
		if !seen[name] {
			t.Errorf("there is no check %s", name)
		}
	}
}

// A response that came after its call was taken for lost explains the second call, and only as long as that was
// opened before.
func TestLateResponseExplainsOnlyWhatCameBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := w.start("late", "v1", lapsed)
	w.reclaim()
	second := w.claim("late", "v1", time.Hour)
	w.bury(late, ledger.Rejected, failure.Refusal) // the work is the second worker's, and stays
	if found := check(t, w.db); len(found) != 0 {
		t.Fatalf("found %v", found)
	}
	w.bury(second, ledger.Rejected, failure.Refusal)
	if found := check(t, w.db); len(found) != 0 {
		t.Fatalf("found %v", found)
	}
	w.call(w.keys["late"], "v1", "failed", time.Second)
	if found := check(t, w.db); len(found) != 1 || found[0].Name != "response_bought_again" {
		t.Errorf("found %v, want response_bought_again", found)
	}
}

// The lease is the second worker's, so the work stays beside the first worker's answer until its next claim.
func TestLateAnswerLeavesWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := w.start("late", "v1", lapsed)
	w.reclaim()
	w.claim("late", "v1", lapsed)
	w.answer(late)
	if found := check(t, w.db); len(found) != 2 || found[0].Name != "work_beside_result" || found[1].Name != "lease_expired" {
		t.Errorf("found %v, want work_beside_result and lease_expired", found)
	}
	w.reclaim()
	w.answer(w.claim("late", "v1", time.Hour))
	if found := check(t, w.db); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}

func TestExamplesAreTheFirstOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
	        SELECT ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'c', '', 'x', sha256(n::text::bytea)
	        FROM generate_series(0, 99) n`)
	var told []fsck.Finding
	report, err := fsck.Run(t.Context(), w.db, fsck.Options{Examples: 2, Found: func(f fsck.Finding) { told = append(told, f) }})
	if err != nil {
		t.Fatal(err)
	}
	want := "ticket_without_work: 100 (01900000-0000-7000-8000-000000000000, 01900000-0000-7000-8000-000000000001, …), " +
		"where: every ticket has, under some version, work or a result"
	if report.Healthy() || len(report.Violations) != 1 || report.Violations[0].String() != want {
		t.Errorf("found %v, want %s", report.Violations, want)
	}
	if len(told) != 1 || told[0].String() != want {
		t.Errorf("was told %v", told)
	}
	if report, err = fsck.Run(t.Context(), w.db, fsck.Options{}); err != nil || len(report.Violations[0].Examples) != 10 {
		t.Errorf("%d examples, %v; want 10", len(report.Violations[0].Examples), err)
	}
}

// A run must be good on a replica, and for a role that can only read.
func TestReadsOneSnapshotAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	conn, err := w.db.(*pgxpool.Pool).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	spy := &recorder{Beginner: conn}
	if _, err := fsck.Run(t.Context(), spy, fsck.Options{}); err != nil {
		t.Fatal(err)
	}
	if want := (pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}); len(spy.opts) != 1 || spy.opts[0] != want {
		t.Errorf("began %v, want one %v", spy.opts, want)
	}
	// The connection is as it was before: no transaction, no timeout left behind.
	var timeout string
	if err := conn.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&timeout); err != nil || timeout != "0" || conn.Conn().PgConn().TxStatus() != 'I' {
		t.Errorf("statement_timeout is %s, transaction %c, %v", timeout, conn.Conn().PgConn().TxStatus(), err)
	}
}

type recorder struct {
	fsck.Beginner
	opts []pgx.TxOptions
}

func (r *recorder) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	r.opts = append(r.opts, opts)
	return r.Beginner.BeginTx(ctx, opts)
}

func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// A check that waits for a lock has run out of time as well as one that computes for too long.
	lock, err := w.db.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := lock.Exec(t.Context(), "LOCK TABLE client_request IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	_, err = fsck.Run(t.Context(), w.db, fsck.Options{StatementTimeout: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "check request_without_ticket") || postgres.ConnectionLost(err) {
		t.Errorf("%v, want the statement timeout of request_without_ticket", err)
	}
}
