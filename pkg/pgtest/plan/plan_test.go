package plan

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

// verdict collects what a plan's methods report.
type verdict struct {
	testing.TB
	failed bool
}

func (*verdict) Helper()                 {}
func (v *verdict) Errorf(string, ...any) { v.failed = true }

func begin(t *testing.T) pgx.Tx {
	t.Helper()
	tx, err := pgtest.New(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := tx.Exec(t.Context(), `CREATE TEMP TABLE fruit (id int PRIMARY KEY, name text);
		INSERT INTO fruit SELECT n, 'n' || n FROM generate_series(1, 5000) n; ANALYZE fruit`); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestPlan(t *testing.T) {
	t.Parallel()
	tx := begin(t)
	lookup := Of(t, tx, "SELECT name FROM fruit WHERE id = ANY ($1::int[])", []int32{7, 8, 9})
	scan := Of(t, tx, "DELETE FROM fruit WHERE name = $1", "o'clock")
	sorted := Of(t, tx, "SELECT id FROM fruit ORDER BY name")
	for name, test := range map[string]struct {
		plan *Plan
		ask  func(*Plan)
		fail bool
	}{
		"an index that is used":     {lookup, func(p *Plan) { p.Uses("fruit_pkey") }, false},
		"a pattern of it":           {lookup, func(p *Plan) { p.Uses("fruit_*") }, false},
		"one that is not":           {lookup, func(p *Plan) { p.Uses("ticket_*") }, true},
		"none used":                 {scan, func(p *Plan) { p.Uses("*") }, true},
		"no seq scan":               {lookup, func(p *Plan) { p.NoSeqScan("fruit") }, false},
		"a seq scan":                {scan, func(p *Plan) { p.NoSeqScan("fruit") }, true},
		"a seq scan of another":     {scan, func(p *Plan) { p.NoSeqScan("ticket") }, false},
		"few rows":                  {lookup, func(p *Plan) { p.ReadsAtMost(3) }, false},
		"rows that are thrown away": {scan, func(p *Plan) { p.ReadsAtMost(4999) }, true},
		"as many rows as there are": {scan, func(p *Plan) { p.ReadsAtMost(5000) }, false},
		"nothing sorted":            {scan, (*Plan).NoSort, false},
		"sorted":                    {sorted, (*Plan).NoSort, true},
	} {
		v := &verdict{TB: t}
		test.ask(&Plan{t: v, trees: test.plan.trees})
		if v.failed != test.fail {
			t.Errorf("%s: failed %t, want %t", name, v.failed, test.fail)
		}
	}
	if got := lookup.RowsRead(); got != 3 {
		t.Errorf("read %d rows, want 3", got)
	}
	if len(scan.trees) != 2 {
		t.Errorf("%d executions", len(scan.trees))
	}
	var left int
	if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM fruit").Scan(&left); err != nil || left != 5000 {
		t.Errorf("%d rows are left, %v: an explained statement had an effect", left, err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	tx := begin(t)
	const named = "-- name: Pick :many\nSELECT id FROM fruit WHERE id = $1"
	for how, send := range map[string]func(pgx.Tx) error{
		"Query": func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), named, 5)
			if err == nil {
				rows.Close()
			}
			return err
		},
		"QueryRow": func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), named, 5).Scan(nil) },
		"Exec":     func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), named, 5); return err },
	} {
		p := Named(t, tx, "Pick", func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL enable_bitmapscan = off"); err != nil {
				return err
			}
			if err := send(tx); err != nil {
				return fmt.Errorf("wrapped: %w", err)
			}
			return nil
		})
		p.Uses("fruit_pkey")
		if t.Failed() {
			t.Fatal(how)
		}
	}
}
