package postgres_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

func TestUUIDs(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.EmptyURL(t))
	one, two := uuid.New(), uuid.New()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		var (
			id       uuid.UUID
			optional *uuid.UUID
			all      []uuid.UUID
			text     string
		)
		if err := db.QueryRow(t.Context(), "SELECT $1::uuid, $2::uuid, $3::uuid[], $1::uuid::text", mode, one, &two, []uuid.UUID{one, two}).
			Scan(&id, &optional, &all, &text); err != nil {
			t.Fatalf("%v: %v", mode, err)
		}
		if id != one || optional == nil || *optional != two || !slices.Equal(all, []uuid.UUID{one, two}) || text != one.String() {
			t.Errorf("%v: %v, %v, %v, %s", mode, id, optional, all, text)
		}
		var none *uuid.UUID
		if err := db.QueryRow(t.Context(), "SELECT $1::uuid, $2::uuid[]", mode, none, []uuid.UUID(nil)).Scan(&optional, &all); err != nil {
			t.Fatalf("%v: %v", mode, err)
		}
		if optional != nil || all != nil {
			t.Errorf("%v: NULL is %v, %v", mode, optional, all)
		}
		if err := db.QueryRow(t.Context(), "SELECT NULL::uuid", mode).Scan(&id); mode != pgx.QueryExecModeSimpleProtocol && mode != pgx.QueryExecModeExec && err == nil {
			t.Errorf("%v: NULL was scanned into an identifier", mode)
		}
	}
}
