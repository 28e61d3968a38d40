package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backlog makes a database with an active version and n tickets to evaluate, and returns its address.
func backlog(t *testing.T, n int) string {
	t.Helper()
	url := pgtest.URL(t)
	v := evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "m", Prompt: "Sort it.", AnswerSchema: evaluation.AnswerSchema,
		Departments: []evaluation.Department{{Name: "billing"}, {Name: "general"}}, MaxOutputTokens: 100, Route: "main",
	}.WithDefaults()
	digest := v.Digest()
	err := postgres.InTx(t.Context(), pgtest.Pool(t, url), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, "test"); err != nil {
			return err
		}
		if err := versiondb.Promote(ctx, tx, v.ID, "", "test"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `WITH t AS (
				INSERT INTO ticket (id, client_id, subject, message, content_hash)
				SELECT uuid_v7(), 'c', 's', n::text, sha256(n::text::bytea) FROM generate_series(1, $1) n
				RETURNING id, content_hash
			)
			INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
			SELECT evaluation_key(content_hash, $2), content_hash, id, 'v1', 'main', 'live' FROM t`, n, digest[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func measured(t *testing.T, args ...string) report {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return r
}

// A worker that has had a thousand calls in flight leaves nothing of them behind: a second one finds the process as the
// first has found it, but for what the runtime keeps to use again.
func TestHold(t *testing.T) { //nolint:paralleltest // it looks at the whole process
	// The runtime's and the libraries' own memory comes and goes by some hundred KiB. A call that is left behind takes more
	// than one.
	const calls, slack = 1000, 1000 << 10
	url := backlog(t, 3*calls)
	hold := func() report {
		goroutines := memoryNow().Goroutines
		r := measured(t, "-database-url", url, "-n", "1000", "-concurrency", "1000", "hold")
		if r.Held.Goroutines < goroutines+calls {
			t.Fatalf("%d goroutines, %d before: fewer than calls", r.Held.Goroutines, goroutines)
		}
		if r.After.Goroutines > goroutines {
			t.Errorf("%d goroutines are left, %d before", r.After.Goroutines, goroutines)
		}
		return r
	}
	first, second := hold(), hold()
	if second.After.HeapBytes > first.After.HeapBytes+slack {
		t.Errorf("the heap grew from %d to %d bytes", first.After.HeapBytes, second.After.HeapBytes)
	}
	t.Logf("%d calls in flight: heap %d KiB, resident %d KiB", calls, second.Held.HeapBytes>>10, second.Held.ResidentBytes>>10)
}

func TestModes(t *testing.T) { //nolint:paralleltest // after TestHold
	url := backlog(t, 300)
	if r := measured(t, "-database-url", url, "-n", "300", "drain"); r.Evaluations != 300 || r.PerSecond <= 0 || r.Claims.Count == 0 {
		t.Errorf("drain: %+v", r)
	}
	if r := measured(t, "-database-url", url, "-n", "5", "-gap", "1ms", "pickup"); r.Pickup.Count != 5 || r.Pickup.Max < r.Pickup.P50 {
		t.Errorf("pickup: %+v", r.Pickup)
	}
	if r := measured(t, "-database-url", url, "-for", "300ms", "idle"); r.Statements == nil {
		t.Errorf("idle: %+v", r)
	}
	if err := run(t.Context(), []string{"-database-url", url, "sleep"}, nil, io.Discard, io.Discard); err == nil {
		t.Error("an unknown mode was taken")
	}
}
