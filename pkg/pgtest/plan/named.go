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
func Named(t testing.TB, tx pgx.Tx, name string, do func(tx pgx.Tx) error) *Plan {
	t.Helper()
	spy := &spy{Tx: tx, t: t, marker: "-- name: " + name + " :"}
	if err := do(spy); !errors.Is(err, errExplained) {
		t.Fatalf("statement %s was not sent: %v", name, err)
	}
	return spy.plan
}

var errExplained = errors.New("explained")

// spy is a transaction, and a [postgres.Beginner] of itself, that explains one statement.
type spy struct {
	pgx.Tx
	t      testing.TB
	marker string
	plan   *Plan
}

func (s *spy) explained(sql string, args []any) bool {
	if s.plan != nil || !strings.Contains(sql, s.marker) {
		return false
	}
	s.plan = Of(s.t, s.Tx, sql, args...)
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
