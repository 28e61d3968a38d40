package plan

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Named returns the plan of the generated statement of that name, as do sends it through the transaction it is given.
// What do sends before is executed; the statement itself is explained in its place, and fails.
func Named(t testing.TB, tx pgx.Tx, name string, do func(tx pgx.Tx) error) (p *Plan) {
	t.Helper()
	intercept(t, tx, name, do, func(sql string, args []any) { p = Of(t, tx, sql, args...) })
	return p
}

// Keep has the session of tx plan the generated statement of that name, for whatever arguments, on the tables as they are
// now. Sessions keep such a plan until the tables have new statistics.
func Keep(t testing.TB, tx pgx.Tx, name string, do func(tx pgx.Tx) error) {
	t.Helper()
	intercept(t, tx, name, do, func(sql string, args []any) {
		_, err := discarded(t.Context(), tx, func(ctx context.Context, tx pgx.Tx) (string, error) {
			return execute(ctx, tx, kept+name, sql, args, "EXPLAIN (FORMAT JSON) ")
		})
		if err != nil {
			t.Fatalf("plan %s: %v", name, err)
		}
	})
}

// Kept returns what the plan comes to that the session has by [Keep].
func Kept(t testing.TB, tx pgx.Tx, name string, do func(tx pgx.Tx) error) *Plan {
	t.Helper()
	p := &Plan{t: t}
	intercept(t, tx, name, do, func(sql string, args []any) {
		p.execute(tx, sql, args, func(ctx context.Context, tx pgx.Tx, sql string, args []any) (string, error) {
			return execute(ctx, tx, kept+name, sql, args, explain)
		})
	})
	return p
}

// kept begins the names of prepared statements whose plans are kept.
const kept = "evalonce_kept_"

// intercept has do send its statements, but for the one of that name, which is taken.
func intercept(t testing.TB, tx pgx.Tx, name string, do func(tx pgx.Tx) error, take func(sql string, args []any)) {
	t.Helper()
	spy := &spy{Tx: tx, marker: "-- name: " + name + " :", take: take}
	if err := do(spy); !errors.Is(err, errExplained) {
		t.Fatalf("statement %s was not sent: %v", name, err)
	}
}

var errExplained = errors.New("explained")

// spy is a transaction, and a [postgres.Beginner] of itself, that takes one statement.
type spy struct {
	pgx.Tx
	marker string
	take   func(sql string, args []any)
	taken  bool
}

func (s *spy) explained(sql string, args []any) bool {
	if s.taken || !strings.Contains(sql, s.marker) {
		return false
	}
	s.taken = true
	s.take(sql, args)
	return true
}

func (s *spy) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) { return s, nil }

func (s *spy) Rollback(context.Context) error { return nil }

func (s *spy) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if s.explained(sql, args) {
		return nil, errExplained
	}
	return s.Tx.Query(ctx, sql, args...)
}

func (s *spy) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.explained(sql, args) {
		return explainedRow{}
	}
	return s.Tx.QueryRow(ctx, sql, args...)
}

func (s *spy) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if s.explained(sql, args) {
		return pgconn.CommandTag{}, errExplained
	}
	return s.Tx.Exec(ctx, sql, args...)
}

type explainedRow struct{}

func (explainedRow) Scan(...any) error { return errExplained }
