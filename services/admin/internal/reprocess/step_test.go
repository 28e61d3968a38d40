package reprocess_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/services/admin/internal/reprocess"
)

// While tickets are created a job goes on in small chunks and rests between them.
func TestAJobIsGentleBesideNewTickets(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	v := evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "m", Prompt: "Sort it.", AnswerSchema: evaluation.AnswerSchema,
		Departments: []evaluation.Department{{Name: "billing"}}, MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2,
	}.WithDefaults()
	const old = 1000
	var j jobdb.Job
	err := postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, "test"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
			SELECT uuid_v7(now() - interval '1 hour' + n * interval '1 millisecond'), 'c', '', 'm', sha256(n::text::bytea),
			       now() - interval '1 hour' + n * interval '1 millisecond' FROM generate_series(1, $1) n`, old)
		if err != nil {
			return err
		}
		j, err = jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Evaluate, CreatedBy: "test", Spec: reprocess.Spec{
			From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Minute), Version: "v1",
		}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	step := func() (p jobdb.Progress) {
		t.Helper()
		if err := postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) (err error) {
			p, err = reprocess.Step(ctx, tx, j)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		j.Cursor = p.Cursor
		return p
	}
	step() // draws the horizon
	if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash)
		VALUES (uuid_v7(now() + interval '1 hour'), 'c', '', 'new', sha256('new'))`); err != nil {
		t.Fatal(err)
	}
	if p := step(); p.Rest <= 0 || p.Add["seen"] == 0 || p.Add["seen"] >= old/2 {
		t.Errorf("beside new tickets a chunk has %d, and a rest of %s", p.Add["seen"], p.Rest)
	}
	if _, err := db.Exec(t.Context(), "DELETE FROM ticket WHERE message = 'new'"); err != nil {
		t.Fatal(err)
	}
	seen := int64(0)
	for range 20 {
		p := step()
		seen += p.Add["seen"]
		if p.Rest != 0 {
			t.Fatalf("a rest of %s beside nobody", p.Rest)
		}
		if seen >= old-200 {
			return
		}
	}
	t.Errorf("%d of the rest were seen in 20 chunks", seen)
}
