package evaluation

import "github.com/shopspring/decimal"

// Prices are in US dollars for a million tokens.
type Prices struct {
	InputUSDPerMTok       decimal.Decimal
	CachedInputUSDPerMTok decimal.Decimal
	OutputUSDPerMTok      decimal.Decimal
}

// Usage counts the tokens of one call.
type Usage struct {
	InputTokens       int64
	CachedInputTokens int64 // a subset of InputTokens
	OutputTokens      int64
	ReasoningTokens   int64 // a subset of OutputTokens
}

// Cost is the price of one call in US dollars, exact.
func (p Prices) Cost(u Usage) decimal.Decimal { return decimal.Decimal{} }
