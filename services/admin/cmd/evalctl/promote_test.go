package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

func TestPromoteAndRollBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := serve(t, api.Policy(), func(r grpc.ServiceRegistrar) { api.Register(r, db, db, awake{}) })
	for _, id := range []string{"v1", "v2"} {
		o.must("version", "register", "-f", file(t, id+".yaml", yamlVersion(id, "Sort "+id)))
	}
	o.runs("version", "rollback", "--yes").want(t, exitConflict, "none to roll back to")
	o.must("version", "promote", "v1", "--yes")
	if _, err := db.Exec(context.WithoutCancel(t.Context()), `INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), 'acme', '', i::text, sha256(convert_to(i::text, 'UTF8')) FROM generate_series(1, 8) i`); err != nil {
		t.Fatal(err)
	}
	const line = "evalctl reprocess start --since 30d --version v2"
	o.runs("version", "promote", "v2", "--yes").want(t, exitConflict, "0 of 8 distinct contents of the last 30d", line)
	o.runs("version", "promote", "v2", "--yes", "--min-coverage", "1.1").want(t, exitUsage, "must be a number from 0 to 1")
	o.runs("version", "promote", "v2", "--yes", "--window", "0d").want(t, exitUsage, "must be a length of time")
	forced := o.must("version", "promote", "v2", "--dry-run", "--force", "--window", "30d")
	if forced.out != "dry run: version v2 is active\n0 of 8 distinct contents of recent tickets have an answer under it\nthe others get one with: "+line+"\n" {
		t.Errorf("%+v", forced)
	}
	o.must("version", "promote", "v2", "--yes", "--min-coverage", "0", "--reason", "why", "--request-id", "k", "--expected", "v1")
	o.must("version", "promote", "v2", "--yes", "--min-coverage", "0", "--reason", "why", "--request-id", "k", "--expected", "v1")
	o.runs("version", "rollback", "--yes", "--expected", "v1").want(t, exitConflict, "the active version is v2, not v1")
	o.runs("version", "rollback").want(t, exitUsage, "give --yes")
	if got := o.must("version", "rollback", "--dry-run"); got.out != "dry run: version v1 is active\n" {
		t.Errorf("%+v", got)
	}
	o.answers("n\n", "version", "rollback").want(t, exitFailed, "Evaluate new tickets under version v1 again, instead of v2?", "not confirmed")
	if got := o.answers("y\n", "version", "rollback", "--reason", "flips"); got.code != 0 || got.out != "version v1 is active\n" {
		t.Errorf("%+v", got)
	}
	var history []string
	for _, row := range strings.Split(strings.TrimSpace(o.must("version", "history").out), "\n")[1:] {
		history = append(history, strings.Join(strings.Fields(row)[1:], " "))
	}
	if got := strings.Join(history, ", "); got != "v1 v2 ana, v2 v1 ana, v1 ana" {
		t.Errorf("history %s", got)
	}
	if got := o.must("audit", "list", "--target", "activeVersion", "--limit", "1"); !strings.Contains(got.out, `{"version_id":"v2"}  {"version_id":"v1"}  flips`) {
		t.Errorf("recorded\n%s", got.out)
	}
}

func TestVersionDiff(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.must("version", "register", "-f", file(t, "v1.yaml", yamlVersion("v1", "Sort.")))
	o.must("version", "register", "-f", file(t, "v2.yaml", yamlVersion("v2", "Sort well.", "effort: low")))
	got := o.must("version", "diff", "v1", "v2")
	for _, part := range []string{
		"FIELD           v1         v2    DECIDES ANSWERS\n", "model           m-v1       m-v2  yes\n", "effort                     low   yes\n",
		"\nPROMPT\n--- v1\n+++ v2\n", "-Sort.\n+Sort well.\n",
	} {
		if !strings.Contains(got.out, part) {
			t.Errorf("shown without %q:\n%s", part, got.out)
		}
	}
	if got := o.must("version", "diff", "v1", "v1"); got.out != "no difference\n" {
		t.Errorf("%+v", got)
	}
	o.runs("version", "diff", "v1", "v3").want(t, exitNotFound, "there is no version v3")
	o.runs("version", "register", "-f", file(t, "v1.yaml", yamlVersion("v1", "Sort otherwise."))).
		want(t, exitConflict, "choose a new id", "version.prompt: differs:", "-Sort.\n", "+Sort otherwise.\n")
	if got := o.must("version", "register", "--dry-run", "-f", file(t, "v4.yaml", yamlVersion("v4", "Sort four."))); got.out != "dry run: version v4 is registered\n" {
		t.Errorf("%+v", got)
	}
	o.runs("version", "get", "v4").want(t, exitNotFound)
	o.runs("version", "register", "--dry-run", "--promote", "--yes", "-f", file(t, "v4.yaml", yamlVersion("v4", "Sort four."))).
		want(t, exitUsage, "--dry-run does not go with --promote")
}
