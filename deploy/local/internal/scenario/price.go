package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/rival"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/providersim"
)

const (
	usdPerEvaluation = "0.011"
	priceSample      = 300 // contents
	priceDecimals    = 4
	priceDeadline    = 10 * time.Second

	// How prices usually relate to that of input.
	cachedOverInput = "0.1"
	outputOverInput = 8
)

// derivePrices finds the prices at which a call costs what it should in the mean, from what a simulator counts for a
// sample of the tickets.
func derivePrices(ctx context.Context, s schedule.Schedule) (_ evaluation.Prices, err error) {
	sim := providersim.New(providersim.Options{Seed: s.Seed})
	if err := sim.Start(""); err != nil { //nolint:contextcheck // Close ends it, not a context
		return evaluation.Prices{}, err
	}
	model := rival.NewModel(sim.URL()+"/v1", "", s.Pace, priceDeadline)
	defer func() {
		model.Close()
		err = errors.Join(err, sim.Close())
	}()
	ask := func(content int) error {
		subject, message := s.Text(content)
		_, err := model.Ask(ctx, subject, message)
		return err
	}
	// The first call of a prompt finds nothing cached, and counts for nothing among many.
	if err := ask(0); err != nil {
		return evaluation.Prices{}, fmt.Errorf("derive the price of a call: %w", err)
	}
	before := sim.Stats()
	n := min(s.Distinct, priceSample)
	for i := range n {
		if err := ask(i * s.Distinct / n); err != nil {
			return evaluation.Prices{}, fmt.Errorf("derive the price of a call: %w", err)
		}
	}
	after := sim.Stats()
	cached := decimal.NewFromInt(after.CachedInputTokens - before.CachedInputTokens)
	full := decimal.NewFromInt(after.InputTokens - before.InputTokens).Sub(cached)
	output := decimal.NewFromInt(after.OutputTokens - before.OutputTokens)
	ofCached, ofOutput := decimal.RequireFromString(cachedOverInput), decimal.NewFromInt(outputOverInput)
	units := full.Add(cached.Mul(ofCached)).Add(output.Mul(ofOutput))
	const million = 6
	input := decimal.RequireFromString(usdPerEvaluation).Mul(decimal.NewFromInt(int64(n))).Shift(million).DivRound(units, priceDecimals)
	return evaluation.Prices{InputUSDPerMTok: input, CachedInputUSDPerMTok: input.Mul(ofCached), OutputUSDPerMTok: input.Mul(ofOutput)}, nil
}
