package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// activate makes a version the one that tickets are evaluated under.
func activate(ctx context.Context, db postgres.Beginner, v evaluation.Version) error {
	const by = "demo"
	return postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, by); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, v.ID, "", by)
	})
}

// readVersion reads a version as VersionService takes it.
func readVersion(path string) (evaluation.Version, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return evaluation.Version{}, fmt.Errorf("read a version: %w", err)
	}
	var m adminv1.Version
	if err := protojson.Unmarshal(data, &m); err != nil {
		return evaluation.Version{}, fmt.Errorf("read version %s: %w", path, err)
	}
	v := evaluation.Version{
		ID: m.GetId(), PromptVersion: m.GetPromptVersion(), Provider: m.GetProvider(), Model: m.GetModel(), Effort: m.GetEffort(),
		Prompt: m.GetPrompt(), MaxOutputTokens: int(m.GetMaxOutputTokens()), Route: m.GetRoute(),
		MaxAttempts: int(m.GetMaxAttempts()), UnknownPolicy: evaluation.UnknownPolicy(m.GetUnknownPolicy()),
		MaxUnknownCalls: evaluation.DefaultMaxUnknownCalls, MaxAge: m.GetMaxAge().AsDuration(),
	}
	if m.MaxUnknownCalls != nil {
		v.MaxUnknownCalls = int(m.GetMaxUnknownCalls())
	}
	for _, d := range m.GetDepartments() {
		v.Departments = append(v.Departments, evaluation.Department{Name: d.GetName(), Description: d.GetDescription()})
	}
	p := m.GetPrices()
	for _, price := range []struct {
		text string
		into *decimal.Decimal
	}{
		{p.GetInputUsdPerMtok(), &v.Prices.InputUSDPerMTok},
		{p.GetCachedInputUsdPerMtok(), &v.Prices.CachedInputUSDPerMTok},
		{p.GetOutputUsdPerMtok(), &v.Prices.OutputUSDPerMTok},
	} {
		if price.text == "" {
			continue
		}
		if *price.into, err = decimal.NewFromString(price.text); err != nil {
			return evaluation.Version{}, fmt.Errorf("read version %s: price %q: %w", path, price.text, err)
		}
	}
	return v.WithDefaults(), nil
}

// withDepartmentsOf returns the version for tickets whose departments people have named. Where those are the version's
// own, it knows more of them than their names.
func withDepartmentsOf(v evaluation.Version, truths []string) evaluation.Version {
	known := func(truth string) bool {
		return slices.ContainsFunc(v.Departments, func(d evaluation.Department) bool { return report.SameDepartment(d.Name, truth) })
	}
	if !slices.ContainsFunc(truths, func(truth string) bool { return !known(truth) }) {
		return v
	}
	v.ID = "demo-of-file-1"
	v.Departments = nil
	for _, truth := range slices.Sorted(slices.Values(truths)) {
		v.Departments = append(v.Departments, evaluation.Department{Name: truth, Description: humanise(truth)})
	}
	return v
}

// humanise makes words of an identifier: "debt_collection" is "debt collection".
func humanise(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' || r == ' ' })
	return strings.Join(words, " ")
}

func departmentNames(v evaluation.Version) []string {
	names := make([]string, len(v.Departments))
	for i, d := range v.Departments {
		names[i] = d.Name
	}
	return names
}
