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

// claimMetered claims a lane of a route with limits, a budget or a ramp: as much as its permit allows, which is used in the
// same transaction. A probe is claimed of either lane.
func (w *Worker) claimMetered(ctx context.Context, l *line, n *lane, most int, probe uuid.UUID) ([]*item, error) {
	if n == l.bulk && l.live.short.Load() && l.slots.earned() == 0 {
		n.pause = meterPause
		return nil, nil
	}
	if l.state.Load().Parked() != "" {
		most = 1 // enough to see that there is room again
	}
	lanes := []*lane{n}
	if probe != uuid.Nil {
		lanes = []*lane{l.live, l.bulk}
	}
	var (
		rows      []outbox.Claimed
		permit    *route.Permit
		allowance outbox.Allowance
		part      int
	)
	err := postgres.InTx(ctx, w.Claims, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows = nil
		if permit, err = route.Reserve(ctx, tx, l.name, probe); err != nil {
			return err
		}
		allowance = outbox.Allowance{
			Calls: permit.Calls, Tokens: permit.Tokens, TokensFull: permit.TokensFull, TokenRatio: permit.TokenRatio,
			Budget: permit.Budget, FixedBytes: fixedBytes,
		}
		part = l.part(n, permit.Calls)
		for _, of := range lanes {
			if left := min(most, part) - len(rows); left > 0 && allowance.Short == nil {
				claimed, err := of.claimer.ClaimWithin(ctx, tx, left, &allowance)
				if err != nil {
					return err
				}
				rows = append(rows, claimed...)
			}
		}
		err = permit.Use(ctx, tx, useOf(permit, rows, allowance))
		crashpoint.PassIf(len(rows) > 0, crashpoint.ClaimCharged)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim on metered route %s: %w", l.name, err)
	}
	if part > 0 {
		n.short.Store(allowance.Short != nil || len(rows) == part)
	}
	n.pause = w.pauseAfter(n, permit, allowance)
	if part < permit.Calls && len(rows) == part { // the rest is the other lane's
		n.pause = max(n.pause, meterPause)
	}
	t := terms{probe: probe, ramp: permit.Ramp}
	if l.state.Load().Limits.TokensPerMinute > 0 {
		t.perToken = permit.TokenRatio
	}
	return w.begin(ctx, l, rows, t)
}

// part is how many of the calls that a limit allows a lane may take, while both are short of them.
func (l *line) part(n *lane, calls int) int {
	switch {
	case n == l.bulk && l.live.short.Load():
		return min(calls, l.slots.earned())
	case n == l.live && l.bulk.short.Load():
		return max(0, calls-l.slots.earned())
	}
	return calls
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

// pauseAfter is how long the lane's next claim may wait, after one that left so much of its permit; 0 when nothing has
// cut it short but its slots or the work that there was.
func (w *Worker) pauseAfter(n *lane, permit *route.Permit, left outbox.Allowance) time.Duration {
	var wait time.Duration
	switch {
	case left.Calls == 0:
		wait = permit.WaitForCall()
	case left.Short != nil && !left.Short.OverBudget:
		wait = permit.WaitForTokens(left.Short.Tokens)
	}
	n.crowded.Store(left.Calls == 0 && wait == 0)
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
