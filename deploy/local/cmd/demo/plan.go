package main

import (
	"fmt"

	"github.com/evalonce/evalonce/deploy/local/internal/ticketfile"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
)

// job is what the demo is going to do, known to be possible before anything is started.
type job struct {
	tickets  []ticketfile.Ticket
	ignored  []string // columns
	judged   int      // tickets whose department a person has decided
	distinct int      // contents
	version  evaluation.Version
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
		v = withDepartmentsOf(v, truths)
	}
	if cfg.provider != nil {
		v.Model, v.Prices = cfg.model, evaluation.Prices{}
	}
	if cfg.prices != nil {
		v.Prices = *cfg.prices
	}
	if err := v.Validate(); err != nil {
		return job{}, fmt.Errorf("the version that these tickets would be evaluated under is not valid: %w", err)
	}
	j := job{tickets: file.Tickets, ignored: file.Ignored, version: v}
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
