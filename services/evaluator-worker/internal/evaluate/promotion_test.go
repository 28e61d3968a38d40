package evaluate_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

// promote registers a version with another model and promotes it; from there on the rig creates under it.
func (r *rig) promote(id, model string) {
	r.t.Helper()
	r.version.ID, r.version.Model = id, model
	r.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, r.version, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, id, "", "test")
	})
}

func (r *rig) tx(do func(ctx context.Context, tx pgx.Tx) error) {
	r.t.Helper()
	if err := postgres.InTx(r.t.Context(), r.db, do); err != nil {
		r.t.Fatal(err)
	}
}

// Versions are promoted, and rolled back, while calls of another one are under way: each call's answer is that of the
// version it was begun under, replaces no other's, and is shown while its version is active, or has no better.
func TestPromoteAndRollBackWithCallsInFlight(t *testing.T) {
	t.Parallel()
	answers := func(department string) providersim.Action {
		return providersim.Action{Hang: providersim.HangBeforeAnswer, Content: `{"is_urgent":0,"urgency_score":0,"department":"` + department + `"}`}
	}
	r := newRig(t,
		providersim.Rule{Match: providersim.Match{Model: "gpt-5-mini"}, Action: answers("billing")},
		providersim.Rule{Match: providersim.Match{Model: "gpt-5"}, Action: providersim.Action{Content: answers("general").Content}},
	)
	first := r.version
	r.create(outbox.Live, 0, 4)
	r.start()
	if err := r.sim.WaitHanging(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	r.promote("v2", "gpt-5")
	r.create(outbox.Live, 0, 3) // the same contents; the fourth is never asked about under v2
	r.until(3, "evaluation_result WHERE version_id = 'v2' AND department = 'general'")
	if n := r.count("evaluation_result WHERE version_id = 'v1'"); n != 0 {
		t.Fatalf("%d calls of v1 have ended", n)
	}
	r.wantShown(4, "v2", 3)
	r.sim.Release()
	r.until(4, "evaluation_result WHERE version_id = 'v1' AND department = 'billing'")
	if n := r.count("evaluation_result WHERE version_id = 'v2' AND department = 'general'"); n != 3 {
		t.Errorf("of 3 answers of v2 %d are left", n)
	}
	r.wantShown(4, "v2", 3)
	r.wantShown(4, "v1", 1) // what v2 has no answer to
	r.tx(func(ctx context.Context, tx pgx.Tx) error {
		id, err := versiondb.Rollback(ctx, tx, "v2", "test")
		if err == nil && id != "v1" {
			t.Errorf("rolled back to %s", id)
		}
		return err
	})
	r.wantShown(4, "v1", 4)
	// New work is v1's again, and finds what v1 has answered.
	r.version = first
	r.create(outbox.Live, 0, 4)
	r.until(0, "evaluation_outbox")
	if s := r.sim.Stats(); s.Billed != 7 {
		t.Errorf("billed %d answers, want 4 of v1 and 3 of v2", s.Billed)
	}
	r.check()
}

// wantShown checks how many of the first tickets show an answer of a version.
func (r *rig) wantShown(tickets int, version string, want int) {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), "SELECT id FROM ticket ORDER BY id LIMIT $1", tickets)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		r.t.Fatal(err)
	}
	shown, err := ticketdb.New(r.db).GetAll(r.t.Context(), ticketdb.OfClient("c"), ids)
	if err != nil {
		r.t.Fatal(err)
	}
	got := 0
	for _, ticket := range shown {
		if e := ticket.Evaluation; e.VersionID == version && e.Answer != nil {
			got++
		}
	}
	if got != want {
		r.t.Errorf("%d of %d tickets show an answer of %s, want %d", got, tickets, version, want)
	}
}

// An activated policy decides within a second, without restarts; and an answer is decided when it comes, not when its call
// was begun.
func TestAnActivatedPolicyDecides(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Match: providersim.Match{Text: "<0>"}, Action: providersim.Action{Hang: providersim.HangBeforeAnswer}})
	keys := r.create(outbox.Live, 0, 2)
	r.start()
	r.until(1, "evaluation_result WHERE policy_version = 'builtin-1'")
	if err := r.sim.WaitHanging(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.tx(func(ctx context.Context, tx pgx.Tx) error {
		p := policy.Policy{ID: "p2", Rules: []policy.Rule{{Name: "all", When: "true", Priority: "high", Queue: "front desk"}}}
		if _, err := policydb.Register(ctx, tx, p, "test"); err != nil {
			return err
		}
		_, err := policydb.Activate(ctx, tx, "p2", "builtin-1", "test")
		return err
	})
	for n := 2; r.count("evaluation_result WHERE policy_version = 'p2'") == 0; n++ {
		r.create(outbox.Live, n, n+1)
		r.until(n, "evaluation_result") // all but the one that hangs
	}
	r.sim.Release()
	r.until(1, "evaluation_result WHERE idempotency_key = $1 AND policy_version = 'p2' AND priority = 'high' AND queue = 'front desk'", string(keys[0]))
	if n := r.count("evaluation_result WHERE idempotency_key = $1 AND policy_version = 'builtin-1'", string(keys[1])); n != 1 {
		t.Error("an old answer was decided anew")
	}
	r.check()
}
