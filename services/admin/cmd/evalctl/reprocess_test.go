package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/admin/internal/api"
	"github.com/evalonce/evalonce/services/admin/internal/job"
)

// reprocessing is an operator who has 12 tickets of an hour ago, with 10 contents, which v1 has answered; v2 is to.
func reprocessing(t *testing.T) *operator {
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
	for _, id := range []string{"v1", "v2"} {
		o.must("version", "register", "-f", file(t, id+".yaml", yamlVersion(id, "Sort "+id)))
	}
	if _, err := db.Exec(context.WithoutCancel(t.Context()), `
		WITH ticket AS (
		  INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		  SELECT uuid_v7(), 'acme', 'secret', i::text, sha256((i % 10)::text::bytea), now() - interval '1 hour' FROM generate_series(0, 11) i
		  RETURNING id, content_hash, message::int AS i
		)
		INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
		  model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT evaluation_key(t.content_hash, v.digest), t.content_hash, t.id, v.id, 0.1, 'billing', 0.1, 'm', 'p', 'p', 'low', 'q', uuid_v7()
		FROM ticket t, evaluator_version v WHERE v.id = 'v1' AND t.i < 10`); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestReprocess(t *testing.T) {
	t.Parallel()
	o := reprocessing(t)
	start := func(more ...string) []string {
		return append([]string{"reprocess", "start", "--since", "2h", "--until", "1m", "--version", "v2"}, more...)
	}
	o.runs(start()...).want(t, exitUsage, "--yes")
	o.runs("reprocess", "start", "--from", "2026-11-01T00:00:00", "--version", "v2", "--yes").want(t, exitUsage, "offset")
	o.runs("reprocess", "start", "--version", "v2", "--yes").want(t, exitUsage, "since")
	o.runs("reprocess", "start", "--since", "2h", "--version", "v9", "--yes").want(t, exitNotFound, "no version v9")
	o.runs(start("--state", "lost", "--yes")...).want(t, exitUsage, "selection.states[0]")
	o.runs(start("--max-cost", "0.000001", "--yes")...).want(t, exitConflict, "10 calls are estimated at $", "the maximum is $0.000001")
	for _, args := range [][]string{start("--dry-run"), {"reprocess", "preview", "--from", "2h", "--to", "1m", "--version", "v2"}} {
		got := o.must(args...)
		for _, want := range []string{"Tickets", "12", "Distinct contents", "10", "by the length of the texts", "30m0s"} {
			if !strings.Contains(got.out, want) {
				t.Errorf("no %q in\n%s", want, got.out)
			}
		}
	}
	asked := o.answers("n\n", start("--spread", "1h")...)
	if asked.want(t, exitFailed, "Evaluate 12 tickets under v2, with 10 calls for about $", "in about 1h0m0s?", "not confirmed"); asked.out != "" {
		t.Errorf("after a no: %q", asked.out)
	}
	if got := o.must("reprocess", "list", "-o", "json"); !strings.Contains(got.out, `"reprocesses": []`) {
		t.Fatalf("jobs were begun:\n%s", got.out)
	}

	begun := o.answers("y\n", start("--spread", "1h")...)
	id, _, _ := strings.Cut(strings.TrimPrefix(begun.out, "job "), " ")
	if begun.code != 0 || !strings.Contains(begun.out, "evalctl reprocess watch "+id) {
		t.Fatalf("begun: %+v", begun)
	}
	if got := o.must("reprocess", "pause", id, "--dry-run"); !strings.Contains(got.out, "dry run: job "+id+" is paused") {
		t.Errorf("a dry run: %q", got.out)
	}
	if got := o.must("reprocess", "pause", id, "--reason", "lunch"); got.out != "job "+id+" is paused\n" {
		t.Errorf("paused: %q", got.out)
	}
	o.runs("reprocess", "watch", id).want(t, exitFailed, "is paused")
	if got := o.must("reprocess", "list", "--state", "paused"); !strings.Contains(got.out, id) || !strings.Contains(got.out, "ana") {
		t.Errorf("listed:\n%s", got.out)
	}
	o.runs("reprocess", "resume", id).want(t, exitUsage, "--yes")
	o.must("reprocess", "resume", id, "--yes")
	if got := o.answers("yes\n", "reprocess", "cancel", id); got.code != 0 || !strings.Contains(got.err, "Cancel job "+id+"? It is running") {
		t.Errorf("canceled: %+v", got)
	}
	o.runs("reprocess", "watch", id).want(t, exitFailed, "is canceled")
	o.runs("reprocess", "resume", id, "--yes").want(t, exitConflict, "is canceled and cannot become running")
	if got := o.must("reprocess", "get", id); !strings.Contains(got.out, "taken back") || strings.Contains(got.out, "secret") {
		t.Errorf("got:\n%s", got.out)
	}

	// All that v1 would do is done.
	waited := o.must("reprocess", "start", "--since", "2h", "--until", "1m", "--version", "v1", "--yes", "--wait", "-o", "json")
	var done struct {
		State    string
		Progress struct {
			Examined string
			Answered string `json:"already_answered"`
		}
	}
	if err := json.Unmarshal([]byte(waited.out), &done); err != nil || done.State != "done" || done.Progress.Examined != "12" || done.Progress.Answered != "12" {
		t.Errorf("%v: %s", err, waited.out)
	}
}
