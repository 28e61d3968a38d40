package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

const triesOfATransaction = 6

func TestInTxCommitsAndRollsBack(t *testing.T) {
	t.Parallel()
	pool := account(t)
	if err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		var level string
		if err := tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&level); err != nil {
			return err
		}
		if level != "read committed" {
			t.Errorf("isolation level %s", level)
		}
		return add(ctx, tx, 1, 5)
	}); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(add(ctx, tx, 1, 100), refused)
	})
	if !errors.Is(err, refused) {
		t.Errorf("error %v, want the function's", err)
	}
	wantBalance(t, pool, 1, 5)
}

func TestInTxRetriesADeadlock(t *testing.T) {
	t.Parallel()
	pool := account(t)
	var tries atomic.Int32
	var bothHoldOne, done sync.WaitGroup
	bothHoldOne.Add(2)
	transfer := func(from, to int) {
		first := true
		err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			tries.Add(1)
			if _, err := tx.Exec(ctx, "SET LOCAL deadlock_timeout = '10ms'"); err != nil {
				return err
			}
			if err := add(ctx, tx, from, -1); err != nil {
				return err
			}
			if first {
				first = false
				bothHoldOne.Done()
				bothHoldOne.Wait()
			}
			return add(ctx, tx, to, 1)
		})
		if err != nil {
			t.Error(err)
		}
	}
	done.Go(func() { transfer(1, 2) })
	done.Go(func() { transfer(2, 1) })
	done.Wait()
	if n := tries.Load(); n < 3 {
		t.Errorf("%d tries: there was no deadlock", n)
	}
	wantBalance(t, pool, 1, 0)
	wantBalance(t, pool, 2, 0)
}

func TestInTxRetriesASerializationFailure(t *testing.T) {
	t.Parallel()
	pool := account(t)
	tries := 0
	err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		tries++
		if _, err := tx.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
			return err
		}
		var balance int
		if err := tx.QueryRow(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil {
			return err
		}
		if tries == 1 {
			if _, err := pool.Exec(ctx, "UPDATE account SET balance = 10 WHERE id = 1"); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "UPDATE account SET balance = $1 WHERE id = 1", balance+1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if tries != 2 {
		t.Errorf("%d tries, want 2", tries)
	}
	wantBalance(t, pool, 1, 11)
}

func TestInTxRetriesWhatCommitRefuses(t *testing.T) {
	t.Parallel()
	pool := account(t)
	// Sequences are not rolled back: the first commit fails, the second succeeds.
	execute(t, pool, `CREATE SEQUENCE attempt`)
	atCommit(t, pool, `IF nextval('attempt') = 1 THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END IF;`)
	tries := 0
	if err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		tries++
		return add(ctx, tx, 1, 1)
	}); err != nil {
		t.Fatal(err)
	}
	if tries != 2 {
		t.Errorf("%d tries, want 2", tries)
	}
	wantBalance(t, pool, 1, 1)
}

func TestInTxRunsAgainWhatGaveItselfUp(t *testing.T) {
	t.Parallel()
	pool := account(t)
	tries := 0
	if err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		tries++
		err := add(ctx, tx, 1, 1)
		if tries == 1 {
			return fmt.Errorf("a row is taken: %w", postgres.ErrRunAgain)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wantBalance(t, pool, 1, 1)
}

func TestInTxGivesUp(t *testing.T) {
	t.Parallel()
	pool := account(t)
	for _, code := range []string{"40001", "40P01"} {
		tries := 0
		err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			tries++
			return raise(ctx, tx, code)
		})
		if !postgres.Retryable(err) || tries != triesOfATransaction {
			t.Errorf("%s: %d tries, %v; want %d and the server's error", code, tries, err, triesOfATransaction)
		}
	}
}

func TestInTxRetriesNothingElse(t *testing.T) {
	t.Parallel()
	pool := account(t)
	for _, code := range []string{"23505", "40002", "55P03", "57014", "P0001"} {
		tries := 0
		err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			tries++
			return raise(ctx, tx, code)
		})
		if err == nil || tries != 1 || errors.Is(err, postgres.ErrCommitUnknown) {
			t.Errorf("%s: %d tries, %v", code, tries, err)
		}
	}
}

func TestInTxStopsRetryingWithItsContext(t *testing.T) {
	t.Parallel()
	pool := account(t)
	reason := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	tries := 0
	err := postgres.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		tries++
		err := raise(ctx, tx, "40001")
		cancel(reason)
		return err
	})
	if tries != 1 || !errors.Is(err, reason) || !postgres.Retryable(err) {
		t.Errorf("%d tries, %v; want 1, the server's error and the cause", tries, err)
	}
}

func TestInTxRollsBackWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]func(context.Context, pgx.Tx, func()) error{
		"between statements": func(ctx context.Context, _ pgx.Tx, cancel func()) error {
			cancel()
			return ctx.Err()
		},
		"and the function does not mind": func(_ context.Context, _ pgx.Tx, cancel func()) error {
			cancel()
			return nil
		},
		"in a statement": func(ctx context.Context, tx pgx.Tx, cancel func()) error {
			timer := time.AfterFunc(50*time.Millisecond, cancel)
			defer timer.Stop()
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := account(t)
			reason := errors.New("the client has gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			err := postgres.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := add(ctx, tx, 1, 1); err != nil {
					return err
				}
				return rest(ctx, tx, func() { cancel(reason) })
			})
			if !errors.Is(err, context.Canceled) || !errors.Is(err, reason) || errors.Is(err, postgres.ErrCommitUnknown) {
				t.Errorf("error %v, want the cancellation and its cause", err)
			}
			if postgres.ConnectionLost(err) {
				t.Error("the end of the caller's context counts as a lost connection")
			}
			// Would wait for ever for a transaction that is still open.
			execute(t, pool, "SET lock_timeout = '20s'; UPDATE account SET balance = balance + 10 WHERE id = 1")
			wantBalance(t, pool, 1, 10)
		})
	}
}

func TestInTxRollsBackOnPanic(t *testing.T) {
	t.Parallel()
	pool := account(t)
	func() {
		defer func() {
			if got := recover(); got != "bug" {
				t.Errorf("recovered %v, want the panic of the function", got)
			}
		}()
		_ = postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := add(ctx, tx, 1, 1); err != nil {
				t.Error(err)
			}
			panic("bug")
		})
	}()
	wantBalance(t, pool, 1, 0)
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestInTxSaysWhatCommitRefused(t *testing.T) {
	t.Parallel()
	pool := account(t)
	execute(t, pool, "ALTER TABLE account ADD CONSTRAINT account_label UNIQUE (label) DEFERRABLE INITIALLY DEFERRED")
	err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE account SET label = 'same'")
		return err
	})
	if name, ok := postgres.ConstraintViolation(err); !ok || name != "account_label" {
		t.Errorf("violated %q (%t), want account_label: %v", name, ok, err)
	}
	if errors.Is(err, postgres.ErrCommitUnknown) {
		t.Errorf("a refused commit counts as unknown: %v", err)
	}

	err = postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		_ = raise(ctx, tx, "P0001") // swallowed
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, postgres.ErrCommitUnknown) {
		t.Errorf("commit of an aborted transaction: %v", err)
	}
}

func TestInTxKeepsTheEndOfTheTransaction(t *testing.T) {
	t.Parallel()
	pool := account(t)
	refused := errors.New("refused")
	err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := add(ctx, tx, 1, 1); err != nil {
			return err
		}
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("the function ended the transaction")
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	wantBalance(t, pool, 1, 0)

	err = postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := add(ctx, tx, 1, 1); err != nil {
			return err
		}
		_, err := tx.Query(ctx, "SELECT * FROM generate_series(1, 1000000)") //nolint:sqlclosecheck // that is what is tested
		return err
	})
	if err == nil || errors.Is(err, postgres.ErrCommitUnknown) {
		t.Errorf("commit with open rows: %v", err)
	}
	wantBalance(t, pool, 1, 0)
}

// account has two rows with balance 0.
func account(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.EmptyURL(t))
	execute(t, pool, `CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL, label text);
		INSERT INTO account VALUES (1, 0, 'a'), (2, 0, 'b')`)
	return pool
}

// atCommit makes body run when a transaction that updated an account commits.
func atCommit(t *testing.T, pool *pgxpool.Pool, body string) {
	t.Helper()
	execute(t, pool, `CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+body+` RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON account DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION at_commit()`)
}

func add(ctx context.Context, tx pgx.Tx, id, amount int) error {
	_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + $2 WHERE id = $1", id, amount)
	return err
}

func raise(ctx context.Context, tx pgx.Tx, code string) error {
	_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'raised' USING ERRCODE = '"+code+"'; END $$")
	return err
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func wantBalance(t *testing.T, pool *pgxpool.Pool, id, want int) {
	t.Helper()
	var got int
	if err := pool.QueryRow(t.Context(), "SELECT balance FROM account WHERE id = $1", id).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("balance %d is %d, want %d", id, got, want)
	}
}
