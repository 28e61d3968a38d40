package evaluate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
)

// meterPause is how long a line at least waits for a limit that has cut its claim short: permits come in batches,
// and no route's row is written for each call. It is far less than what a bucket takes to fill.
const meterPause = 100 * time.Millisecond

// fixedBytes bounds the size of a request beside its version's prompt, twice its departments, and its ticket: the
// contract, the marks, the schema, and what a provider adds by itself to have the schema kept to.
const fixedBytes = 2048

// claimMetered claims on a route with limits, a budget or a ramp: as much as its permit allows, which is used in the
// same transaction.
func (w *Worker) claimMetered(ctx context.Context, l *line, most int, probe uuid.UUID) ([]*item, error) {
	if l.state.Load().Parked() != "" {
		most = 1 // enough to see that there is room again
	}
	var (
		rows      []outbox.Claimed
		permit    *route.Permit
		allowance outbox.Allowance
	)
	err := postgres.InTx(ctx, w.Claims, func(ctx context.Context, tx pgx.Tx) (err error) {
		if permit, err = route.Reserve(ctx, tx, l.name, probe); err != nil {
			return err
		}
		allowance = outbox.Allowance{
			Calls: permit.Calls, Tokens: permit.Tokens, TokensFull: permit.TokensFull, TokenRatio: permit.TokenRatio,
			Budget: permit.Budget, FixedBytes: fixedBytes,
		}
		if rows, err = l.claimLanes(ctx, min(most, permit.Calls), l.within(tx, &allowance)); err != nil {
			return err
		}
		err = permit.Use(ctx, tx, useOf(permit, rows, allowance))
		crashpoint.PassIf(len(rows) > 0, crashpoint.ClaimCharged)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim on metered route %s: %w", l.name, err)
	}
	l.pause = w.pauseAfter(l, permit, allowance)
	t := terms{probe: probe, ramp: permit.Ramp}
	if l.state.Load().Limits.TokensPerMinute > 0 {
		t.perToken = permit.TokenRatio
	}
	return w.begin(ctx, l, rows, t)
}

// within claims lanes within an allowance. Bulk work takes nothing that live work is short of.
func (l *line) within(tx pgx.Tx, a *outbox.Allowance) claimer {
	liveShort := false
	return func(lane *outbox.Claimer, ctx context.Context, most int) ([]outbox.Claimed, error) {
		if liveShort {
			return nil, nil
		}
		before := a.Short
		a.Short = nil
		rows, err := lane.ClaimWithin(ctx, tx, most, a)
		liveShort = lane == l.live && a.Short != nil
		if a.Short == nil {
			a.Short = before
		}
		return rows, err
	}
}

func useOf(permit *route.Permit, rows []outbox.Claimed, left outbox.Allowance) route.Use {
	u := route.Use{Calls: permit.Calls - left.Calls}
	for _, r := range rows {
		u.Tokens += r.Tokens * permit.TokenRatio
	}
	if permit.Budget != nil {
		u.USD = permit.Budget.Sub(*left.Budget)
	}
	if left.Short != nil && left.Short.OverBudget {
		u.ShortUSD = left.Short.USD
	}
	return u
}

// pauseAfter is how long the line's next claim may wait, after one that left so much of its permit; 0 when nothing has
// cut it short but its slots or the work that there was.
func (w *Worker) pauseAfter(l *line, permit *route.Permit, left outbox.Allowance) time.Duration {
	var wait time.Duration
	switch {
	case left.Calls == 0:
		wait = permit.WaitForCall()
	case left.Short != nil && !left.Short.OverBudget:
		wait = permit.WaitForTokens(left.Short.Tokens)
	}
	l.crowded.Store(left.Calls == 0 && wait == 0)
	switch {
	case left.Calls > 0 && left.Short == nil:
		return 0
	case wait == 0:
		return w.PollInterval
	}
	return max(wait, meterPause)
}

// ramped counts calls of a ramp that have ended.
type ramped struct {
	ended, succeeded int
}

// meter counts what the settlement says of the route's limits.
func (t *tally) meter(s settlement) {
	it := s.item
	if it.ramp != uuid.Nil {
		r := t.ramps[it.ramp]
		r.ended++
		if s.called() && (s.failure == nil || s.failure.Class == failure.Permanent) {
			r.succeeded++
		}
		t.ramps[it.ramp] = r
	}
	if it.perToken > 0 && s.called() && s.closure.Usage != nil {
		t.tokens.Calls++
		t.tokens.Estimated += it.Tokens
		t.tokens.Expected += it.Tokens * it.perToken
		t.tokens.Input += s.closure.Usage.InputTokens
		t.tokens.Output += s.closure.Usage.OutputTokens
	}
}

func (w *Worker) reportMeter(ctx context.Context, l *line, t *tally) error {
	var problems []error
	for id, r := range t.ramps {
		problems = append(problems, w.gate.Ramped(ctx, l.name, id, r.ended, r.succeeded, w.Concurrency))
	}
	return errors.Join(append(problems, w.gate.LearnTokens(ctx, l.name, t.tokens))...)
}
