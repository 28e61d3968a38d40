package postgres_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

func TestBehindAPoolerTimeoutsAreTheTransactions(t *testing.T) {
	t.Parallel()
	for name, strict := range map[string]bool{"that refuses them at the start": true, "that passes the start on": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, postgres.Config{
				URL:              pooler(t, pgtest.EmptyURL(t), strict) + "&lock_timeout=7s",
				StatementTimeout: 1500 * time.Millisecond, LockTimeout: time.Second, IdleInTransactionTimeout: 2 * time.Second,
			})
			if pooled, err := postgres.Pooled(t.Context(), pool); err != nil || !pooled {
				t.Fatalf("pooled: %t, %v", pooled, err)
			}
			within := settingsOf{"1500ms", "7s", "2s", "read committed", "off"}
			err := postgres.InTx(t.Context(), pool, func(_ context.Context, tx pgx.Tx) error {
				wantSettings(t, tx, within)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			tx, err := postgres.BeginTx(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
			if err != nil {
				t.Fatal(err)
			}
			within.isolation, within.readOnly = "repeatable read", "on"
			wantSettings(t, tx, within)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantSettings(t, pool, settingsOf{"0", "0", "0", "read committed", "off"})
		})
	}
}

func TestBehindAPoolerStatementsAreBounded(t *testing.T) {
	t.Parallel()
	direct := pgtest.EmptyURL(t)
	pool := open(t, postgres.Config{URL: pooler(t, direct, true), StatementTimeout: 100 * time.Millisecond})

	_, alone := pool.Exec(t.Context(), "SELECT pg_sleep(120)")
	if !errors.Is(alone, context.DeadlineExceeded) || postgres.ConnectionLost(alone) {
		t.Errorf("outside of a transaction: %v", alone)
	}
	batch := &pgx.Batch{}
	batch.Queue("SELECT pg_sleep($1)", 120)
	if err := pool.SendBatch(t.Context(), batch).Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("outside of a transaction, in a batch: %v", err)
	}
	within := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep($1)", 120)
		return err
	})
	const queryCanceled = "57014"
	var refused *pgconn.PgError
	if !errors.As(within, &refused) || refused.Code != queryCanceled {
		t.Errorf("within a transaction: %v", within)
	}
	// Nothing goes on for which nobody waits.
	watch := open(t, postgres.Config{URL: direct})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for running := -1; running != 0; {
		if err := watch.QueryRow(ctx, `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()`).Scan(&running); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBehindAPoolerNothingIsPrepared(t *testing.T) {
	t.Parallel()
	for suffix, want := range map[string]int{"": 0, "&default_query_exec_mode=cache_statement": 1} {
		pool := open(t, postgres.Config{URL: pooler(t, pgtest.EmptyURL(t), true) + suffix, MaxConns: 1, StatementTimeout: time.Minute})
		var n int
		for range 2 {
			if err := pool.QueryRow(t.Context(), "SELECT $1::int4", 1).Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%$1::int4'", pgx.QueryExecModeSimpleProtocol).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		if n != want {
			t.Errorf("%q: %d prepared statements, want %d", suffix, n, want)
		}
	}
}

func TestWithoutAPoolerNothingChanges(t *testing.T) {
	t.Parallel()
	pool := open(t, postgres.Config{URL: pgtest.EmptyURL(t), LockTimeout: time.Second})
	if pooled, err := postgres.Pooled(t.Context(), pool); err != nil || pooled {
		t.Errorf("pooled: %t, %v", pooled, err)
	}
	if got := pool.Config().ConnConfig.DefaultQueryExecMode; got != pgx.QueryExecModeCacheStatement {
		t.Errorf("exec mode %s", got)
	}
	// Its settings are the session's, and nothing is set at each BEGIN.
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	wantSettings(t, conn, settingsOf{"0", "1s", "0", "read committed", "off"})
	if custom := conn.Conn().PgConn().CustomData(); len(custom) != 0 {
		t.Errorf("the connection keeps %v", custom)
	}
}

// settingsOf a transaction or a session.
type settingsOf struct{ statement, lock, idle, isolation, readOnly string }

func wantSettings(t *testing.T, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, want settingsOf,
) {
	t.Helper()
	var got settingsOf
	err := db.QueryRow(t.Context(), `
SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
       current_setting('transaction_isolation'), current_setting('transaction_read_only')`).
		Scan(&got.statement, &got.lock, &got.idle, &got.isolation, &got.readOnly)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("settings %v, want %v", got, want)
	}
}

func open(t *testing.T, cfg postgres.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// pooler returns the address of what a client can tell from a pooler in nothing but that sessions are not shared: it
// names them otherwise, and, if it is strict, refuses to set timeouts at their start. What is true of the real one is
// tested in deploy/local/systemtest.
func pooler(t *testing.T, address string, strict bool) string {
	t.Helper()
	return proxied(t, address, func(client, server net.Conn, running *sync.WaitGroup) {
		if !introduce(client, server, strict) {
			return
		}
		running.Go(func() {
			defer client.Close()
			_, _ = io.Copy(client, server)
		})
		_, _ = io.Copy(server, client)
	})
}

// introduce passes a start-up on, and reports whether a session follows.
func introduce(client, server net.Conn, strict bool) bool {
	const otherwise = 0x5a5a5a5a
	toClient, toServer := pgproto3.NewBackend(client, client), pgproto3.NewFrontend(server, server)
	first, err := toClient.ReceiveStartupMessage()
	if err != nil {
		return false
	}
	switch first := first.(type) {
	case *pgproto3.CancelRequest:
		first.ProcessID ^= otherwise
	case *pgproto3.StartupMessage:
		for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			if _, given := first.Parameters[name]; given && strict {
				toClient.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
				_ = toClient.Flush()
				return false
			}
		}
	}
	toServer.Send(first)
	if toServer.Flush() != nil {
		return false
	}
	for {
		answer, err := toServer.Receive()
		if err != nil {
			return false
		}
		key, isKey := answer.(*pgproto3.BackendKeyData)
		if isKey {
			key.ProcessID ^= otherwise
		}
		toClient.Send(answer)
		if toClient.Flush() != nil {
			return false
		}
		if _, ready := answer.(*pgproto3.ReadyForQuery); ready {
			return true
		}
	}
}
