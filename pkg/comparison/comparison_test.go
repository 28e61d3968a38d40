package comparison_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Of a statement that is executed often, the server would come to keep one plan for all arguments, which for 200,000 names
// takes minutes where one for them takes seconds.
func TestEachListOfNamesHasItsPlan(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, external_id, subject, message, content_hash)
		SELECT uuid_v7(), 'acme', 'x' || i, '', '', sha256(i::text::bytea) FROM generate_series(1, 50) i`); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const times = 10 // the sixth may be the first with a plan for all
	for range times {
		err := comparison.InSnapshot(t.Context(), conn, time.Minute, func(ctx context.Context, s comparison.Snapshot) error {
			of := comparison.Selection{Named: &comparison.Names{Tickets: []uuid.UUID{}, Externals: []string{"x1", "x7", "none"}}}
			found := 0
			for _, err := range s.Pairs(ctx, of, [32]byte{1}, nil) {
				if err != nil {
					return err
				}
				found++
			}
			if found != 2 {
				t.Errorf("found %d tickets of 2", found)
			}
			_, err := s.Expense(ctx, of, [32]byte{1})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"Pairs", "Expense"} {
		var generic, custom int
		if err := conn.QueryRow(t.Context(), `SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '-- name: ' || $1 || ' :%'`,
			name).Scan(&generic, &custom); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if generic > 0 || custom != times {
			t.Errorf("%s has had %d plans for all arguments, and %d of its own", name, generic, custom)
		}
	}
}

// Who has seen enough may stop, and the snapshot is good for more.
func TestPairsStop(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), `INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), 'acme', '', '', sha256(i::text::bytea) FROM generate_series(1, 50) i`); err != nil {
		t.Fatal(err)
	}
	err := comparison.InSnapshot(t.Context(), db, time.Minute, func(ctx context.Context, s comparison.Snapshot) error {
		for range 2 {
			seen := 0
			for _, err := range s.Pairs(ctx, comparison.Selection{}, [32]byte{1}, &[32]byte{2}) {
				if err != nil {
					return err
				}
				if seen++; seen == 3 {
					break
				}
			}
			if seen != 3 {
				t.Errorf("seen %d", seen)
			}
		}
		_, err := s.Expense(ctx, comparison.Selection{}, [32]byte{1})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
