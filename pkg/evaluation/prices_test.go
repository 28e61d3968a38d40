package evaluation_test

import (
	"math"
	"testing"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestCost(t *testing.T) {
	t.Parallel()
	prices := validVersion().Prices // 0.25, 0.025 cached, 2
	for _, c := range []struct {
		name  string
		usage evaluation.Usage
		want  string
	}{
		{"nothing", evaluation.Usage{}, "0"},
		{"input", evaluation.Usage{InputTokens: 1_000_000}, "0.25"},
		{"one token", evaluation.Usage{InputTokens: 1}, "0.00000025"},
		{"half of it cached", evaluation.Usage{InputTokens: 2000, CachedInputTokens: 1000}, "0.000275"},
		{"all of it cached", evaluation.Usage{InputTokens: 1000, CachedInputTokens: 1000}, "0.000025"},
		{"half of it written to the cache", evaluation.Usage{InputTokens: 2000, CacheWriteTokens: 1000}, "0.0005625"},
		{"a part read, a part written", evaluation.Usage{InputTokens: 4000, CachedInputTokens: 1000, CacheWriteTokens: 2000}, "0.0009"},
		{"more written than input", evaluation.Usage{InputTokens: 1000, CachedInputTokens: 200, CacheWriteTokens: 5000}, "0.000255"},
		{"output", evaluation.Usage{OutputTokens: 300}, "0.0006"},
		{"reasoning is part of output", evaluation.Usage{OutputTokens: 300, ReasoningTokens: 200}, "0.0006"},
		{"all", evaluation.Usage{InputTokens: 1234, CachedInputTokens: 1024, OutputTokens: 57, ReasoningTokens: 5}, "0.0001921"},
		{"more cached than input", evaluation.Usage{InputTokens: 1000, CachedInputTokens: 5000}, "0.000025"},
		{"negative", evaluation.Usage{InputTokens: -1, CachedInputTokens: -2, CacheWriteTokens: -5, OutputTokens: -3, ReasoningTokens: -4}, "0"},
		{"absurd", evaluation.Usage{InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64}, "20752587082923.24556575"},
	} {
		if got := prices.Cost(c.usage); !got.Equal(decimal.RequireFromString(c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestBounded(t *testing.T) {
	t.Parallel()
	sane := evaluation.Usage{InputTokens: 4, CachedInputTokens: 2, CacheWriteTokens: 2, OutputTokens: 2, ReasoningTokens: 1}
	if got := sane.Bounded(); got != sane {
		t.Errorf("%+v became %+v", sane, got)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64()
		u := evaluation.Usage{
			InputTokens: n.Draw(t, "input"), CachedInputTokens: n.Draw(t, "cached"), CacheWriteTokens: n.Draw(t, "written"),
			OutputTokens: n.Draw(t, "output"), ReasoningTokens: n.Draw(t, "reasoning"),
		}.Bounded()
		if u.CachedInputTokens < 0 || u.CacheWriteTokens < 0 || u.CacheWriteTokens > u.InputTokens-u.CachedInputTokens ||
			u.ReasoningTokens < 0 || u.ReasoningTokens > u.OutputTokens {
			t.Fatalf("%+v", u)
		}
	})
}
