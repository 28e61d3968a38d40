package outbox_test

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// session is a transaction whose connection keeps the plans that it has made.
type session struct {
	w  *world
	tx pgx.Tx
}

// sessionOnEmptyTables begins a session while the tables are empty, and known to be. Nobody analyses them, nor the tickets:
// statements would be planned again.
func (w *world) sessionOnEmptyTables(tables ...string) *session {
	w.t.Helper()
	for _, table := range append(tables, "ticket") {
		w.exec("ALTER TABLE " + table + " SET (autovacuum_enabled = off)")
	}
	for _, table := range tables {
		w.exec("VACUUM ANALYZE " + table)
	}
	conn, err := w.db.Acquire(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	tx, err := conn.Begin(w.t.Context())
	if err != nil {
		conn.Release()
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = tx.Rollback(context.WithoutCancel(w.t.Context()))
		conn.Release()
	})
	return &session{w, tx}
}

func (s *session) exec(sql string, args ...any) {
	s.w.t.Helper()
	if _, err := s.tx.Exec(s.w.t.Context(), sql, args...); err != nil {
		s.w.t.Fatal(err)
	}
}

// within takes back what fn does, and the settings that it makes.
func (s *session) within(fn func()) {
	s.w.t.Helper()
	s.exec("SAVEPOINT s")
	fn()
	s.exec("ROLLBACK TO s")
}
