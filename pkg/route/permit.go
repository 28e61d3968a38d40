package route

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/route/internal/routesql"
)

// Permit is what may be claimed of a route now. Its transaction holds the route's row, and the budgets that apply, so
// that nobody else is permitted the same; what is not used lapses with it.
type Permit struct {
	Calls      int              // that may start
	Tokens     float64          // that they may take, as expected; +Inf without a limit
	TokensFull bool             // there will never be more of them than now: the first call may take more
	TokenRatio float64          // tokens to expect for one estimated from the size
	Budget     *decimal.Decimal // what they may cost at the worst; nil without a budget
	Ramp       uuid.UUID        // that allows the calls, to be told of with Ramped; uuid.Nil when the route is at its width

	name             string
	requests, tokens bucket
	refilledAt       time.Time
	openedAt         time.Time
	shortUSD         *decimal.Decimal
	rampCalls        int
}

// Reserve locks a route and says what may be claimed. Probe is uuid.Nil for claims that are none; a probe goes out
// within the limits too. It comes first in its transaction.
func Reserve(ctx context.Context, tx pgx.Tx, name string, probe uuid.UUID) (*Permit, error) {
	q := routesql.New(tx)
	row, err := q.LockRoute(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrUnknownRoute
	}
	if err != nil {
		return nil, fmt.Errorf("reserve calls on route %s: %w", name, err)
	}
	elapsed := time.Duration(row.ElapsedSeconds * float64(time.Second))
	p := &Permit{
		name: name, openedAt: row.OpenedAt, refilledAt: row.RefilledAt, shortUSD: row.ShortUSD, rampCalls: int(row.RampCalls),
		requests:   bucket{float64(row.RequestsPerMinute), row.RequestCredit}.refilled(elapsed),
		tokens:     bucket{float64(row.TokensPerMinute), row.TokenCredit}.refilled(elapsed),
		TokenRatio: row.TokenRatio,
	}
	p.Calls = math.MaxInt32
	if p.requests.limit > 0 {
		p.Calls = int(p.requests.left())
	}
	p.Tokens, p.TokensFull = p.tokens.left(), p.tokens.full()
	switch {
	case row.Paused:
		p.Calls = 0
	case probe != uuid.Nil:
		if row.ProbeID == nil || *row.ProbeID != probe {
			p.Calls = 0
		}
	case State(row.State) != Closed || !row.Due:
		p.Calls = 0
	case row.RampID != nil:
		p.Ramp = *row.RampID
		p.Calls = max(min(p.Calls, int(row.RampLevel-row.RampCalls)), 0)
	}
	if p.Calls > 0 && row.ConcurrentCalls > 0 {
		running, err := q.CountCalls(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("count the calls on route %s: %w", name, err)
		}
		p.Calls = max(min(p.Calls, int(row.ConcurrentCalls-running)), 0)
	}
	if p.Calls > 0 && row.Budgets > 0 {
		if p.Budget, err = lockBudgets(ctx, q, name, int(row.Budgets)); err != nil {
			return nil, fmt.Errorf("lock the budgets of route %s: %w", name, err)
		}
	}
	return p, nil
}

// lockBudgets returns the least of what is left of the budgets that apply to a route.
func lockBudgets(ctx context.Context, q *routesql.Queries, name string, budgets int) (*decimal.Decimal, error) {
	for begun := false; ; begun = true {
		rows, err := q.LockBudgets(ctx, name)
		if err != nil {
			return nil, err
		}
		var least *decimal.Decimal
		limited := 0
		for _, r := range rows {
			if r.LimitUSD == nil {
				continue
			}
			limited++
			if left := r.LimitUSD.Sub(r.UsedUSD); least == nil || left.LessThan(*least) {
				least = &left
			}
		}
		if limited >= budgets || begun {
			return least, nil
		}
		if err := q.BeginPeriods(ctx, name); err != nil {
			return nil, err
		}
	}
}

// Use is what was claimed with a permit.
type Use struct {
	Calls    int
	Tokens   float64         // as expected
	USD      decimal.Decimal // at the worst
	ShortUSD decimal.Decimal // what the first call that had no room in the budget may cost; zero when there was none
}

// Use takes what was claimed off the route's credits, and charges it to the budgets.
func (p *Permit) Use(ctx context.Context, tx pgx.Tx, u Use) error {
	var short *decimal.Decimal
	if u.ShortUSD.IsPositive() {
		short = &u.ShortUSD
	}
	// Who has found nothing to call for says nothing of what the other lane is short of.
	if u.Calls == 0 && (short == nil || p.shortUSD != nil && short.Equal(*p.shortUSD)) {
		return nil
	}
	p.requests, p.tokens = p.requests.take(float64(u.Calls)), p.tokens.take(u.Tokens)
	if p.Ramp != uuid.Nil {
		p.rampCalls += u.Calls
	}
	if err := routesql.New(tx).UsePermit(ctx, routesql.UsePermitParams{
		Name: p.name, RequestCredit: p.requests.credit, TokenCredit: p.tokens.credit, RefilledAt: p.refilledAt, ShortUSD: short, RampCalls: int32(p.rampCalls),
	}); err != nil {
		return fmt.Errorf("take %d calls off route %s: %w", u.Calls, p.name, err)
	}
	return Charge(ctx, tx, []Delta{{Route: p.name, OpenedAt: p.openedAt, USD: u.USD}})
}

// WaitForCall is how long the next call has to wait for the limit of requests, when nobody takes its place; 0 when it
// need not, and waits for calls to end, if for anything.
func (p *Permit) WaitForCall() time.Duration { return p.requests.until(1) }

// WaitForTokens is how long a call that takes so many tokens has to wait for them, when nobody takes them before.
func (p *Permit) WaitForTokens(tokens float64) time.Duration { return p.tokens.until(tokens) }
