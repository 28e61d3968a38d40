package main

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/admin/internal/api"
	"github.com/evalonce/evalonce/services/admin/internal/job"
	"github.com/evalonce/evalonce/services/admin/internal/redecide"
)

const yamlPolicy = `
id: refunds-1
urgent_threshold: 0.5
rules:
  - {name: refunds, when: 'department == "billing"', priority: normal, queue: refunds}
  - {name: the rest, when: "true", priority: low}
`

func TestPolicyCommands(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	runner := job.New(job.Options{
		DB: db, Steps: map[jobdb.Kind]job.Step{jobdb.Policy: redecide.Step(0)}, Worker: "test",
		Poll: 10 * time.Millisecond, Lease: time.Minute, Retry: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	running, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- runner.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; !errors.Is(err, context.Canceled) {
			t.Errorf("the runner ended with %v", err)
		}
	})
	o := serve(t, api.Policy(), func(r grpc.ServiceRegistrar) { api.Register(r, db, db, runner) })
	if _, err := db.Exec(t.Context(), `INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent,
			department, urgency_score, model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT md5(i::text), sha256(convert_to(i::text, 'UTF8')), gen_random_uuid(), 'v1', 0, CASE WHEN i <= 4 THEN 'billing' ELSE 'other' END, 0,
			'm', 'p', 'builtin-1', 'low', CASE WHEN i <= 4 THEN 'billing' ELSE 'other' END, gen_random_uuid() FROM generate_series(1, 10) i`); err != nil {
		t.Fatal(err)
	}

	path := file(t, "p.yaml", yamlPolicy)
	if got := o.must("policy", "register", "-f", path, "--dry-run"); got.out != "dry run: policy refunds-1 is registered\n" {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{"policy refunds-1 is registered\n", "policy refunds-1 was registered already\n"} {
		if got := o.must("policy", "register", "-f", path); got.out != want {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	o.runs("policy", "register", "-f", file(t, "p.yaml", strings.Replace(yamlPolicy, "department ==", "dept ==", 1))).
		want(t, exitUsage, "policy.rules[0].when: line 1, column 1: undeclared reference to 'dept'")
	o.runs("policy", "register", "-f", file(t, "p.yaml", strings.Replace(yamlPolicy, "queue: refunds", "queue: money", 1))).
		want(t, exitConflict, "choose a new id", `queue "money"`)
	if got := o.must("policy", "get", "builtin-1"); !strings.Contains(got.out, "RULE          PRIORITY  QUEUE               WHEN\nboth          urgent    (the department's)  is_urgent >= urgent_threshold && urgency_score >= 0.5\n") {
		t.Errorf("shown\n%s", got.out)
	}
	// What was shown can be registered again.
	if got := o.answers(o.must("policy", "get", "builtin-1", "-o", "json").out, "policy", "register", "-f", "-"); got.out != "policy builtin-1 was registered already\n" {
		t.Errorf("%+v", got)
	}
	o.runs("policy", "activate", "refunds-1").want(t, exitUsage, "give --yes")
	o.answers("n\n", "policy", "activate", "refunds-1").want(t, exitFailed, "Decide new answers by policy refunds-1 instead of builtin-1?")
	if got := o.answers("y\n", "policy", "activate", "refunds-1"); got.out != "policy refunds-1 is active\n" {
		t.Errorf("%+v", got)
	}
	o.runs("policy", "activate", "builtin-1", "--yes", "--expected", "builtin-1").want(t, exitConflict, "the active policy is refunds-1, not builtin-1")
	list := strings.Split(o.must("policy", "list").out, "\n")
	if len(list) != 4 || !strings.HasPrefix(list[1], "refunds-1  yes     0.5          2      ") || !strings.HasPrefix(list[2], "builtin-1          0.5          4      ") {
		t.Errorf("listed\n%s", strings.Join(list, "\n"))
	}
	if got := o.must("policy", "history").out; !regexp.MustCompile(`refunds-1 +builtin-1 +ana\n.* builtin-1 +builtin\n$`).MatchString(got) {
		t.Errorf("history\n%s", got)
	}

	if got, want := o.must("policy", "apply", "--dry-run").out, "dry run: by policy refunds-1 4 of 10 decisions change\n\n"+
		"ANSWERS  PRIORITY       QUEUE\n4        low -> normal  billing -> refunds\n"; got != want {
		t.Errorf("foretold\n%s\nwant\n%s", got, want)
	}
	o.runs("policy", "apply").want(t, exitUsage, "give --yes")
	o.runs("policy", "apply", "--yes", "--expected", "builtin-1").want(t, exitConflict, "the active policy is refunds-1, not builtin-1")
	o.answers("n\n", "policy", "apply").want(t, exitFailed, "Decide stored answers by policy refunds-1? 4 of 10 decisions change; no model is called.")
	done := o.must("policy", "apply", "--yes", "--wait", "--reason", "refunds have a queue")
	for _, part := range []string{"State              done\n", "Answers seen       10\n", "Decisions changed  4\n", "  low -> normal    4\n"} {
		if !strings.Contains(done.out, part) {
			t.Errorf("done without %q:\n%s", part, done.out)
		}
	}
	id := regexp.MustCompile(`ID +(\S+)\n`).FindStringSubmatch(done.out)[1]
	if got := o.must("policy", "job", "get", id); got.out != done.out {
		t.Errorf("%s, then %s", done.out, got.out)
	}
	if got := o.must("policy", "job", "list"); !strings.Contains(got.out, id+"  refunds-1  done   10    4 ") {
		t.Errorf("jobs\n%s", got.out)
	}
	o.runs("policy", "job", "pause", id).want(t, exitConflict, "is done and cannot become paused")
	o.runs("policy", "get", "absent").want(t, exitNotFound, "there is no such policy")
}
