package main

import (
	"context"
	"fmt"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

// account is what the ledger says was paid, held against what the simulator says it billed.
type account struct {
	paid, unknown, failed int // calls
	usage                 evaluation.Usage
	cost                  decimal.Decimal
	billed                *int // by the simulator; nil when the calls went elsewhere
	disagreement          error
}

func (d *demo) account(ctx context.Context) (account, error) {
	var a account
	err := d.db.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE outcome IN ('saved', 'rejected', 'answered')),
		       count(*) FILTER (WHERE outcome IN ('open', 'unknown')),
		       count(*) FILTER (WHERE outcome = 'failed'),
		       coalesce(sum(input_tokens), 0), coalesce(sum(cached_input_tokens), 0), coalesce(sum(output_tokens), 0),
		       coalesce(sum(cost_usd), 0)
		FROM model_call`).
		Scan(&a.paid, &a.unknown, &a.failed, &a.usage.InputTokens, &a.usage.CachedInputTokens, &a.usage.OutputTokens, &a.cost)
	if err != nil {
		return account{}, fmt.Errorf("read the ledger: %w", err)
	}
	if d.simulator == nil {
		return a, nil
	}
	stats, err := d.simulator.Stats(ctx)
	if err != nil {
		return account{}, err
	}
	a.billed = &stats.Billed
	theirs := evaluation.Usage{
		InputTokens: stats.InputTokens, CachedInputTokens: stats.CachedInputTokens, OutputTokens: stats.OutputTokens,
	}
	switch {
	case stats.Billed < a.paid || stats.Billed > a.paid+a.unknown:
		a.disagreement = fmt.Errorf("the ledger has %d paid calls and %d of unknown outcome, the simulator billed %d", a.paid, a.unknown, stats.Billed)
	case a.unknown == 0 && (theirs != a.usage || !stats.CostUSD.Equal(a.cost)):
		a.disagreement = fmt.Errorf("the ledger has %+v for US$ %s, the simulator billed %+v for US$ %s", a.usage, a.cost, theirs, stats.CostUSD)
	}
	return a, nil
}

func (a account) remark() string {
	s := "by the ledger"
	switch {
	case a.disagreement != nil:
		s = "NOT WHAT THE SIMULATOR SAYS"
	case a.billed != nil:
		s = fmt.Sprintf("by the ledger; the simulator billed %d too, to the token and the cent", *a.billed)
	}
	if a.unknown > 0 {
		s += fmt.Sprintf("; %d more of unknown outcome", a.unknown)
	}
	if a.failed > 0 {
		s += fmt.Sprintf("; %d failed, unpaid", a.failed)
	}
	return s
}
