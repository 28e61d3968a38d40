package route

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route/internal/routesql"
)

// AllRoutes is the scope of a budget that all routes share.
const AllRoutes = "*"

// Period is what a budget is for, in UTC.
type Period string

// The periods.
const (
	Day   Period = "day"
	Month Period = "month"
)

// Budget names a spend limit: a route, or [AllRoutes], and the period.
type Budget struct {
	Scope  string
	Period Period
}

func (b Budget) String() string {
	if b.Scope == AllRoutes {
		return "all routes, " + string(b.Period)
	}
	return "route " + b.Scope + ", " + string(b.Period)
}

// SetSpendLimit sets a limit, or removes it when limit is nil. What was spent in the period already counts: charges of
// calls where there was another limit before, and else what calls have cost that are over. Charges wait meanwhile, as
// long as it takes to sum up the calls of the period. Workers follow within about a second; what they call until then
// where there was no limit before, and what is under way there, is not counted.
func SetSpendLimit(ctx context.Context, db postgres.Beginner, b Budget, limit *decimal.Decimal) error {
	return postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error { return SetSpendLimitIn(ctx, tx, b, limit) })
}

// SetSpendLimitIn is [SetSpendLimit] in the caller's transaction. Charges wait until it has ended.
func SetSpendLimitIn(ctx context.Context, tx pgx.Tx, b Budget, limit *decimal.Decimal) error {
	if b.Period != Day && b.Period != Month {
		return fmt.Errorf("set a spend limit: period %q is neither day nor month", b.Period)
	}
	if limit != nil && !limit.IsPositive() {
		return fmt.Errorf("set the spend limit of %s: %s is not above zero", b, limit)
	}
	if err := setSpendLimit(ctx, routesql.New(tx), b, limit); err != nil {
		return fmt.Errorf("set the spend limit of %s: %w", b, err)
	}
	return nil
}

func setSpendLimit(ctx context.Context, q *routesql.Queries, b Budget, limit *decimal.Decimal) error {
	if b.Scope != AllRoutes {
		if known, err := q.RouteExists(ctx, b.Scope); err != nil {
			return err
		} else if !known {
			return ErrUnknownRoute
		}
	}
	if limit == nil {
		return q.DeleteSpendLimit(ctx, routesql.DeleteSpendLimitParams{Scope: b.Scope, Period: string(b.Period)})
	}
	if err := q.LockSpend(ctx); err != nil {
		return err
	}
	if err := q.SetSpendLimit(ctx, routesql.SetSpendLimitParams{Scope: b.Scope, Period: string(b.Period), LimitUSD: *limit}); err != nil {
		return err
	}
	return q.CountSpent(ctx, routesql.CountSpentParams{Scope: b.Scope, Period: string(b.Period)})
}

// Spending is what is spent in the period that is now, or may be.
type Spending struct {
	Budget
	BeginsAt time.Time        // of the period
	LimitUSD *decimal.Decimal // nil when there is none any more
	UsedUSD  decimal.Decimal
}

// Spend returns what is spent today and this month, of every budget that has a limit or had one in the period.
func Spend(ctx context.Context, db routesql.DBTX) ([]Spending, error) {
	rows, err := routesql.New(db).Spend(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what is spent: %w", err)
	}
	spending := make([]Spending, len(rows))
	for i, r := range rows {
		spending[i] = Spending{
			Budget: Budget{Scope: r.Scope, Period: Period(r.Period)}, BeginsAt: r.BeginsAt, LimitUSD: r.LimitUSD, UsedUSD: r.UsedUSD,
		}
	}
	return spending, nil
}

// Delta is a change of what calls of a route are charged.
type Delta struct {
	Route    string
	OpenedAt time.Time // of the calls: one instant of the day that they are charged to
	USD      decimal.Decimal
}

// Charge adds changes of charges to what is spent, in the transaction that makes them and behind all that it locks but
// the routes. It locks in one order, so that charges wait for each other and never in a circle.
func Charge(ctx context.Context, tx pgx.Tx, deltas []Delta) error {
	var p routesql.ChargeParams
	for _, d := range deltas {
		if d.USD.IsZero() {
			continue
		}
		p.Routes = append(p.Routes, d.Route)
		p.OpenedAt = append(p.OpenedAt, d.OpenedAt)
		p.USD = append(p.USD, d.USD.String())
	}
	if len(p.Routes) == 0 {
		return nil
	}
	if err := routesql.New(tx).Charge(ctx, p); err != nil {
		return fmt.Errorf("charge %d changes: %w", len(p.Routes), err)
	}
	return nil
}
