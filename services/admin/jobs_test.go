package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
)

// replica is a process of the service.
type replica struct {
	*exec.Cmd
	http string
}

func startReplica(t *testing.T, database, hash string) *replica {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{
		asService + "=1", "EVALONCE_DATABASE_URL=" + pgtest.As(database, pgtest.Admin), "EVALONCE_ADMIN_TOKENS=ana=" + hash, "EVALONCE_PLAINTEXT=true", "EVALONCE_HEALTH_ADDRESS=127.0.0.1:0",
		"EVALONCE_GRPC_ADDRESS=127.0.0.1:0", "EVALONCE_HTTP_ADDRESS=127.0.0.1:0",
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var serving struct{ Msg, HTTP string }
	for serving.Msg != "serving" && lines.Scan() {
		_ = json.Unmarshal(lines.Bytes(), &serving) // what is no line of the log is none that is looked for
	}
	if serving.HTTP == "" {
		t.Fatal("the service does not serve")
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, stderr)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-drained
		_ = cmd.Wait()
	})
	return &replica{Cmd: cmd, http: "http://" + serving.HTTP}
}

// seeded is a database with 5000 tickets of an hour ago, each with a content of its own, and the version v1.
func seeded(t *testing.T) (address string, db *pgxpool.Pool) {
	t.Helper()
	address = pgtest.URL(t)
	db = pgtest.Pool(t, address)
	for _, sql := range []string{
		`INSERT INTO provider_route (name) VALUES ('main')`,
		`INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
		 VALUES ('v1', 'p', 'openai', 'm', 'Sort', '[{"name": "billing"}]', 100, 1, sha256('v1'), 'main', 'test')`,
		`INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		 SELECT uuid_v7(), 'c', 's', i::text, sha256(i::text::bytea), now() - interval '2 hours' + make_interval(secs => i) FROM generate_series(1, 5000) i`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return address, db
}

func TestAJobWhoseReplicaIsKilledWithinAChunkIsFinishedByAnother(t *testing.T) {
	t.Parallel()
	database, db := seeded(t)
	token, hash := rpc.MintToken()

	// Somebody is about to enqueue the content of a later chunk, so that the chunk has to wait in its middle.
	other, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), `INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT evaluation_key(t.content_hash, v.digest), t.content_hash, t.id, v.id, v.route, 'bulk'
		FROM ticket t, evaluator_version v WHERE t.message = '3000'`); err != nil {
		t.Fatal(err)
	}
	first := startReplica(t, database, hash)
	status, answer := send(t, "POST", first.http+"/v1/reprocesses", token,
		`{"selection": {"created_from": "2000-01-01T00:00:00Z", "created_to": "`+time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)+`", "version": "v1"}, "spread": "0s"}`)
	var job struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &job); err != nil || status != 201 {
		t.Fatalf("%d %s: %v", status, answer, err)
	}
	until(t, db, "the chunk waits", `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'admin-jobs' AND wait_event_type = 'Lock')
		AND (SELECT (counts ->> 'enqueued')::int BETWEEN 1 AND 2999 FROM reprocess_job)`)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second := startReplica(t, database, hash)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, db, "all is enqueued", `SELECT cursor ->> 'phase' = 'drain' FROM reprocess_job`)
	var progress struct {
		Progress struct{ Total, Seen, Examined, Enqueued, Waiting string }
	}
	if status, answer = send(t, "GET", second.http+"/v1/reprocesses/"+job.ID, token, ""); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	if err := json.Unmarshal([]byte(answer), &progress); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]string{
		"total": progress.Progress.Total, "seen": progress.Progress.Seen, "examined": progress.Progress.Examined,
		"enqueued": progress.Progress.Enqueued, "waiting": progress.Progress.Waiting,
	} {
		if n != "5000" {
			t.Errorf("%s is %s: %s", name, n, answer)
		}
	}
	var rows int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM evaluation_outbox").Scan(&rows); err != nil || rows != 5000 {
		t.Errorf("%d evaluations of 5000 tickets: %v", rows, err)
	}
}

// until waits for a query to be true.
func until(t *testing.T, db *pgxpool.Pool, what, sql string) {
	t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-look.C {
		var is *bool
		if err := db.QueryRow(t.Context(), sql).Scan(&is); err != nil {
			t.Fatal(err)
		}
		if is != nil && *is {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
