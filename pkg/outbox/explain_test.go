package outbox_test

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
)

// explainer is a transaction that asks for the plan of a statement, a claim, instead of claiming.
type explainer struct {
	pgx.Tx
	statement string
	plan      string
}

var errExplained = errors.New("explained")

func (e *explainer) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) { return e, nil }

func (e *explainer) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !strings.Contains(sql, "-- name: "+e.statement+" :many") {
		return e.Tx.Query(ctx, sql, args...)
	}
	err := e.Tx.QueryRow(ctx, "EXPLAIN (ANALYZE, FORMAT JSON) "+sql, args...).Scan(&e.plan)
	if err != nil {
		return nil, err
	}
	return nil, errExplained
}

func (e *explainer) Rollback(context.Context) error { return nil }
