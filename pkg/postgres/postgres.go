// Package postgres opens connection pools and runs transactions.
package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrCommitUnknown matches an error after which nobody knows whether the transaction was committed.
var ErrCommitUnknown = errors.New("the outcome of the commit is unknown")

// Config says where the database is and how long anything there may take.
type Config struct {
	URL                      string
	MaxConns                 int32
	MinConns                 int32
	AppName                  string
	StatementTimeout         time.Duration
	LockTimeout              time.Duration
	IdleInTransactionTimeout time.Duration
	ConnectTimeout           time.Duration
	Tracer                   pgx.QueryTracer
}

// Beginner starts transactions: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Open returns a pool whose database has answered.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	return nil, errors.ErrUnsupported
}

// InTx runs fn in a READ COMMITTED transaction.
func InTx(ctx context.Context, db Beginner, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return errors.ErrUnsupported
}

// Retryable reports whether the whole transaction may be run again.
func Retryable(err error) bool { return false }

// ConstraintViolation names the constraint that refused a row.
func ConstraintViolation(err error) (name string, ok bool) { return "", false }

// ConnectionLost reports whether the connection, and not the statement, failed.
func ConnectionLost(err error) bool { return false }
