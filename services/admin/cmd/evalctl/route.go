package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) routeCommands() *cobra.Command {
	return group("route", "Routes: the accounts at providers that calls go through",
		c.routeList(), c.routeGet(),
		c.routeChange("pause", "Keep everybody from claiming work of a route, until it is resumed", "Stop all new calls on route %s?", "paused",
			func(ctx context.Context, routes adminv1.RouteServiceClient, name string, f changeFlags) (*adminv1.Route, error) {
				return routes.PauseRoute(ctx, &adminv1.PauseRouteRequest{Name: name, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.routeChange("resume", "End the pause of a route", "", "not paused",
			func(ctx context.Context, routes adminv1.RouteServiceClient, name string, f changeFlags) (*adminv1.Route, error) {
				return routes.ResumeRoute(ctx, &adminv1.ResumeRouteRequest{Name: name, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.routeChange("reset", "Close the breaker of a route now, whatever it knows", "Let calls pass on route %s, whatever has shut it?", "closed",
			func(ctx context.Context, routes adminv1.RouteServiceClient, name string, f changeFlags) (*adminv1.Route, error) {
				return routes.ResetRoute(ctx, &adminv1.ResetRouteRequest{Name: name, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.routeLimits(), c.routeTimeout(), c.routeBudget())
}

func (c *cli) routeList() *cobra.Command {
	return hasCSV(&cobra.Command{
		Use: "list", Short: "List all routes, lane by lane", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			list, err := adminv1.NewRouteServiceClient(conn).ListRoutes(ctx, &adminv1.ListRoutesRequest{})
			if err != nil {
				return fmt.Errorf("list routes: %w", err)
			}
			rows := [][]string{{"ROUTE", "STATE", "LANE", "READY", "RUNNING", "SCHEDULED", "DEAD", "OLDEST", "ANSWERED/MIN", "TODAY US$", "MONTH US$"}}
			for _, r := range list.GetRoutes() {
				for _, lane := range r.GetLoad().GetLanes() {
					rows = append(rows, []string{
						r.GetName(), routeState(r), lane.GetLane(), counted(lane.GetReady()), whole(lane.GetRunning()), counted(lane.GetScheduled()),
						counted(lane.GetDead()), age(lane.GetOldestReadyAge()), strconv.FormatFloat(r.GetLoad().GetThroughput().GetAnsweredPerMinute(), 'f', 1, 64),
						spentIn(r, "day"), spentIn(r, "month"),
					})
				}
			}
			if c.flags.output == asCSV {
				return writeCSV(c.out, rows...)
			}
			return c.print(list, func(w io.Writer) { table(w, rows...) })
		}),
	})
}

// routeState is what keeps calls from passing, or closed.
func routeState(r *adminv1.Route) string {
	switch {
	case r.GetPause() != nil:
		return "paused, " + r.GetState()
	case r.GetExhaustedBudget() != "":
		return r.GetState() + ", no budget"
	}
	return r.GetState() + because(r.GetStateReason())
}

func counted(n *adminv1.Count) string {
	if n.GetEstimated() {
		return "~" + whole(n.GetValue())
	}
	return whole(n.GetValue())
}

func age(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().Round(time.Second).String()
}

// spentIn is what is spent of what may be.
func spentIn(r *adminv1.Route, period string) string {
	for _, s := range r.GetLoad().GetSpend() {
		if s.GetPeriod() != period {
			continue
		}
		text := s.GetUsedUsd()
		if s.GetEstimated() {
			text = ">" + text
		}
		if s.GetLimitUsd() != "" {
			text += " of " + s.GetLimitUsd()
		}
		return text
	}
	return ""
}

func (c *cli) routeGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a route with its load",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeRoute),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			r, err := adminv1.NewRouteServiceClient(conn).GetRoute(ctx, &adminv1.GetRouteRequest{Name: args[0]})
			if err != nil {
				return fmt.Errorf("get route %s: %w", args[0], err)
			}
			return c.print(r, func(w io.Writer) { describeRoute(w, r) })
		}),
	}
}

func describeRoute(w io.Writer, r *adminv1.Route) {
	rows := [][]string{{"Route", r.GetName()}, {"State", r.GetState() + because(r.GetStateReason())}}
	if r.GetNextProbeTime() != nil {
		rows = append(rows, []string{"Next call not before", instant(r.GetNextProbeTime().AsTime())})
	}
	if p := r.GetPause(); p != nil {
		rows = append(rows, []string{"Paused", "by " + p.GetPausedBy() + " since " + instant(p.GetSince().AsTime()) + because(p.GetReason())})
	}
	if r.GetExhaustedBudget() != "" {
		rows = append(rows, []string{"Budget exhausted", r.GetExhaustedBudget()})
	}
	load, limits := r.GetLoad(), r.GetLimits()
	throughput, savings := load.GetThroughput(), load.GetSavings()
	rows = append(rows,
		[]string{"Call timeout", r.GetCallTimeout().AsDuration().String()},
		[]string{"Requests per minute", limited(int64(limits.GetRequestsPerMinute()), limits.RequestsLeft)},
		[]string{"Tokens per minute", limited(limits.GetTokensPerMinute(), limits.TokensLeft)},
		[]string{"Concurrent calls", limited(int64(limits.GetConcurrentCalls()), nil)},
		[]string{"Last " + throughput.GetWindow().AsDuration().Round(time.Second).String(), fmt.Sprintf("%d calls, %d answered, %d failed; %.1f answers/min",
			throughput.GetCalls(), throughput.GetAnswered(), throughput.GetFailed(), throughput.GetAnsweredPerMinute())},
		[]string{"Spent today, US$", spentIn(r, "day")},
		[]string{"Spent this month, US$", spentIn(r, "month")},
		[]string{"Saved by twins", fmt.Sprintf("%d of the last %d tickets needed no call, worth $%s", savings.GetAnsweredWithoutCall(), savings.GetTickets(), savings.GetSavedUsd())},
	)
	table(w, rows...)
	fmt.Fprintln(w)
	lanes := [][]string{{"LANE", "READY", "RUNNING", "SCHEDULED", "DEAD", "OLDEST READY"}}
	for _, lane := range load.GetLanes() {
		lanes = append(lanes, []string{
			lane.GetLane(), counted(lane.GetReady()), whole(lane.GetRunning()), counted(lane.GetScheduled()), counted(lane.GetDead()), age(lane.GetOldestReadyAge()),
		})
	}
	table(w, lanes...)
}

func limited(limit int64, left *int64) string {
	switch {
	case limit == 0:
		return "no limit"
	case left != nil:
		return fmt.Sprintf("%d, %d may be used at once now", limit, *left)
	default:
		return whole(limit)
	}
}

// routeChange is a command that changes the state of a route. One that stops calls, or lets them go where they failed,
// asks first.
func (c *cli) routeChange(
	verb, short, question, state string, do func(context.Context, adminv1.RouteServiceClient, string, changeFlags) (*adminv1.Route, error),
) *cobra.Command {
	var shared changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short,
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeRoute),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if question != "" && !shared.dryRun {
				if err := c.mayAsk(yes); err != nil {
					return err
				}
				if !yes {
					if err := c.confirm(ctx, fmt.Sprintf(question, args[0])); err != nil {
						return err
					}
				}
			}
			r, err := do(ctx, adminv1.NewRouteServiceClient(conn), args[0], shared)
			if err != nil {
				return fmt.Errorf("%s route %s: %w", verb, args[0], err)
			}
			return c.print(r, func(w io.Writer) { fmt.Fprintln(w, shared.would(fmt.Sprintf("route %s is %s", r.GetName(), state))) })
		}),
	}
	shared.add(cmd)
	if question != "" {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	}
	return cmd
}

func (c *cli) routeLimits() *cobra.Command {
	var shared changeFlags
	limits := &adminv1.RouteLimits{}
	cmd := &cobra.Command{
		Use: "limits NAME", Short: "Set what the account of a route allows",
		Long: "Set what the account of a route allows, shared by all workers. A limit that is not given\n" +
			"stays as it is; 0 is no limit. Workers follow within about a second.",
		Example: "  evalctl route limits main --rpm 3000 --tpm 2000000 --concurrent 200",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeRoute),
	}
	flags := cmd.Flags()
	flags.Int32Var(&limits.RequestsPerMinute, "rpm", 0, "requests per minute")
	flags.Int64Var(&limits.TokensPerMinute, "tpm", 0, "tokens per minute")
	flags.Int32Var(&limits.ConcurrentCalls, "concurrent", 0, "calls at once")
	flags.BoolVar(&limits.CountOutput, "count-output", false, "the token limit counts output tokens, too")
	names := []string{"rpm", "tpm", "concurrent", "count-output"}
	cmd.MarkFlagsOneRequired(names...)
	for _, name := range names[:3] {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	shared.add(cmd)
	cmd.RunE = c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
		routes := adminv1.NewRouteServiceClient(conn)
		r, err := routes.GetRoute(ctx, &adminv1.GetRouteRequest{Name: args[0]})
		if err != nil {
			return fmt.Errorf("get route %s: %w", args[0], err)
		}
		is := r.GetLimits()
		for name, keep := range map[string]func(){
			"rpm": func() { limits.RequestsPerMinute = is.GetRequestsPerMinute() }, "tpm": func() { limits.TokensPerMinute = is.GetTokensPerMinute() },
			"concurrent": func() { limits.ConcurrentCalls = is.GetConcurrentCalls() }, "count-output": func() { limits.CountOutput = is.GetCountOutput() },
		} {
			if !flags.Changed(name) {
				keep()
			}
		}
		r, err = routes.SetRouteLimits(ctx, &adminv1.SetRouteLimitsRequest{
			Name: args[0], Limits: limits, DryRun: shared.dryRun, RequestId: shared.requestID, Reason: shared.reason,
		})
		if err != nil {
			return fmt.Errorf("set the limits of route %s: %w", args[0], err)
		}
		return c.print(r, func(w io.Writer) {
			l := r.GetLimits()
			fmt.Fprintln(w, shared.would(fmt.Sprintf("route %s allows: requests per minute %s, tokens per minute %s, concurrent calls %s", r.GetName(),
				limited(int64(l.GetRequestsPerMinute()), nil), limited(l.GetTokensPerMinute(), nil), limited(int64(l.GetConcurrentCalls()), nil))))
		})
	})
	return cmd
}

func (c *cli) routeTimeout() *cobra.Command {
	var shared changeFlags
	cmd := &cobra.Command{
		Use: "timeout NAME DURATION", Short: "Set how long one call may take",
		Long:    "Set how long one call may take. It must stay below the workers' lease, EVALONCE_LEASE.",
		Example: "  evalctl route timeout main 45s",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: upTo(1, c.completeRoute),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			timeout, err := time.ParseDuration(args[1])
			if err != nil {
				return usageError{fmt.Errorf("the timeout must be a duration such as 45s, and not %q", args[1])}
			}
			r, err := adminv1.NewRouteServiceClient(conn).SetRouteCallTimeout(ctx, &adminv1.SetRouteCallTimeoutRequest{
				Name: args[0], CallTimeout: durationpb.New(timeout), DryRun: shared.dryRun, RequestId: shared.requestID, Reason: shared.reason,
			})
			if err != nil {
				return fmt.Errorf("set the call timeout of route %s: %w", args[0], err)
			}
			return c.print(r, func(w io.Writer) {
				fmt.Fprintln(w, shared.would(fmt.Sprintf("a call on route %s may take %s", r.GetName(), r.GetCallTimeout().AsDuration())))
			})
		}),
	}
	shared.add(cmd)
	return cmd
}

func (c *cli) routeBudget() *cobra.Command {
	return group("budget", "What may be spent in a day or a month", c.budgetList(), c.budgetSet(), c.budgetRemove())
}

func (c *cli) budgetList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List what may be spent, and what is", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			list, err := adminv1.NewRouteServiceClient(conn).ListBudgets(ctx, &adminv1.ListBudgetsRequest{})
			if err != nil {
				return fmt.Errorf("list budgets: %w", err)
			}
			return c.print(list, func(w io.Writer) {
				rows := [][]string{{"SCOPE", "PERIOD", "SINCE", "USED US$", "LIMIT US$"}}
				for _, b := range list.GetBudgets() {
					rows = append(rows, []string{b.GetScope(), b.GetPeriod(), instant(b.GetPeriodStartTime().AsTime()), b.GetUsedUsd(), b.GetLimitUsd()})
				}
				table(w, rows...)
			})
		}),
	}
}

const budgetScopes = "SCOPE is a route, or all for all routes together; PERIOD is day or month, of UTC."

func (c *cli) budgetSet() *cobra.Command {
	var shared changeFlags
	cmd := &cobra.Command{
		Use: "set SCOPE PERIOD USD", Short: "Set what may be spent",
		Long:    "Set what may be spent. " + budgetScopes + "\nWork beyond a budget waits; it never becomes a dead letter.",
		Example: "  evalctl route budget set all month 500\n  evalctl route budget set main day 25",
		Args:    cobra.ExactArgs(3), ValidArgsFunction: c.completeBudget,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			return c.setBudget(ctx, conn, args[0], args[1], args[2], shared)
		}),
	}
	shared.add(cmd)
	return cmd
}

func (c *cli) budgetRemove() *cobra.Command {
	var shared changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use: "remove SCOPE PERIOD", Short: "Remove a limit of what may be spent",
		Long: "Remove a limit of what may be spent. " + budgetScopes,
		Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeBudget,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if err := c.mayAsk(yes || shared.dryRun); err != nil {
				return err
			}
			if !yes && !shared.dryRun {
				if err := c.confirm(ctx, fmt.Sprintf("Let %s spend without a limit for the %s?", args[0], args[1])); err != nil {
					return err
				}
			}
			return c.setBudget(ctx, conn, args[0], args[1], "", shared)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	shared.add(cmd)
	return cmd
}

func (c *cli) setBudget(ctx context.Context, conn *grpc.ClientConn, scope, period, usd string, shared changeFlags) error {
	if scope == "all" {
		scope = "*"
	}
	b, err := adminv1.NewRouteServiceClient(conn).SetBudget(ctx, &adminv1.SetBudgetRequest{
		Scope: scope, Period: period, LimitUsd: usd, DryRun: shared.dryRun, RequestId: shared.requestID, Reason: shared.reason,
	})
	if err != nil {
		return fmt.Errorf("set the budget of %s for the %s: %w", scope, period, err)
	}
	return c.print(b, func(w io.Writer) {
		scope := strings.ReplaceAll(b.GetScope(), "*", "all routes")
		is := fmt.Sprintf("the budget of %s for the %s is $%s, of which $%s are spent", scope, b.GetPeriod(), b.GetLimitUsd(), b.GetUsedUsd())
		if b.GetLimitUsd() == "" {
			is = fmt.Sprintf("%s may spend without a limit for the %s; $%s are spent", scope, b.GetPeriod(), b.GetUsedUsd())
		}
		fmt.Fprintln(w, shared.would(is))
	})
}

// completeRoute offers the routes that the service has.
func (c *cli) completeRoute(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(c, cmd, func(ctx context.Context, conn *grpc.ClientConn) ([]*adminv1.Route, error) {
		list, err := adminv1.NewRouteServiceClient(conn).ListRoutes(ctx, &adminv1.ListRoutesRequest{})
		return list.GetRoutes(), err
	}, func(r *adminv1.Route) (word, about string) {
		return r.GetName(), routeState(r)
	})
}

func (c *cli) completeBudget(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		routes, directive := c.completeRoute(cmd, args, typed)
		return append(routes, "all"), directive
	case 1:
		return []cobra.Completion{"day", "month"}, cobra.ShellCompDirectiveNoFileComp
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
