package api

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const (
	// maxVersions is how many versions, the newest, have their calls counted.
	maxVersions = 10_000

	minCallTimeout = time.Second
	maxCallTimeout = time.Hour
)

// Routes is the RouteService.
type Routes struct {
	adminv1.UnimplementedRouteServiceServer
	db *pgxpool.Pool
}

// NewRoutes makes the service.
func NewRoutes(db *pgxpool.Pool) *Routes { return &Routes{db: db} }

// ListRoutes returns all routes with their load.
func (s *Routes) ListRoutes(ctx context.Context, _ *adminv1.ListRoutesRequest) (*adminv1.ListRoutesResponse, error) {
	routes, err := s.loaded(ctx, "")
	if err != nil {
		return nil, err
	}
	return &adminv1.ListRoutesResponse{Routes: routes}, nil
}

// GetRoute returns a route with its load.
func (s *Routes) GetRoute(ctx context.Context, r *adminv1.GetRouteRequest) (*adminv1.Route, error) {
	if violations := checkRoute("name", r.GetName()); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	routes, err := s.loaded(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	if len(routes) == 0 {
		return nil, route.ErrUnknownRoute
	}
	return routes[0], nil
}

// loaded reads all routes, or the one of a name, with what waits and runs and costs, in one snapshot.
func (s *Routes) loaded(ctx context.Context, name string) ([]*adminv1.Route, error) {
	tx, err := postgres.BeginTx(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin to read the routes: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	controls, err := route.Controls(ctx, tx, name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(controls))
	for i, c := range controls {
		names[i] = c.Name
	}
	// Before the statement that keeps the planner to the claim's index for the rest of the transaction.
	usage, err := usageOf(ctx, tx)
	if err != nil {
		return nil, err
	}
	lanes, err := outbox.Loads(ctx, tx, names)
	if err != nil {
		return nil, err
	}
	routes := make([]*adminv1.Route, len(controls))
	for i, c := range controls {
		routes[i] = routeOf(c)
		routes[i].Load = usage.of(c.Name)
		for _, l := range lanes {
			if l.Route == c.Name {
				routes[i].Load.Lanes = append(routes[i].Load.Lanes, laneOf(l))
			}
		}
	}
	return routes, nil
}

func laneOf(l outbox.LaneLoad) *adminv1.LaneLoad {
	lane := &adminv1.LaneLoad{
		Lane: string(l.Lane), Ready: countOf(l.Ready), Running: l.Running, Scheduled: countOf(l.Scheduled), Dead: countOf(l.Dead),
	}
	if l.OldestAge > 0 {
		lane.OldestReadyAge = durationpb.New(l.OldestAge)
	}
	return lane
}

func countOf(c outbox.Count) *adminv1.Count {
	return &adminv1.Count{Value: c.Value, Estimated: c.Estimated}
}

// usage is what calls have come to, by route.
type usage struct {
	recent  map[string]ledger.Recent // the routes' versions together
	budgets map[route.Budget]route.Spending
	savings map[string]ledger.Saving
}

func usageOf(ctx context.Context, tx pgx.Tx) (usage, error) {
	u := usage{recent: map[string]ledger.Recent{}, budgets: map[route.Budget]route.Spending{}, savings: map[string]ledger.Saving{}}
	versions, err := versiondb.List(ctx, tx, "", maxVersions)
	if err != nil {
		return u, err
	}
	routes := make(map[string]string, len(versions))
	for _, v := range versions {
		routes[v.ID] = v.Route
	}
	recent, err := ledger.RecentCalls(ctx, tx)
	if err != nil {
		return u, err
	}
	for _, r := range recent {
		sum := u.recent[routes[r.VersionID]]
		sum.Window, sum.DayPartial, sum.MonthPartial = r.Window, r.DayPartial, r.MonthPartial
		sum.Calls, sum.Answered, sum.Failed = sum.Calls+r.Calls, sum.Answered+r.Answered, sum.Failed+r.Failed
		sum.DayUSD, sum.MonthUSD = sum.DayUSD.Add(r.DayUSD), sum.MonthUSD.Add(r.MonthUSD)
		u.recent[routes[r.VersionID]] = sum
	}
	spending, err := route.Spend(ctx, tx)
	if err != nil {
		return u, err
	}
	for _, b := range spending {
		u.budgets[b.Budget] = b
	}
	savings, err := ledger.Savings(ctx, tx)
	if err != nil {
		return u, err
	}
	for _, sv := range savings {
		u.savings[sv.Route] = sv
	}
	return u, nil
}

func (u usage) of(name string) *adminv1.RouteLoad {
	recent, saving := u.recent[name], u.savings[name]
	window := recent.Window
	if window <= 0 {
		window = ledger.RecentWindow
	}
	load := &adminv1.RouteLoad{
		Throughput: &adminv1.Throughput{
			Window: durationpb.New(window.Round(time.Millisecond)), Calls: recent.Calls, Answered: recent.Answered, Failed: recent.Failed,
			AnsweredPerMinute: float64(recent.Answered) / window.Minutes(),
		},
		Savings: &adminv1.Savings{
			Tickets: saving.Tickets, AnsweredWithoutCall: saving.AnsweredWithoutCall,
			SavedUsd: saving.CallUSD.Mul(decimal.NewFromInt(saving.AnsweredWithoutCall)).Round(maxDecimals).String(),
		},
	}
	for _, p := range []struct {
		period  route.Period
		usd     decimal.Decimal
		partial bool
	}{{route.Day, recent.DayUSD, recent.DayPartial}, {route.Month, recent.MonthUSD, recent.MonthPartial}} {
		spend := &adminv1.Spend{Period: string(p.period), UsedUsd: p.usd.String(), Estimated: p.partial}
		// What a budget counts is exact.
		if b, ok := u.budgets[route.Budget{Scope: name, Period: p.period}]; ok && b.LimitUSD != nil {
			spend.UsedUsd, spend.LimitUsd, spend.Estimated = b.UsedUSD.String(), b.LimitUSD.String(), false
		}
		load.Spend = append(load.Spend, spend)
	}
	return load
}

// maxDecimals of a dollar are more than an estimate is worth.
const maxDecimals = 6

// PauseRoute keeps everybody from claiming work of a route.
func (s *Routes) PauseRoute(ctx context.Context, r *adminv1.PauseRouteRequest) (*adminv1.Route, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.changeRoute(ctx, "RouteService.PauseRoute", r, nil, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return route.Pause(ctx, tx, r.GetName(), by, r.GetReason())
	})
}

// ResumeRoute ends a pause.
func (s *Routes) ResumeRoute(ctx context.Context, r *adminv1.ResumeRouteRequest) (*adminv1.Route, error) {
	return s.changeRoute(ctx, "RouteService.ResumeRoute", r, nil, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return route.Resume(ctx, tx, r.GetName())
	})
}

// ResetRoute closes the breaker.
func (s *Routes) ResetRoute(ctx context.Context, r *adminv1.ResetRouteRequest) (*adminv1.Route, error) {
	return s.changeRoute(ctx, "RouteService.ResetRoute", r, nil, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return route.Reset(ctx, tx, r.GetName())
	})
}

// SetRouteLimits replaces the limits of a route.
func (s *Routes) SetRouteLimits(ctx context.Context, r *adminv1.SetRouteLimitsRequest) (*adminv1.Route, error) {
	var violations []rpc.Violation
	if r.GetLimits() == nil {
		violations = append(violations, rpc.Violation{Field: "limits", Reason: "REQUIRED", Description: "must be given; a limit of 0 is none"})
	}
	for _, l := range []struct {
		field string
		value int64
	}{
		{"requests_per_minute", int64(r.GetLimits().GetRequestsPerMinute())},
		{"tokens_per_minute", r.GetLimits().GetTokensPerMinute()},
		{"concurrent_calls", int64(r.GetLimits().GetConcurrentCalls())},
	} {
		if l.value < 0 {
			violations = append(violations, rpc.Violation{Field: "limits." + l.field, Reason: "OUT_OF_RANGE", Description: "must not be negative"})
		}
	}
	limits := route.Limits{
		RequestsPerMinute: int(r.GetLimits().GetRequestsPerMinute()), TokensPerMinute: r.GetLimits().GetTokensPerMinute(),
		ConcurrentCalls: int(r.GetLimits().GetConcurrentCalls()), CountOutput: r.GetLimits().GetCountOutput(),
	}
	return s.changeRoute(ctx, "RouteService.SetRouteLimits", r, violations, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return true, route.SetLimits(ctx, tx, r.GetName(), limits)
	})
}

// SetRouteCallTimeout sets how long a call may take.
func (s *Routes) SetRouteCallTimeout(ctx context.Context, r *adminv1.SetRouteCallTimeoutRequest) (*adminv1.Route, error) {
	var violations []rpc.Violation
	timeout := r.GetCallTimeout().AsDuration()
	if !r.GetCallTimeout().IsValid() || timeout < minCallTimeout || timeout > maxCallTimeout {
		violations = append(violations, rpc.Violation{Field: "call_timeout", Reason: "OUT_OF_RANGE", Description: "must be from 1 second to 1 hour"})
	}
	return s.changeRoute(ctx, "RouteService.SetRouteCallTimeout", r, violations, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return route.SetCallTimeout(ctx, tx, r.GetName(), timeout)
	})
}

// changingRoute is a changing request about one route.
type changingRoute interface {
	changing
	GetName() string
}

func (s *Routes) changeRoute(
	ctx context.Context, method string, r changingRoute, violations []rpc.Violation, do func(ctx context.Context, tx pgx.Tx) (bool, error),
) (*adminv1.Route, error) {
	if violations = append(checkRoute("name", r.GetName()), violations...); len(violations) > 0 {
		return nil, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	return change(ctx, s.db, method, r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Route, effect, error) {
		if err := route.Lock(ctx, tx, r.GetName()); err != nil {
			return nil, effect{}, err
		}
		before, err := control(ctx, tx, r.GetName())
		if err != nil {
			return nil, effect{}, err
		}
		changed, err := do(ctx, tx)
		if err != nil {
			return nil, effect{}, err
		}
		after, err := control(ctx, tx, r.GetName())
		did := effect{target: "routes/" + r.GetName()}
		if changed {
			did.before, did.after = settingsOf(before), settingsOf(after)
		}
		return routeOf(after), did, err
	})
}

func control(ctx context.Context, tx pgx.Tx, name string) (route.Control, error) {
	controls, err := route.Controls(ctx, tx, name)
	if err != nil {
		return route.Control{}, err
	}
	if len(controls) == 0 {
		return route.Control{}, route.ErrUnknownRoute
	}
	return controls[0], nil
}

// settingsOf is what of a route is an operator's to change, for the audit.
func settingsOf(c route.Control) map[string]any {
	return map[string]any{
		"state": c.State, "paused": c.Paused, "call_timeout": c.CallTimeout.String(), "consecutive_failures": c.Failures,
		"requests_per_minute": c.Limits.RequestsPerMinute, "tokens_per_minute": c.Limits.TokensPerMinute,
		"concurrent_calls": c.Limits.ConcurrentCalls, "count_output": c.Limits.CountOutput,
	}
}

// ListBudgets returns what may be spent, and what is.
func (s *Routes) ListBudgets(ctx context.Context, _ *adminv1.ListBudgetsRequest) (*adminv1.ListBudgetsResponse, error) {
	spending, err := route.Spend(ctx, s.db)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListBudgetsResponse{}
	for _, b := range spending {
		response.Budgets = append(response.Budgets, budgetOf(b))
	}
	return response, nil
}

// SetBudget sets or removes a limit of what may be spent.
func (s *Routes) SetBudget(ctx context.Context, r *adminv1.SetBudgetRequest) (*adminv1.Budget, error) {
	budget := route.Budget{Scope: r.GetScope(), Period: route.Period(r.GetPeriod())}
	var violations []rpc.Violation
	if r.GetScope() != route.AllRoutes {
		violations = append(violations, checkRoute("scope", r.GetScope())...)
	}
	if budget.Period != route.Day && budget.Period != route.Month {
		violations = append(violations, rpc.Violation{Field: "period", Reason: "UNKNOWN", Description: "must be day or month"})
	}
	var limit *decimal.Decimal
	if r.GetLimitUsd() != "" {
		usd, ok := priceFrom(r.GetLimitUsd())
		if !ok || !usd.IsPositive() {
			violations = append(violations, rpc.Violation{
				Field: "limit_usd", Reason: "MALFORMED", Description: `must be a decimal number above 0, such as "500", or empty for no limit`,
			})
		}
		limit = &usd
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	return change(ctx, s.db, "RouteService.SetBudget", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Budget, effect, error) {
		before, err := spent(ctx, tx, budget)
		if err != nil {
			return nil, effect{}, err
		}
		if err := route.SetSpendLimitIn(ctx, tx, budget, limit); err != nil {
			return nil, effect{}, err
		}
		after, err := spent(ctx, tx, budget)
		return budgetOf(after), effect{
			target: "budgets/" + budget.Scope + "/" + string(budget.Period), before: limitRecord(before.LimitUSD), after: limitRecord(after.LimitUSD),
		}, err
	})
}

// spent is what is spent of a budget in its period.
func spent(ctx context.Context, tx pgx.Tx, budget route.Budget) (route.Spending, error) {
	spending, err := route.Spend(ctx, tx)
	if err != nil {
		return route.Spending{}, err
	}
	for _, b := range spending {
		if b.Budget == budget {
			return b, nil
		}
	}
	return route.Spending{Budget: budget}, nil
}

func limitRecord(limit *decimal.Decimal) any {
	if limit == nil {
		return nil
	}
	return map[string]string{"limit_usd": limit.String()}
}

func budgetOf(b route.Spending) *adminv1.Budget {
	shown := &adminv1.Budget{Scope: b.Scope, Period: string(b.Period), UsedUsd: b.UsedUSD.String(), PeriodStartTime: timestampOf(b.BeginsAt)}
	if b.LimitUSD != nil {
		shown.LimitUsd = b.LimitUSD.String()
	}
	return shown
}

// routeName is the form of a route's name, as the table has it.
var routeName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func checkRoute(field, name string) []rpc.Violation {
	if routeName.MatchString(name) {
		return nil
	}
	return []rpc.Violation{{
		Field: field, Reason: "MALFORMED", Description: "must be lower-case letters, digits, dots, dashes and underscores, at most 64, and begin with a letter or digit",
	}}
}

func routeOf(c route.Control) *adminv1.Route {
	shown := &adminv1.Route{
		Name: c.Name, State: string(c.State), StateReason: c.Reason, ConsecutiveFailures: int32(c.Failures), Ramp: int32(c.Ramp),
		CallTimeout: durationpb.New(c.CallTimeout), ChangeTime: timestamppb.New(c.ChangedAt),
		Limits: &adminv1.RouteLimits{
			RequestsPerMinute: int32(c.Limits.RequestsPerMinute), TokensPerMinute: c.Limits.TokensPerMinute,
			ConcurrentCalls: int32(c.Limits.ConcurrentCalls), CountOutput: c.Limits.CountOutput,
		},
	}
	if c.Wait > 0 {
		shown.NextProbeTime = timestamppb.New(c.ReadAt.Add(c.Wait))
	}
	if c.Paused {
		shown.Pause = &adminv1.RoutePause{Since: timestamppb.New(c.PausedAt), PausedBy: c.PausedBy, Reason: c.PauseReason}
	}
	if c.Limits.RequestsPerMinute > 0 {
		shown.Limits.RequestsLeft = &c.RequestsLeft
	}
	if c.Limits.TokensPerMinute > 0 {
		shown.Limits.TokensLeft = &c.TokensLeft
	}
	if c.Exhausted != (route.Budget{}) {
		shown.ExhaustedBudget = c.Exhausted.String()
	}
	return shown
}
