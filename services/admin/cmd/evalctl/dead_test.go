package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/admin/internal/api"
	"github.com/evalonce/evalonce/services/admin/internal/job"
)

// mourning is an operator who has 6 dead letters under v1: of those that were refused, 4, a response is stored.
func mourning(t *testing.T) (*operator, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	jobs := job.New(job.Options{
		DB: db, Steps: api.Steps(), Worker: "test", Poll: 10 * time.Millisecond, Lease: time.Minute, Retry: time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	o := serve(t, api.Policy(), func(r grpc.ServiceRegistrar) { api.Register(r, db, db, jobs) })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- jobs.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the jobs ended with %v", err)
		}
	})
	o.must("version", "register", "-f", file(t, "v1.yaml", yamlVersion("v1", "Sort")))
	sow(t, db, `WITH n AS (SELECT n, n < 4 AS refused, sha256(n::text::bytea) AS hash, uuid_v7() AS ticket FROM generate_series(0, 5) n),
		ticket AS (INSERT INTO ticket (id, client_id, subject, message, content_hash) SELECT ticket, 'acme', 'secret', n::text, hash FROM n),
		call AS (INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, started_at, finished_at, outcome, class, reason, http_status, response, cost_usd)
		         SELECT uuid_v7(now() - interval '2 hours'), evaluation_key(hash, v.digest), v.id, gen_random_uuid(), 1, now() - interval '2 hours', now() - interval '1 hour',
		                CASE WHEN refused THEN 'rejected' ELSE 'failed' END, CASE WHEN refused THEN 'permanent' ELSE 'transient' END,
		                CASE WHEN refused THEN 'refusal' ELSE 'server_error' END, 200, CASE WHEN refused THEN '{"refusal": "no"}'::bytea END, CASE WHEN refused THEN 0.25 END
		         FROM n, evaluator_version v)
		INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status, attempts, dead_at, last_class, last_reason, last_error)
		SELECT evaluation_key(hash, v.digest), hash, ticket, v.id, v.route, 'live', 'dead', 1, now() - interval '1 hour',
		       CASE WHEN refused THEN 'permanent' ELSE 'transient' END, CASE WHEN refused THEN 'refusal' ELSE 'attempts_spent' END, '=the provider says so'
		FROM n, evaluator_version v`)
	return o, db
}

func sow(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// shows checks that an output holds all parts.
func (got outcome) shows(t *testing.T, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got.out, part) {
			t.Errorf("the output is\n%s\nwithout %q", got.out, part)
		}
	}
}

func (o *operator) decodes(into any, args ...string) {
	o.t.Helper()
	got := o.must(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(got.out), into); err != nil {
		o.t.Fatalf("%s: %v in %s", strings.Join(args, " "), err, got.out)
	}
}

func TestDeadLettersOnTheCommandLine(t *testing.T) {
	t.Parallel()
	o, _ := mourning(t)
	o.must("dead", "groups").shows(t, "CLASS", "permanent  refusal", "transient  attempts_spent")
	var list struct {
		Letters []struct {
			Key      string `json:"key"`
			TicketID string `json:"ticket_id"`
		} `json:"dead_letters"`
	}
	o.decodes(&list, "dead", "list", "--of", "refusal")
	if len(list.Letters) != 4 {
		t.Fatalf("listed %v", list)
	}
	key := list.Letters[0].Key
	for _, id := range []string{key, list.Letters[0].TicketID} {
		o.must("dead", "get", id).shows(t, key, "permanent: refusal", `{"refusal": "no"}`, "=the provider says so", list.Letters[0].TicketID, "0.25")
	}
	o.must("dead", "assign", key, "--owner", "bob", "--note", "=1+1", "--dry-run").shows(t, "dry run:", "assigned to bob")
	o.must("dead", "assign", key, "--owner", "bob", "--note", "=1+1").shows(t, "dead letter "+key+" is assigned to bob")
	o.must("dead", "list", "--owned-by", "bob", "-o", "csv").shows(t, key+",permanent,refusal,v1,main", ",bob,'=1+1")

	o.runs("dead", "get", "x").want(t, exitUsage, "id: must be an evaluation key")
	o.runs("dead", "get", strings.Repeat("0", 32)).want(t, exitNotFound, "no such dead letter")
	o.runs("dead", "discard", key).want(t, exitUsage, "reason")
	o.runs("dead", "discard", "--reason", "r", "--yes").want(t, exitUsage, "which dead letters?")
	o.runs("dead", "discard", key, "--class", "permanent", "--reason", "r", "--yes").want(t, exitUsage, "not both")
	o.runs("dead", "discard", key, "--reason", "r").want(t, exitUsage, "--yes")
	o.answers("n\n", "dead", "discard", key, "--reason", "spam").want(t, exitFailed, "Discard 1 dead letters? [y/N]", "not confirmed")
	o.answers("y\n", "dead", "discard", key, "--reason", "spam").shows(t, "discarded 1 dead letters, skipped 0")
	o.must("dead", "discard", "--class", "transient", "--reason", "over", "--dry-run").shows(t, "dry run: discarded 2")
	if got := o.must("dead", "groups", "-o", "csv"); strings.Count(got.out, "\n") != 3 || !strings.Contains(got.out, "permanent,refusal,v1,3,") {
		t.Errorf("groups are %s", got.out)
	}
	if got := o.must("dead", "groups", "--discarded", "-o", "csv"); !strings.Contains(got.out, "permanent,refusal,v1,4,") {
		t.Errorf("with the discarded one groups are %s", got.out)
	}
}

func TestReplaysOnTheCommandLine(t *testing.T) {
	t.Parallel()
	o, _ := mourning(t)
	o.runs("dead", "replay", "--all").want(t, exitUsage, "mode")
	o.runs("dead", "replay", "--all", "--mode", "again").want(t, exitUsage, "revalidate or recall")
	o.runs("dead", "replay", "--all", "--mode", "recall").want(t, exitUsage, "--yes")
	o.must("dead", "replay", "--all", "--mode", "revalidate", "--dry-run").
		shows(t, "dry run: would judge 4 stored responses again, for nothing, and skip 2 dead letters that have none")
	o.answers("n\n", "dead", "replay", "--of", "refusal", "--mode", "recall").
		want(t, exitFailed, "Call the model again for 4 dead letters, with 4 calls for about $1? [y/N]")
	if got := o.must("replay", "list"); strings.Count(got.out, "\n") != 1 {
		t.Errorf("a replay was begun: %s", got.out)
	}
	o.answers("y\n", "dead", "replay", "--of", "refusal", "--mode", "recall", "--canary", "1", "--wait").
		shows(t, "paused: canary", "replayed", "remaining", "Estimated cost, US$")
	var list struct {
		Replays []struct {
			ID        string `json:"id"`
			Replayed  string `json:"replayed"`
			Remaining string `json:"remaining"`
		} `json:"replays"`
	}
	o.decodes(&list, "replay", "list")
	if len(list.Replays) != 1 || list.Replays[0].Replayed != "1" || list.Replays[0].Remaining != "3" {
		t.Fatalf("replays are %v", list)
	}
	id := list.Replays[0].ID
	o.runs("replay", "watch", id).shows(t, "paused: canary")
	o.answers("y\n", "replay", "resume", id).shows(t, "replay "+id+" is running")
	o.must("replay", "watch", id).shows(t, "done")
	o.must("replay", "get", id).shows(t, "recall", "Cost until now, US$")
	o.runs("replay", "cancel", id, "--yes").want(t, exitConflict, "is done and cannot become canceled")
	o.runs("replay", "pause", "01932c07-209c-7000-8000-000000000000").want(t, exitNotFound, "no such job")

	o.must("dead", "replay", "--all", "--mode", "revalidate", "--yes", "--wait").shows(t, "no response", "Selected", "2")
	o.must("dead", "replay", "--class", "transient", "--mode", "recall", "--rate", "0.001", "--yes").shows(t, "evalctl replay watch")
	o.decodes(&list, "replay", "list", "--limit", "1")
	o.must("replay", "pause", list.Replays[0].ID).shows(t, "is paused")
	o.must("replay", "cancel", list.Replays[0].ID, "--yes", "--reason", "no").shows(t, "is canceled")
	o.runs("replay", "watch", list.Replays[0].ID).want(t, exitFailed, "is canceled")
}

func TestRoutesOnTheCommandLine(t *testing.T) {
	t.Parallel()
	o, db := mourning(t)
	o.must("route", "list").shows(t, "main", "closed", "live", "bulk")
	o.must("route", "list", "-o", "csv").shows(t, "main,closed,live,0,0,0,6,,0.0,")
	o.runs("route", "pause", "main").want(t, exitUsage, "--yes")
	o.answers("y\n", "route", "pause", "main", "--reason", "=their migration").shows(t, "route main is paused")
	o.must("route", "get", "main").shows(t, "by ana since", "=their migration", "LANE", "Saved by twins")
	o.must("route", "list").shows(t, "paused, closed")
	o.must("route", "resume", "main", "--dry-run").shows(t, "dry run: route main is not paused")
	o.must("route", "resume", "main").shows(t, "route main is not paused")
	sow(t, db, "UPDATE provider_route SET state = 'halted', reason = 'unauthorized', not_before = now() + interval '1 hour'")
	o.must("route", "get", "main").shows(t, "halted: unauthorized", "Next call not before")
	o.must("route", "reset", "main", "--yes").shows(t, "route main is closed")
	o.must("route", "limits", "main", "--rpm", "300", "--tpm", "1000", "--count-output").shows(t, "requests per minute 300, tokens per minute 1000, concurrent calls no limit")
	o.must("route", "limits", "main", "--concurrent", "7").shows(t, "requests per minute 300, tokens per minute 1000, concurrent calls 7")
	o.must("route", "limits", "main", "--rpm", "0").shows(t, "requests per minute no limit, tokens per minute 1000")
	o.runs("route", "limits", "main").want(t, exitUsage, "rpm")
	o.must("route", "timeout", "main", "45s").shows(t, "a call on route main may take 45s")
	o.runs("route", "timeout", "main", "soon").want(t, exitUsage, "45s")
	o.runs("route", "timeout", "main", "2h").want(t, exitUsage, "call_timeout")
	o.must("route", "budget", "set", "all", "month", "500").shows(t, "the budget of all routes for the month is $500")
	o.must("route", "budget", "set", "main", "day", "25", "--dry-run").shows(t, "dry run: the budget of main for the day is $25")
	o.must("route", "budget", "list").shows(t, "*      month", "500")
	o.runs("route", "budget", "set", "main", "year", "25").want(t, exitUsage, "period")
	o.answers("y\n", "route", "budget", "remove", "all", "month").shows(t, "all routes may spend without a limit for the month")
	o.runs("route", "get", "nowhere").want(t, exitNotFound, "no such route")
}

func TestFsckOnTheCommandLine(t *testing.T) {
	t.Parallel()
	o, db := mourning(t)
	if got := o.must("fsck"); !strings.Contains(got.out, "promises checked: 0 broken, 0 notes") {
		t.Errorf("sound: %+v", got)
	}
	sow(t, db, "UPDATE evaluation_outbox SET unknown_calls = 1")
	sow(t, db, "UPDATE model_call SET served_model = 'another' WHERE outcome = 'failed'")
	got := o.runs("fsck", "--examples", "2")
	if got.code != exitUnsound || !strings.Contains(got.err, "evalctl: 1 promise is broken") {
		t.Errorf("unsound: %+v", got)
	}
	got.shows(t, "violation  unknown_calls_differ: 6", "note  model_substituted: 2", ", …", "1 broken, 1 notes")
	got = o.runs("fsck", "-o", "json")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.code != exitUnsound || len(lines) != 3 {
		t.Fatalf("as JSON: %+v", got)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("%s is no JSON", line)
		}
	}
	o.runs("fsck", "--examples", "-1").want(t, exitUsage, "examples")
}
