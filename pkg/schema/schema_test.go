package schema_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReady(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := schema.Ready(db)(t.Context()); err != nil {
		t.Errorf("all is applied: %v", err)
	}
	if _, err := db.Exec(t.Context(), "UPDATE goose_db_version SET is_applied = false WHERE version_id = 4"); err != nil {
		t.Fatal(err)
	}
	ready := schema.Ready(db)
	err := ready(t.Context())
	if err == nil || !strings.Contains(err.Error(), "migrate up") || !strings.Contains(err.Error(), "00004_") || strings.Contains(err.Error(), "00003_") {
		t.Errorf("one is missing: %v", err)
	}
	if _, err := db.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (4, true), (999, true)"); err != nil {
		t.Fatal(err)
	}
	if err := ready(t.Context()); err != nil {
		t.Errorf("all is applied, and one of a later release: %v", err)
	}
	if _, err := db.Exec(t.Context(), "DROP TABLE goose_db_version"); err != nil {
		t.Fatal(err)
	}
	if err := schema.Ready(db)(t.Context()); err == nil || !strings.Contains(err.Error(), "00001_") {
		t.Errorf("there is no schema at all: %v", err)
	}
	db.Close()
	if err := ready(t.Context()); err == nil {
		t.Error("a database that is gone is ready")
	}
}
