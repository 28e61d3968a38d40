package submit

import (
	"context"
	"errors"
	"iter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// step is a part of a transaction that makes one statement at the most.
type step func(ctx context.Context, tx pgx.Tx) error

// errNotSent ends the steps that wait behind one that has failed.
var errNotSent = errors.New("not sent: a statement before it failed")

// pipelined runs steps whose statements need nothing of each other's results: all are sent at once, and answered in one
// round trip. Each step stops at its statement until then, and goes on when those before it have ended. An error of a
// step comes back as it is; the statements behind a failed one have no effect.
func pipelined(ctx context.Context, tx pgx.Tx, steps ...step) error {
	batch := &pgx.Batch{}
	var results pgx.BatchResults
	ends := make([]error, len(steps))
	resume := make([]func(), len(steps))
	for i, run := range steps {
		next, stop := iter.Pull(func(stopped func(struct{}) bool) {
			ends[i] = run(ctx, &pipe{Tx: tx, send: func(sql string, args []any) (pgx.BatchResults, error) {
				if results != nil {
					return nil, errors.New("a step of a pipeline has made a second statement")
				}
				batch.Queue(sql, args...)
				if !stopped(struct{}{}) {
					return nil, errNotSent
				}
				return results, nil
			}})
		})
		defer stop()
		resume[i] = func() { next() }
		if resume[i](); ends[i] != nil {
			return ends[i]
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	results = tx.SendBatch(ctx, batch)
	for i := range steps {
		if resume[i](); ends[i] != nil {
			_ = results.Close() // tells the same again
			return ends[i]
		}
	}
	return results.Close()
}

// pipe is the transaction as a step sees it.
type pipe struct {
	pgx.Tx
	send func(sql string, args []any) (pgx.BatchResults, error)
}

func (p *pipe) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	results, err := p.send(sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return results.Exec()
}

func (p *pipe) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := p.send(sql, args)
	if err != nil {
		return nil, err
	}
	return results.Query()
}

func (p *pipe) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	results, err := p.send(sql, args)
	if err != nil {
		return failed{err}
	}
	return results.QueryRow()
}

type failed struct{ err error }

func (f failed) Scan(...any) error { return f.err }
