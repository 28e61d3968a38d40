package auditdb_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/auditdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

func inTx(t *testing.T, db *pgxpool.Pool, fn func(ctx context.Context, tx pgx.Tx) error) {
	t.Helper()
	if err := postgres.InTx(t.Context(), db, fn); err != nil {
		t.Fatal(err)
	}
}

func TestARecordNeverChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	want := auditdb.Change{
		Principal: "ana", Method: "S.M", Target: "things/1", After: json.RawMessage(`{"a": 1}`), Reason: "why", RequestID: "k", TraceID: "t",
	}
	inTx(t, db, func(ctx context.Context, tx pgx.Tx) error { return auditdb.Record(ctx, tx, want) })
	for _, sql := range []string{"UPDATE admin_audit SET reason = 'another'", "DELETE FROM admin_audit"} {
		if _, err := db.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s has succeeded", sql)
		}
	}
	entries, err := auditdb.List(t.Context(), db, auditdb.Filter{}, 0, 10)
	if err != nil || len(entries) != 1 || fmt.Sprint(entries[0].Change) != fmt.Sprint(want) || entries[0].Before != nil {
		t.Errorf("%+v, %v; want %+v", entries, err, want)
	}
}

// Of two transactions with one key the second waits for the first, and then has its response, or its place.
func TestReserveWaits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := auditdb.Request{Scope: "ana S.M", Key: "k", Fingerprint: [32]byte{1}}
	for name, end := range map[string]func(pgx.Tx) error{
		"committed":   func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
		"rolled back": func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
	} {
		r.Key = name
		first, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, replayed, err := auditdb.Reserve(t.Context(), first, r, time.Hour); err != nil || replayed {
			t.Fatalf("replayed %t, %v", replayed, err)
		}
		if err := auditdb.Respond(t.Context(), first, r, []byte("told")); err != nil {
			t.Fatal(err)
		}
		type outcome struct {
			response []byte
			replayed bool
			err      error
		}
		second := make(chan outcome, 1)
		go func() {
			var o outcome
			o.err = postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) (err error) {
				o.response, o.replayed, err = auditdb.Reserve(ctx, tx, r, time.Hour)
				return err
			})
			second <- o
		}()
		for blocked := false; !blocked; {
			err := db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&blocked)
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := end(first); err != nil {
			t.Fatal(err)
		}
		committed := name == "committed"
		if o := <-second; o.err != nil || o.replayed != committed || committed && string(o.response) != "told" {
			t.Errorf("%s: %q, replayed %t, %v", name, o.response, o.replayed, o.err)
		}
	}
}

func TestKeysAreKeptForTheirRetention(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reserve := func(key string, fingerprint byte, retention time.Duration) (response []byte, replayed bool, err error) {
		err = postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) error {
			r := auditdb.Request{Scope: "ana S.M", Key: key, Fingerprint: [32]byte{fingerprint}}
			if response, replayed, err = auditdb.Reserve(ctx, tx, r, retention); err != nil || replayed {
				return err
			}
			return auditdb.Respond(ctx, tx, r, []byte{fingerprint})
		})
		return response, replayed, err
	}
	for _, key := range []string{"kept", "over", "over too"} {
		retention := time.Hour
		if key != "kept" {
			retention = time.Microsecond
		}
		if _, replayed, err := reserve(key, 1, retention); err != nil || replayed {
			t.Fatalf("%s: replayed %t, %v", key, replayed, err)
		}
	}
	if response, replayed, err := reserve("kept", 1, time.Hour); err != nil || !replayed || string(response) != "\x01" {
		t.Errorf("%q, replayed %t, %v", response, replayed, err)
	}
	if _, _, err := reserve("kept", 2, time.Hour); !errors.Is(err, auditdb.ErrKeyReused) {
		t.Errorf("%v, want %v", err, auditdb.ErrKeyReused)
	}
	if _, replayed, err := reserve("over", 2, time.Hour); err != nil || replayed {
		t.Errorf("replayed %t, %v", replayed, err)
	}
	if response, replayed, err := reserve("over", 2, time.Hour); err != nil || !replayed || string(response) != "\x02" {
		t.Errorf("%q, replayed %t, %v", response, replayed, err)
	}
	if n, err := auditdb.PruneRequests(t.Context(), db, 10); err != nil || n != 1 {
		t.Errorf("pruned %d, %v", n, err)
	}
	if n, err := auditdb.PruneRequests(t.Context(), db, 10); err != nil || n != 0 {
		t.Errorf("pruned %d, %v", n, err)
	}
}
