package versiondb_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

func version(id string) evaluation.Version {
	return evaluation.Version{
		ID: id, PromptVersion: "2026-11", Provider: "openai", Model: "m", Effort: "low", Prompt: "Sort " + id, AnswerSchema: evaluation.AnswerSchema,
		Departments:     []evaluation.Department{{Name: "billing", Description: "money"}, {Name: "general"}},
		MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 1,
		Prices: evaluation.Prices{
			InputUSDPerMTok: decimal.RequireFromString("0.25"), CachedInputUSDPerMTok: decimal.RequireFromString("0.025"),
			OutputUSDPerMTok: decimal.RequireFromString("2"),
		},
	}.WithDefaults()
}

func TestVersions(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx := t.Context()
	register := func(v evaluation.Version) (created bool, err error) {
		err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			created, err = versiondb.Register(ctx, tx, v, "ana")
			return err
		})
		return created, err
	}
	promote := func(id, expected string) error {
		return postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			return versiondb.Promote(ctx, tx, id, expected, "ana")
		})
	}

	if _, err := versiondb.GetActive(ctx, db); !errors.Is(err, versiondb.ErrNoActive) {
		t.Errorf("active version of a new database: %v", err)
	}
	if err := promote("v1", ""); !errors.Is(err, versiondb.ErrNotFound) {
		t.Errorf("promoted what does not exist: %v", err)
	}
	if created, err := register(version("v1")); err != nil || !created {
		t.Fatalf("register: %v, %v", created, err)
	}
	same := version("v1")
	same.Prices.OutputUSDPerMTok = decimal.RequireFromString("2.00")
	if created, err := register(same); err != nil || created {
		t.Errorf("registered again: %v, %v", created, err)
	}
	var conflict *versiondb.ConflictError
	for name, change := range map[string]func(*evaluation.Version){
		"an edited prompt":  func(v *evaluation.Version) { v.Prompt += "!" },
		"another price":     func(v *evaluation.Version) { v.Prices.InputUSDPerMTok = decimal.NewFromInt(9) },
		"another allowance": func(v *evaluation.Version) { v.MaxUnknownCalls = 0 },
	} {
		v := version("v1")
		change(&v)
		if _, err := register(v); !errors.As(err, &conflict) || conflict.Existing != "v1" {
			t.Errorf("%s: %v", name, err)
		}
	}
	twin := version("v1")
	twin.ID = "v1-again"
	if _, err := register(twin); !errors.As(err, &conflict) || conflict.Existing != "v1" || conflict.ID != "v1-again" {
		t.Errorf("another id with the same digest: %v", err)
	}
	stored, err := versiondb.Get(ctx, db, "v1")
	if err != nil || stored.Digest != version("v1").Digest() || stored.MaxAge != version("v1").MaxAge || stored.Departments[0].Description != "money" || stored.CreatedBy != "ana" {
		t.Errorf("stored %+v, %v", stored, err)
	}
	if _, err := db.Exec(ctx, "UPDATE evaluator_version SET prompt = 'x'"); err == nil {
		t.Error("a version was changed")
	}
	if _, err := db.Exec(ctx, "DELETE FROM evaluator_version"); err == nil {
		t.Error("a version was deleted")
	}

	if _, err := register(version("v2")); err != nil {
		t.Fatal(err)
	}
	if err := promote("v1", ""); err != nil {
		t.Fatal(err)
	}
	var changed *versiondb.ActiveChangedError
	if err := promote("v2", "v2"); !errors.As(err, &changed) || changed.Active != "v1" {
		t.Errorf("promoted against the expectation: %v", err)
	}
	for range 2 {
		if err := promote("v2", ""); err != nil {
			t.Fatal(err)
		}
	}
	if active, err := versiondb.GetActive(ctx, db); err != nil || active.ID != "v2" || active.Digest != version("v2").Digest() || active.Route != "main" {
		t.Errorf("active %+v, %v", active, err)
	}
	var promotions int
	if err := db.QueryRow(ctx, "SELECT count(*) FROM version_promotion").Scan(&promotions); err != nil || promotions != 2 {
		t.Errorf("%d promotions on record, %v, want 2", promotions, err)
	}
	all, err := versiondb.List(ctx, db, "", 10)
	if err != nil || len(all) != 2 || !all[0].Active || all[0].ID != "v2" || all[1].Active {
		t.Errorf("listed %+v, %v", all, err)
	}
}
