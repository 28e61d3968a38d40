package evaluation

import "github.com/shopspring/decimal"

// Prices are in US dollars for a million tokens. Input that was written to the provider's cache costs a quarter more
// than other input: all who charge for writing charge that, for the shortest-lived entries, and no others are asked for.
type Prices struct {
	InputUSDPerMTok       decimal.Decimal // for input that was not read from the provider's cache
	CachedInputUSDPerMTok decimal.Decimal
	OutputUSDPerMTok      decimal.Decimal
}

// Usage counts the tokens of one call, as the provider reported them.
type Usage struct {
	InputTokens       int64 // all of them, whatever the cache did
	CachedInputTokens int64 // read from the cache; a subset of InputTokens
	CacheWriteTokens  int64 // written to the cache at a charge; a subset of InputTokens, apart from the one read
	OutputTokens      int64
	ReasoningTokens   int64 // a subset of OutputTokens
}

// Bounded returns the usage with its invariants restored: no count is negative, and no part exceeds its whole.
// A provider's odd report must not keep a paid answer out of the ledger.
func (u Usage) Bounded() Usage {
	u.InputTokens = max(u.InputTokens, 0)
	u.CachedInputTokens = min(max(u.CachedInputTokens, 0), u.InputTokens)
	u.CacheWriteTokens = min(max(u.CacheWriteTokens, 0), u.InputTokens-u.CachedInputTokens)
	u.OutputTokens = max(u.OutputTokens, 0)
	u.ReasoningTokens = min(max(u.ReasoningTokens, 0), u.OutputTokens)
	return u
}

// Cost is the price of one call in US dollars, exact and never negative. Reasoning tokens are paid as the output
// they are part of.
func (p Prices) Cost(u Usage) decimal.Decimal {
	u = u.Bounded()
	cost := decimal.NewFromInt(u.InputTokens - u.CachedInputTokens).Mul(p.InputUSDPerMTok)
	for _, part := range []struct {
		tokens int64
		price  decimal.Decimal
	}{
		{u.CachedInputTokens, p.CachedInputUSDPerMTok},
		{u.OutputTokens, p.OutputUSDPerMTok},
	} {
		if part.tokens > 0 {
			cost = cost.Add(decimal.NewFromInt(part.tokens).Mul(part.price))
		}
	}
	if u.CacheWriteTokens > 0 {
		cost = cost.Add(decimal.NewFromInt(u.CacheWriteTokens).Mul(p.InputUSDPerMTok).Mul(decimal.New(25, -2)))
	}
	const millionth = -6
	return cost.Shift(millionth)
}
