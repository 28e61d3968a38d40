package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// The client cannot tell the two apart, which is the point: in one the transaction is committed.
func TestInTxDoesNotRetryAnUnknownCommit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		deliver bool
		balance int
	}{
		"lost on its way": {false, 0},
		"answer lost":     {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := account(t)
			through := pgtest.Pool(t, cutAtCommit(t, direct.Config().ConnString(), test.deliver))
			tries := 0
			err := postgres.InTx(t.Context(), through, func(ctx context.Context, tx pgx.Tx) error {
				tries++
				return add(ctx, tx, 1, 1)
			})
			if !errors.Is(err, postgres.ErrCommitUnknown) || tries != 1 {
				t.Errorf("%d tries, %v; want one and ErrCommitUnknown", tries, err)
			}
			if postgres.Retryable(err) || !postgres.ConnectionLost(err) {
				t.Errorf("retryable %t, connection lost %t", postgres.Retryable(err), postgres.ConnectionLost(err))
			}
			// The server has rolled back, or committed, when it gives the row's lock up.
			execute(t, direct, "BEGIN; SELECT FROM account WHERE id = 1 FOR UPDATE; COMMIT")
			wantBalance(t, direct, 1, test.balance)
		})
	}
}

func TestInTxDoesNotKnowWhatAServerDidThatWentDown(t *testing.T) {
	t.Parallel()
	pool := account(t)
	atCommit(t, pool, `PERFORM pg_terminate_backend(pg_backend_pid());`)
	tries := 0
	err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		tries++
		return add(ctx, tx, 1, 1)
	})
	if !errors.Is(err, postgres.ErrCommitUnknown) || !postgres.ConnectionLost(err) || tries != 1 {
		t.Errorf("%d tries, %v; want one and ErrCommitUnknown", tries, err)
	}
}

func TestInTxKnowsThatALostConnectionCommittedNothing(t *testing.T) {
	t.Parallel()
	pool := account(t)
	err := postgres.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := add(ctx, tx, 1, 1); err != nil {
			return err
		}
		_, _ = tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())") // swallowed: COMMIT finds the connection closed
		return nil
	})
	if err == nil || errors.Is(err, postgres.ErrCommitUnknown) || !postgres.ConnectionLost(err) {
		t.Errorf("%v; want a lost connection and a known outcome", err)
	}
	wantBalance(t, pool, 1, 0)
}

func TestConnectionLost(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgtest.Options{})
	pool := pgtest.Pool(t, server.URL())
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()

	_, statement := conn.Exec(t.Context(), "SELECT 1/0")
	expired, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	timedOut := pool.QueryRow(expired, "SELECT pg_sleep(60)").Scan(nil)
	if err := server.Restart(t.Context(), pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	_, crashed := conn.Exec(t.Context(), "SELECT 1")
	_, closed := conn.Exec(t.Context(), "SELECT 1")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	_, refused := postgres.Open(t.Context(), postgres.Config{URL: server.URL()})

	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"none": {nil, false}, "statement": {statement, false}, "own deadline": {timedOut, false},
		"server crashed": {crashed, true}, "closed before": {closed, true}, "refused": {refused, true},
	} {
		if test.err == nil && name != "none" {
			t.Errorf("%s: no error", name)
		}
		if got := postgres.ConnectionLost(test.err); got != test.want {
			t.Errorf("%s: lost %t, want %t: %v", name, got, test.want, test.err)
		}
	}
}

func TestConstraintViolation(t *testing.T) {
	t.Parallel()
	pool := account(t)
	for name, test := range map[string]struct {
		sql, constraint string
		ok              bool
	}{
		"unique":   {"INSERT INTO account VALUES (1, 0)", "account_pkey", true},
		"not null": {"INSERT INTO account (id) VALUES (3)", "", true},
		"other":    {"SELECT 1/0", "", false},
	} {
		_, err := pool.Exec(t.Context(), test.sql)
		if got, ok := postgres.ConstraintViolation(err); got != test.constraint || ok != test.ok {
			t.Errorf("%s: %q, %t; want %q, %t", name, got, ok, test.constraint, test.ok)
		}
	}
}

// cutAtCommit returns the address of a proxy that cuts a connection at its COMMIT: before the server sees it, or,
// if deliver is set, once the server has answered.
func cutAtCommit(t *testing.T, address string, deliver bool) string {
	t.Helper()
	return proxied(t, address, func(client, server net.Conn, running *sync.WaitGroup) {
		committed := make(chan struct{})
		running.Go(func() {
			defer client.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := server.Read(buf)
				if err != nil {
					return
				}
				select {
				case <-committed:
					return
				default:
				}
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
		})
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte("commit\x00")) {
				close(committed)
				if deliver {
					_, _ = server.Write(buf[:n])
					_, _ = io.Copy(io.Discard, client) // until the other direction closes it
				}
				return
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
	})
}
