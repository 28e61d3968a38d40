package reprocess

import (
	"math"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

func TestThePriceOfACall(t *testing.T) {
	t.Parallel()
	target := versiondb.Stored{Version: evaluation.Version{
		ID: "v2", Prompt: string(make([]byte, 600)), MaxOutputTokens: 50, Departments: []evaluation.Department{{Name: "billing", Description: "mon"}},
		Prices: evaluation.Prices{InputUSDPerMTok: decimal.NewFromInt(1), CachedInputUSDPerMTok: decimal.RequireFromString("0.1"), OutputUSDPerMTok: decimal.NewFromInt(10)},
	}}
	own := ledger.Use{Calls: enoughCalls, CostUSD: decimal.RequireFromString("0.5"), InputTokens: 7, OutputTokens: 3}
	few := own
	few.Calls--
	for name, c := range map[string]struct {
		uses   map[string]ledger.Use
		basis  CostBasis
		calls  int64
		cost   string
		tokens tokensOfCall
	}{
		"its own calls": {map[string]ledger.Use{"v2": own, "v1": {Calls: 1000}}, FromVersion, enoughCalls, "0.5", tokensOfCall{7, 3}},
		"others' tokens at its prices": {
			map[string]ledger.Use{"v1": {Calls: 30, InputTokens: 100, CachedInputTokens: 40, OutputTokens: 5}, "v0": {Calls: 10, InputTokens: 200, OutputTokens: 25}},
			FromOtherVersions, 40, "0.000198",
			tokensOfCall{125, 10}, // 95 fresh, 30 cached, 10 out
		},
		"too few of its own": {map[string]ledger.Use{"v2": few}, FromText, 0, "0.0015", tokensOfCall{1000, 50}},
		"nothing":            {nil, FromText, 0, "0.0015", tokensOfCall{1000, 50}},
	} {
		e := Estimate{Count: ticketdb.Count{CallBytes: 390}}
		cost, tokens := e.price(target, c.uses)
		want := decimal.RequireFromString(c.cost)
		if e.CostBasis != c.basis || e.BasisCalls != c.calls || !cost.Equal(want) || tokens != c.tokens {
			t.Errorf("by %s: basis %d of %d calls, $%s, %v, want $%s", name, e.CostBasis, e.BasisCalls, cost, tokens, want)
		}
	}
}

func TestThePaceOfARoute(t *testing.T) {
	t.Parallel()
	tokens := tokensOfCall{input: 90, output: 10}
	seen := ledger.Use{Calls: 500, Seconds: 2, BusiestMinute: 240}
	for name, c := range map[string]struct {
		limits route.Limits
		seen   ledger.Use
		pace   float64
		basis  PaceBasis
	}{
		"nothing":            {route.Limits{}, ledger.Use{}, 0, PaceUnknown},
		"too few calls":      {route.Limits{}, ledger.Use{Calls: enoughCalls - 1, BusiestMinute: 60}, 0, PaceUnknown},
		"its busiest minute": {route.Limits{}, seen, 4, FromMeasurement},
		"requests":           {route.Limits{RequestsPerMinute: 600}, seen, 10, FromLimits},
		"input tokens":       {route.Limits{RequestsPerMinute: 600, TokensPerMinute: 5400}, seen, 1, FromLimits},
		"all tokens":         {route.Limits{TokensPerMinute: 6000, CountOutput: true}, seen, 1, FromLimits},
		"calls at once":      {route.Limits{RequestsPerMinute: 600, ConcurrentCalls: 6}, seen, 3, FromLimits},
	} {
		var e Estimate
		e.pace(c.limits, tokens, c.seen)
		if math.Abs(e.CallsPerSecond-c.pace) > 1e-9 || e.PaceBasis != c.basis {
			t.Errorf("by %s: %g calls a second by %d, want %g by %d", name, e.CallsPerSecond, e.PaceBasis, c.pace, c.basis)
		}
	}
}

func TestTheEnd(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	running := jobdb.Job{State: jobdb.Running}
	left := Progress{Phase: "evaluating", Waiting: 110, Held: 0, Processing: 10}
	if at := eta(running, left, now, 60, now); !at.Equal(now.Add(2 * time.Minute)) {
		t.Errorf("120 at 60 a minute end at %s", at)
	}
	if at := eta(running, left, now.Add(time.Hour), 60, now); !at.Equal(now.Add(time.Hour)) {
		t.Errorf("what is due in an hour ends at %s", at)
	}
	if at := eta(running, left, now, 0, now); !at.IsZero() {
		t.Errorf("what does not move ends at %s", at)
	}
	if at := eta(jobdb.Job{State: jobdb.Paused}, left, now, 60, now); !at.IsZero() {
		t.Errorf("a paused job ends at %s", at)
	}
}
