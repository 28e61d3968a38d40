package submit

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// counting counts round trips: statements by themselves, and batches.
type counting struct {
	pgx.Tx
	trips *int
}

func (c counting) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	*c.trips++
	return c.Tx.SendBatch(ctx, b)
}

func TestPipeline(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.EmptyURL(t))
	if _, err := db.Exec(t.Context(), "CREATE TABLE done (what int)"); err != nil {
		t.Fatal(err)
	}
	add := func(n int) step {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO done VALUES ($1)", n)
			return err
		}
	}
	var sum, count int
	total := func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT coalesce(sum(what), 0) FROM done").Scan(&sum)
	}
	each := func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT what FROM done")
		if err != nil {
			return err
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[int])
		count = len(all)
		return err
	}
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		steps []step
		fails string
		sum   int // seen in the pipeline
		trips int
	}{
		"nothing":           {},
		"in order":          {steps: []step{add(1), add(2), total, add(4), each}, sum: 3, trips: 1},
		"without statement": {steps: []step{func(context.Context, pgx.Tx) error { return nil }, add(1), total}, sum: 1, trips: 1},
		"a failed statement": {
			steps: []step{add(1), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT 1 / $1::int", 0)
				return err
			}, add(2)},
			fails: "22012", trips: 1,
		},
		"a step that fails before": {
			steps: []step{add(1), func(context.Context, pgx.Tx) error { return refused }, add(2)}, fails: refused.Error(),
		},
		"a step that fails after": {
			steps: []step{add(1), func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(tx.QueryRow(ctx, "SELECT 1").Scan(new(int)), refused)
			}, add(2)},
			fails: refused.Error(), trips: 1,
		},
		"two statements": {
			steps: []step{func(ctx context.Context, tx pgx.Tx) error { return errors.Join(add(1)(ctx, tx), add(2)(ctx, tx)) }},
			fails: "a second statement", trips: 1,
		},
	} {
		t.Run(name, func(t *testing.T) { // not parallel: all use one table
			sum, count = 0, 0
			trips := 0
			err := postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "DELETE FROM done"); err != nil {
					return err
				}
				return pipelined(ctx, counting{Tx: tx, trips: &trips}, c.steps...)
			})
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("error %v, want %q", err, c.fails)
			}
			if c.fails == "" && sum != c.sum || trips != c.trips {
				t.Errorf("sum %d in %d round trips, want %d in %d", sum, trips, c.sum, c.trips)
			}
			if name == "in order" && count != 3 {
				t.Errorf("the last step sees %d rows, want 3", count)
			}
		})
	}
}
