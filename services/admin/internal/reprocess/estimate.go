package reprocess

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

const (
	// recentCalls is how far estimates look back into the ledger.
	recentCalls = 50_000
	// enoughCalls is how many calls make an average.
	enoughCalls = 20
	// bytesPerToken is what tokenizers make of European languages.
	bytesPerToken = 4
	// framingBytes is about what a request has beside the prompt, the departments and the ticket: instructions, and the
	// schema of the answer.
	framingBytes = 3000
)

// CostBasis is what the cost of a call was taken from.
type CostBasis int

// The bases of costs, the best first.
const (
	FromVersion CostBasis = iota + 1
	FromOtherVersions
	FromText
)

// PaceBasis is what the calls in a second were taken from.
type PaceBasis int

// The bases of paces.
const (
	PaceUnknown PaceBasis = iota
	FromLimits
	FromMeasurement
)

// Estimate is what a job would come to.
type Estimate struct {
	ticketdb.Count
	CostUSD        decimal.Decimal // of all calls
	CostBasis      CostBasis
	BasisCalls     int64 // calls in the ledger that the cost was taken from
	CallsPerSecond float64
	PaceBasis      PaceBasis
	Duration       time.Duration
}

// CostError refuses a job whose estimate is above its maximum.
type CostError struct {
	Estimate Estimate
	Max      decimal.Decimal
}

func (e *CostError) Error() string {
	return fmt.Sprintf("%d calls are estimated at $%s, and the maximum is $%s", e.Estimate.Calls(), e.Estimate.CostUSD, e.Max)
}

// Preview estimates what a job would come to, by one statement over the range. It sets, for the rest of the transaction,
// what its plan needs.
func Preview(ctx context.Context, tx pgx.Tx, s Spec) (Estimate, error) {
	target, filterDigest, err := versions(ctx, tx, s)
	if err != nil {
		return Estimate{}, err
	}
	count, err := ticketdb.CountRange(ctx, tx, s.tickets(filterDigest), target.Digest[:], s.Limit)
	if err != nil {
		return Estimate{}, err
	}
	uses, err := ledger.RecentUse(ctx, tx, recentCalls)
	if err != nil {
		return Estimate{}, err
	}
	routes, err := route.New(tx).List(ctx)
	if err != nil {
		return Estimate{}, err
	}
	seen, err := onRoute(ctx, tx, target.Route, uses)
	if err != nil {
		return Estimate{}, err
	}
	e := Estimate{Count: count}
	cost, tokens := e.price(target, uses)
	e.CostUSD = cost.Mul(decimal.NewFromInt(count.Calls())).Round(6)
	for _, r := range routes {
		if r.Name == target.Route {
			e.pace(r.Limits, tokens, seen)
		}
	}
	if count.Calls() == 0 {
		return e, nil
	}
	if e.Duration = s.Spread(); e.CallsPerSecond > 0 {
		e.Duration = max(e.Duration, time.Duration(float64(count.Calls())/e.CallsPerSecond*float64(time.Second)))
	}
	return e, nil
}

// versions looks up the version to evaluate under, and the digest of the filter's, nil when there is none.
func versions(ctx context.Context, tx pgx.Tx, s Spec) (target versiondb.Stored, filterDigest []byte, err error) {
	if target, err = versiondb.Get(ctx, tx, s.Version); err != nil || s.FilterVersion == "" {
		return target, nil, err
	}
	filter, err := versiondb.Get(ctx, tx, s.FilterVersion)
	if err != nil {
		return target, nil, err
	}
	return target, filter.Digest[:], nil
}

// price is what one call is likely to cost, and the tokens that it takes.
func (e *Estimate) price(target versiondb.Stored, uses map[string]ledger.Use) (cost decimal.Decimal, tokens tokensOfCall) {
	if own := uses[target.ID]; own.Calls >= enoughCalls {
		e.CostBasis, e.BasisCalls = FromVersion, own.Calls
		return own.CostUSD, tokensOfCall{own.InputTokens, own.OutputTokens}
	}
	var calls int64
	var input, cached, output float64
	for _, u := range uses {
		calls += u.Calls
		n := float64(u.Calls)
		input, cached, output = input+n*u.InputTokens, cached+n*u.CachedInputTokens, output+n*u.OutputTokens
	}
	if calls >= enoughCalls {
		e.CostBasis, e.BasisCalls = FromOtherVersions, calls
		// All of them together, so that no part of a token is lost.
		total := target.Prices.Cost(evaluation.Usage{InputTokens: int64(input), CachedInputTokens: int64(cached), OutputTokens: int64(output)})
		n := float64(calls)
		return total.DivRound(decimal.NewFromInt(calls), 12), tokensOfCall{input / n, output / n}
	}
	e.CostBasis = FromText
	bytes := float64(framingBytes+len(target.Prompt)) + e.CallBytes
	for _, d := range target.Departments {
		bytes += float64(len(d.Name) + len(d.Description))
	}
	tokens = tokensOfCall{bytes / bytesPerToken, float64(target.MaxOutputTokens)}
	return target.Prices.Cost(evaluation.Usage{InputTokens: int64(tokens.input), OutputTokens: int64(tokens.output)}), tokens
}

type tokensOfCall struct{ input, output float64 }

// pace is how many calls a second the route lets pass: as its limits say, or, where it has none, as it has been seen to.
func (e *Estimate) pace(l route.Limits, tokens tokensOfCall, seen ledger.Use) {
	limit := func(perSecond float64) {
		if perSecond > 0 && (e.CallsPerSecond == 0 || perSecond < e.CallsPerSecond) {
			e.CallsPerSecond, e.PaceBasis = perSecond, FromLimits
		}
	}
	limit(float64(l.RequestsPerMinute) / time.Minute.Seconds())
	counted := tokens.input
	if l.CountOutput {
		counted += tokens.output
	}
	if counted > 0 {
		limit(float64(l.TokensPerMinute) / counted / time.Minute.Seconds())
	}
	if seen.Seconds > 0 {
		limit(float64(l.ConcurrentCalls) / seen.Seconds)
	}
	if e.PaceBasis == PaceUnknown && seen.Calls >= enoughCalls {
		e.CallsPerSecond, e.PaceBasis = float64(seen.BusiestMinute)/time.Minute.Seconds(), FromMeasurement
	}
}

// onRoute is what the calls of a route took: the seconds on the average, and the busiest minute of any version.
func onRoute(ctx context.Context, tx pgx.Tx, name string, uses map[string]ledger.Use) (on ledger.Use, err error) {
	var seconds float64
	for id, u := range uses {
		v, err := versiondb.Get(ctx, tx, id)
		if err != nil {
			return ledger.Use{}, err
		}
		if v.Route == name {
			on.Calls += u.Calls
			seconds += float64(u.Calls) * u.Seconds
			on.BusiestMinute = max(on.BusiestMinute, u.BusiestMinute)
		}
	}
	if on.Calls > 0 {
		on.Seconds = seconds / float64(on.Calls)
	}
	return on, nil
}
