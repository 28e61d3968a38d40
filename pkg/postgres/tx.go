package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrCommitUnknown matches an error after which the transaction may be committed or may not: the connection was
// lost between COMMIT and its answer. Whoever gets it looks the effect up, or relies on a unique key, before doing
// the work again.
var ErrCommitUnknown = errors.New("the outcome of the commit is unknown")

const (
	txTries         = 6
	firstRetryDelay = 10 * time.Millisecond // doubled each time; what is slept is a random part of it
	// Ending a transaction is a matter of milliseconds, and must not depend on a context that has just ended.
	commitTimeout   = 10 * time.Second
	rollbackTimeout = 5 * time.Second
)

// Beginner starts transactions: a pool, or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// InTx runs fn in a READ COMMITTED transaction, commits it when fn returns nil and rolls it back otherwise. The
// error of fn comes back in the chain of InTx's.
//
// When the transaction was given up for the sake of others (by the server: a deadlock, a serialization failure; by fn:
// [ErrRunAgain]), all of it runs again, a few times: fn must not leave anything behind but in the transaction. No other
// error is retried.
//
// A context that ends before COMMIT is sent rolls back. From there on it has no say, so that the caller learns
// what became of the transaction; if that cannot be learnt, the error matches [ErrCommitUnknown].
func InTx(ctx context.Context, db Beginner, fn func(ctx context.Context, tx pgx.Tx) error) error {
	for try := 1; ; try++ {
		err := inTx(ctx, db, fn)
		if err == nil {
			return nil
		}
		if try == txTries || !Retryable(err) {
			return withCause(ctx, err)
		}
		delay := time.NewTimer(rand.N(firstRetryDelay << (try - 1))) //nolint:gosec // it is to scatter, not to hide
		select {
		case <-delay.C:
		case <-ctx.Done():
			delay.Stop()
			return withCause(ctx, err)
		}
	}
}

func inTx(ctx context.Context, db Beginner, fn func(context.Context, pgx.Tx) error) error {
	tx, err := BeginTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	// After a commit this does nothing. It runs on a panic of fn too. If it fails the driver has closed the
	// connection, which rolls back as well.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	if err := fn(ctx, unended{tx}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	return commit(ctx, tx)
}

// unended keeps the end of the transaction out of the function's hands.
type unended struct{ pgx.Tx }

var errNotYours = errors.New("InTx ends the transaction, not its function")

func (unended) Commit(context.Context) error   { return errNotYours }
func (unended) Rollback(context.Context) error { return errNotYours }

func commit(ctx context.Context, tx pgx.Tx) error {
	// Whether COMMIT was sent has to be known beforehand: the driver's SafeToRetry says that nothing was sent also
	// when the connection breaks while it waits for the answer (pgx 5.12).
	switch conn := tx.Conn(); {
	case conn.IsClosed():
		return fmt.Errorf("before commit: %w", pgconn.ErrConnClosed)
	case conn.PgConn().IsBusy():
		return errors.New("before commit: rows of the transaction are still open")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err := tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case rolledBack(err):
		return fmt.Errorf("commit transaction: %w", err)
	default:
		return fmt.Errorf("commit transaction: %w: %w", ErrCommitUnknown, err)
	}
}

// rolledBack reports whether an error of COMMIT proves that nothing was committed: the server refused in so many
// words. A server that goes down while it commits may have committed.
func rolledBack(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	var refused *pgconn.PgError
	return errors.As(err, &refused) && !fatal(refused) &&
		refused.Code != statementCompletionUnknown && refused.Code != transactionResolutionUnknown
}

// withCause adds why ctx ended, which the driver does not know.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
