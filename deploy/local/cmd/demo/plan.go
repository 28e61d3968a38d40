package main

import (
	"fmt"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/ticketfile"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// job is what the demo is going to do, known to be possible before anything is started.
type job struct {
	tickets  []ticketfile.Ticket
	ignored  []string // columns
	judged   int      // tickets whose department a person has decided
	distinct int      // contents
	version  *adminv1.Version
	prices   evaluation.Prices // of the version
}

func plan(cfg config) (job, error) {
	file, err := ticketfile.Open(cfg.ticketFile, cfg.truth)
	if err != nil {
		return job{}, err
	}
	v, err := readVersion(cfg.versionFile)
	if err != nil {
		return job{}, err
	}
	if truths := file.Truths(); len(truths) > 0 {
		if len(truths) > evaluation.MaxDepartments {
			return job{}, fmt.Errorf("%s names %d different departments in column %q; an evaluation has at most %d",
				cfg.ticketFile, len(truths), cfg.truth, evaluation.MaxDepartments)
		}
		useDepartmentsOf(v, truths)
	}
	if cfg.provider != nil {
		v.Model, v.Prices = cfg.model, nil
	}
	if cfg.givenPrices != nil {
		v.Prices = cfg.givenPrices
	}
	j := job{tickets: file.Tickets, ignored: file.Ignored, version: v}
	if j.prices, err = parsePrices(v.GetPrices()); err != nil {
		return job{}, err
	}
	contents := map[content.Hash]bool{}
	for _, t := range file.Tickets {
		text, err := content.Canonical(t.Subject, t.Message)
		if err != nil {
			return job{}, fmt.Errorf("%s: line %d: %w", cfg.ticketFile, t.Line, err)
		}
		contents[text.Hash()] = true
		if t.Truth != "" {
			j.judged++
		}
	}
	j.distinct = len(contents)
	return j, nil
}

// parsePrices reads prices; those that are not there are 0.
func parsePrices(p *adminv1.Prices) (prices evaluation.Prices, err error) {
	for _, price := range []struct {
		text string
		into *decimal.Decimal
	}{
		{p.GetInputUsdPerMtok(), &prices.InputUSDPerMTok},
		{p.GetCachedInputUsdPerMtok(), &prices.CachedInputUSDPerMTok},
		{p.GetOutputUsdPerMtok(), &prices.OutputUSDPerMTok},
	} {
		if price.text == "" {
			continue
		}
		if *price.into, err = decimal.NewFromString(price.text); err != nil {
			return evaluation.Prices{}, fmt.Errorf("%q is no price", price.text)
		}
	}
	return prices, nil
}
