package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call is a row of the ledger, as far as charges go.
type call struct {
	version string
	day     int // before today
	outcome string
	cost    string // "" is unknown
	charged string // "" is not charged
}

func insert(t *testing.T, db *pgxpool.Pool, c call) uuid.UUID {
	t.Helper()
	optional := func(s string) *decimal.Decimal {
		if s == "" {
			return nil
		}
		d := decimal.RequireFromString(s)
		return &d
	}
	id := uuid.Must(uuid.NewV7())
	_, err := db.Exec(t.Context(), `INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, outcome, started_at, finished_at, class, reason, cost_usd, charged_usd)
		VALUES ($1, '', $2, gen_random_uuid(), 1, $3, now() - make_interval(days => $4), CASE WHEN $3 <> 'open' THEN now() END, 'transient', 'server_error', $5, $6)`,
		id, c.version, c.outcome, c.day, optional(c.cost), optional(c.charged))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.New(t)
	for _, name := range []string{"a", "b"} {
		if _, err := db.Exec(t.Context(), "INSERT INTO provider_route (name) VALUES ($1)", name); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(t.Context(), `INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
			VALUES ($1, 'p', 'openai', 'm', '', '[{"name": "a"}]', 1, 1, sha256(convert_to($1, 'UTF8')), $1, 'test')`, name); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

func settle(t *testing.T, db *pgxpool.Pool, calls ...uuid.UUID) (deltas []route.Delta) {
	t.Helper()
	err := postgres.InTx(t.Context(), db, func(ctx context.Context, tx pgx.Tx) (err error) {
		if deltas, err = ledger.SettleCharges(ctx, tx, calls); err != nil {
			return err
		}
		return route.Charge(ctx, tx, deltas)
	})
	if err != nil {
		t.Fatal(err)
	}
	return deltas
}

func TestSettledChargeFollowsTheOutcome(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, c := range []struct {
		outcome, cost, want string
	}{
		{"open", "", "1"},
		{"unknown", "", "1"},
		{"unsent", "", "0"},
		{"failed", "", "0"},
		{"failed", "0.25", "0.25"},
		{"saved", "0.25", "0.25"},
		{"saved", "", "1"},
		{"rejected", "0.25", "0.25"},
		{"rejected", "", "1"},
		{"answered", "0.25", "0.25"},
		{"answered", "1.5", "1.5"},
		{"answered", "0", "0"},
		{"answered", "", "1"},
	} {
		id := insert(t, db, call{version: "a", outcome: c.outcome, cost: c.cost, charged: "1"})
		change := decimal.Zero
		for _, d := range settle(t, db, id) {
			change = change.Add(d.USD)
		}
		var charged decimal.Decimal
		if err := db.QueryRow(t.Context(), "SELECT charged_usd FROM model_call WHERE id = $1", id).Scan(&charged); err != nil {
			t.Fatal(err)
		}
		if want := decimal.RequireFromString(c.want); !charged.Equal(want) || !change.Equal(want.Sub(decimal.New(1, 0))) {
			t.Errorf("%s at a cost of %q is charged %s, a change of %s; want %s", c.outcome, c.cost, charged, change, want)
		}
		for _, d := range settle(t, db, id) {
			if !d.USD.IsZero() {
				t.Errorf("%s: settled again, the charge changes by %s", c.outcome, d.USD)
			}
		}
	}
}

// Changes go to the day, the month and the routes that the calls belong to, and what no budget has charged stays so.
func TestChangesGoWhereTheyBelong(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	calls := []uuid.UUID{
		insert(t, db, call{"a", 0, "answered", "0.25", "1"}),
		insert(t, db, call{"a", 0, "failed", "", "1"}),
		insert(t, db, call{"a", 1, "answered", "0.5", "1"}),
		insert(t, db, call{"b", 0, "answered", "0.75", "1"}),
		insert(t, db, call{"b", 0, "answered", "9", ""}),
	}
	for _, sql := range []string{
		`INSERT INTO spend (scope, period, period_start, used_usd)
			SELECT s.scope, 'day', spend_period('day', now()) - d, 100 FROM (VALUES ('*'), ('a'), ('b')) s (scope), generate_series(0, 2) d`,
		`INSERT INTO spend (scope, period, period_start, used_usd) VALUES ('*', 'month', spend_period('month', now() - interval '3 months'), 100)`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, db, calls...)
	settle(t, db, calls...)
	for sql, want := range map[string]string{
		"scope = 'a' AND period_start = spend_period('day', now())":     "98.25",
		"scope = 'b' AND period_start = spend_period('day', now())":     "99.75",
		"scope = '*' AND period_start = spend_period('day', now())":     "98",
		"scope = 'a' AND period_start = spend_period('day', now()) - 1": "99.5",
		"scope = '*' AND period_start = spend_period('day', now()) - 1": "99.5",
		"scope = 'b' AND period_start = spend_period('day', now()) - 1": "100",
		"scope = '*' AND period_start = spend_period('day', now()) - 2": "100",
		"period = 'month'": "100",
	} {
		var used decimal.Decimal
		if err := db.QueryRow(t.Context(), "SELECT used_usd FROM spend WHERE "+sql).Scan(&used); err != nil {
			t.Fatal(err)
		}
		if !used.Equal(decimal.RequireFromString(want)) {
			t.Errorf("%s: %s used, want %s", sql, used, want)
		}
	}
	var uncharged int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM model_call WHERE charged_usd IS NULL").Scan(&uncharged); err != nil || uncharged != 1 {
		t.Errorf("%d calls are not charged, %v, want 1", uncharged, err)
	}
}

// Charges of many routes and days at once wait for each other, in whatever order they come.
func TestChargesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	if _, err := db.Exec(t.Context(), `INSERT INTO spend (scope, period, period_start)
		SELECT s.scope, p.period, spend_period(p.period, now()) FROM (VALUES ('*'), ('a'), ('b')) s (scope), (VALUES ('day'), ('month')) p (period)`); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	done := make(chan error)
	orders := [][]string{{"a", "b"}, {"b", "a"}, {"a"}, {"b"}}
	for _, order := range orders {
		go func() {
			var err error
			for range 50 {
				var deltas []route.Delta
				for _, name := range order {
					deltas = append(deltas, route.Delta{Route: name, OpenedAt: now, USD: decimal.New(1, 0)})
				}
				// InTx would make a deadlock good.
				if err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return route.Charge(t.Context(), tx, deltas) }); err != nil {
					break
				}
			}
			done <- err
		}()
	}
	for range orders {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var used string
	if err := db.QueryRow(t.Context(), "SELECT string_agg(used_usd::text, ' ' ORDER BY scope, period) FROM spend").Scan(&used); err != nil || used != "300 300 150 150 150 150" {
		t.Errorf("used are %q, %v", used, err)
	}
}
