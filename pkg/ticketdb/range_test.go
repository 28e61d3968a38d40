package ticketdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// Each ticket is on one side of the horizon, and on the near side only when it was committed by then: whenever, and in
// whatever transaction, it is written.
func TestAHorizonDividesTickets(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	insert := func(tx interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	},
	) (id uuid.UUID) {
		t.Helper()
		if err := tx.QueryRow(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
			VALUES (uuid_v7(), 'c', 's', 'm', sha256('m'), $1) RETURNING id`, at).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	commit := func(tx pgx.Tx) {
		t.Helper()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	early := map[uuid.UUID]bool{insert(db): true, insert(db): true}
	underWay, silent, nested := begin(), begin(), begin()
	late := map[uuid.UUID]bool{insert(underWay): true}
	var one int
	if err := silent.QueryRow(t.Context(), "SELECT 1").Scan(&one); err != nil { // has begun, and writes nothing yet
		t.Fatal(err)
	}
	savepoint, err := nested.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late[insert(savepoint)] = true
	commit(savepoint)

	r := ticketdb.Range{From: at, To: at.Add(time.Second)}
	horizon, err := ticketdb.DrawHorizon(t.Context(), db, r)
	if err != nil || horizon.Tickets != 2 {
		t.Fatalf("the horizon is %+v, %v", horizon, err)
	}
	_, own, _, err := ticketdb.Writers(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	late[insert(silent)] = true
	late[insert(db)] = true
	late[insert(underWay)] = true
	for _, tx := range []pgx.Tx{silent, nested, underWay} {
		if over, _, _, err := ticketdb.Writers(t.Context(), db, own); err != nil || over {
			t.Fatalf("all writers are over while some are not: %v", err)
		}
		wantSide(t, db, r, horizon.XID, true, early)
		commit(tx)
	}
	if over, _, _, err := ticketdb.Writers(t.Context(), db, own); err != nil || !over {
		t.Errorf("the writers are not over: %v", err)
	}
	wantSide(t, db, r, horizon.XID, true, early)
	wantSide(t, db, r, horizon.XID, false, late)
}

func wantSide(t *testing.T, db *pgxpool.Pool, r ticketdb.Range, horizon int64, before bool, want map[uuid.UUID]bool) {
	t.Helper()
	got, err := ticketdb.Scan(t.Context(), db, r, ticketdb.Position{CreatedAt: r.From}, horizon, before, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, ticket := range got {
		if !want[ticket.ID] {
			t.Errorf("ticket %s is on the wrong side", ticket.ID)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d tickets are on the side with %t, want %d", len(got), before, len(want))
	}
}

// One server has many databases, and what goes on in another one is waited for by nobody.
func TestAHorizonIsNotHeldBackByAnotherDatabase(t *testing.T) {
	t.Parallel()
	other, err := pgtest.New(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	db := pgtest.New(t)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		VALUES (uuid_v7(), 'c', 's', 'm', sha256('m'), $1)`, at); err != nil {
		t.Fatal(err)
	}
	r := ticketdb.Range{From: at, To: at.Add(time.Second)}
	horizon, err := ticketdb.DrawHorizon(t.Context(), db, r)
	if err != nil {
		t.Fatal(err)
	}
	if early, err := ticketdb.Scan(t.Context(), db, r, ticketdb.Position{CreatedAt: at}, horizon.XID, true, 2); err != nil || len(early) != 1 {
		t.Errorf("%d tickets are before the horizon: %v", len(early), err)
	}
	_, own, _, err := ticketdb.Writers(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	if over, _, _, err := ticketdb.Writers(t.Context(), db, own); err != nil || !over {
		t.Errorf("another database's writer is waited for: %v", err)
	}
}

// The counter of transactions is cut to 32 bits in a row, and goes round.
func TestAHorizonSurvivesTheTurnOfTheCounter(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var xid int64
	if err := db.QueryRow(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		VALUES (uuid_v7(), 'c', 's', 'm', sha256('m'), $1) RETURNING xmin::text::bigint`, at).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	const turn = 1 << 32
	for horizon, before := range map[int64]bool{
		xid: false, xid + 1: true, xid - 1: false,
		xid + turn: false, xid + turn + 1: true, xid + 3*turn - 1: false,
		xid + 1<<31: true, xid + turn - 1<<30: false, xid + turn + 1<<30: true,
	} {
		got, err := ticketdb.Scan(t.Context(), db, ticketdb.Range{From: at, To: at.Add(time.Second)}, ticketdb.Position{CreatedAt: at}, horizon, before, 1)
		if err != nil || len(got) != 1 {
			t.Errorf("xid %d is not on the side with %t of horizon %d: %v", xid, before, horizon, err)
		}
	}
}
