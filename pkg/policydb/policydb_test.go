package policydb_test

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// What the migrations bring along compiles, has the digest that they say, and decides what it always has.
func TestTheFirstPolicy(t *testing.T) {
	t.Parallel()
	active, err := policydb.GetActive(t.Context(), pgtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	const golden = "6b07e198edd7164d71d0fca395521a569f7a9bba49066e6bb7e1c2404820ab18"
	if active.ID != "builtin-1" || !active.Active || active.Digest != active.Policy.Digest() || hex.EncodeToString(active.Digest[:]) != golden {
		t.Errorf("%+v has the digest %x", active, active.Policy.Digest())
	}
	compiled, err := policy.Compile(active.Policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		urgent, score float64
		want          string
	}{
		{0, 0, "low"},
		{0.49, 0.24, "low"},
		{0, 0.25, "normal"},
		{0.49, 0.74, "normal"},
		{0, 0.75, "high"},
		{0, 1, "high"},
		{0.5, 0, "high"},
		{1, 0.49, "high"},
		{0.5, 0.5, "urgent"},
		{1, 1, "urgent"},
	} {
		got := compiled.Decide(evaluation.Answer{IsUrgent: c.urgent, UrgencyScore: c.score, Department: "Billing"})
		want := evaluation.Decision{PolicyVersion: "builtin-1", Priority: c.want, Queue: "Billing"}
		if got != want {
			t.Errorf("is_urgent %v, urgency_score %v: %+v, want %+v", c.urgent, c.score, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		fraction := rapid.Float64Range(0, 1)
		less := evaluation.Answer{IsUrgent: fraction.Draw(t, "urgent"), UrgencyScore: fraction.Draw(t, "score")}
		more := evaluation.Answer{
			IsUrgent:     rapid.Float64Range(less.IsUrgent, 1).Draw(t, "more urgent"),
			UrgencyScore: rapid.Float64Range(less.UrgencyScore, 1).Draw(t, "higher score"),
		}
		higher := slices.Index(policy.Priorities(), compiled.Decide(more).Priority)
		lower := slices.Index(policy.Priorities(), compiled.Decide(less).Priority)
		if higher < 0 || higher > lower {
			t.Fatalf("%+v is %d, %+v is %d", less, lower, more, higher)
		}
	})
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	p := func(id string) policy.Policy {
		return policy.Policy{
			ID: id, Description: "d", UrgentThreshold: 0.75,
			Rules: []policy.Rule{{Name: "a", When: `department == "x"`, Priority: "high", Queue: "q"}, {Name: "b", When: "true", Priority: "low"}},
		}
	}
	register := func(p policy.Policy) (created bool, err error) {
		err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			created, err = policydb.Register(ctx, tx, p, "ana")
			return err
		})
		return created, err
	}
	activate := func(id, expected string) (replaced string, err error) {
		err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			replaced, err = policydb.Activate(ctx, tx, id, expected, "ana")
			return err
		})
		return replaced, err
	}
	for _, want := range []bool{true, false} {
		if created, err := register(p("p1")); err != nil || created != want {
			t.Fatalf("created %t, %v", created, err)
		}
	}
	edited := p("p1")
	edited.Rules = []policy.Rule{{Name: "b", When: "true", Priority: "normal"}}
	var conflict *policydb.ConflictError
	if _, err := register(edited); !errors.As(err, &conflict) || len(conflict.Differences) != 1 || conflict.Differences[0].Field != "rules" {
		t.Errorf("edited: %v", err)
	}
	broken := p("p2")
	broken.Rules[0].When = "no"
	if _, err := register(broken); err == nil {
		t.Error("registered what does not compile")
	}
	if _, err := register(p("p2")); err != nil {
		t.Fatal(err)
	}
	got, err := policydb.Get(ctx, db, "p1")
	if err != nil || got.Active || got.CreatedBy != "ana" || got.Digest != p("p1").Digest() || len(policy.Diff(got.Policy, p("p1"))) != 0 {
		t.Errorf("stored %+v, %v", got, err)
	}
	if _, err := policydb.Get(ctx, db, "p3"); !errors.Is(err, policydb.ErrNotFound) {
		t.Error(err)
	}
	for _, sql := range []string{"UPDATE policy SET description = 'x'", "DELETE FROM policy"} {
		if _, err := db.Exec(ctx, sql); err == nil {
			t.Errorf("%s has succeeded", sql)
		}
	}
	var changed *policydb.ActiveChangedError
	if _, err := activate("p1", "p2"); !errors.As(err, &changed) || changed.Active != "builtin-1" {
		t.Error(err)
	}
	if _, err := activate("p3", ""); !errors.Is(err, policydb.ErrNotFound) {
		t.Error(err)
	}
	for _, want := range []string{"builtin-1", "p1"} {
		if replaced, err := activate("p1", ""); err != nil || replaced != want {
			t.Errorf("replaced %q, %v, want %s", replaced, err, want)
		}
	}
	if active, err := policydb.GetActive(ctx, db); err != nil || active.ID != "p1" || !active.Active {
		t.Errorf("%+v, %v", active, err)
	}
	var ids []string
	for after := ""; ; {
		page, err := policydb.List(ctx, db, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, p := range page {
			ids = append(ids, p.ID)
		}
		after = ids[len(ids)-1]
	}
	if !slices.Equal(ids, []string{"p2", "p1", "builtin-1"}) {
		t.Errorf("listed %v", ids)
	}
	history, err := policydb.Activations(ctx, db, 0, 10)
	if err != nil || len(history) != 2 || history[0].PolicyID != "p1" || history[0].Replaced != "builtin-1" || history[0].By != "ana" || history[1].Replaced != "" {
		t.Errorf("history %+v, %v", history, err)
	}
}
