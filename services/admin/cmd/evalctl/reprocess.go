package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) reprocessCommands() *cobra.Command {
	return group("reprocess", "Evaluate stored tickets under another version, in the background",
		c.reprocessStart(), c.reprocessPreview(), c.reprocessGet(), c.reprocessWatch(), c.reprocessList(),
		c.reprocessChange("pause", "Stop a job, and hold back what waits in its name", false,
			func(ctx context.Context, jobs adminv1.ReprocessServiceClient, id string, f changeFlags) (*adminv1.Reprocess, error) {
				return jobs.PauseReprocess(ctx, &adminv1.PauseReprocessRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.reprocessChange("resume", "Let a job go on that is paused or has failed", true,
			func(ctx context.Context, jobs adminv1.ReprocessServiceClient, id string, f changeFlags) (*adminv1.Reprocess, error) {
				return jobs.ResumeReprocess(ctx, &adminv1.ResumeReprocessRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.reprocessChange("cancel", "End a job, and take back what waits in its name", true,
			func(ctx context.Context, jobs adminv1.ReprocessServiceClient, id string, f changeFlags) (*adminv1.Reprocess, error) {
				return jobs.CancelReprocess(ctx, &adminv1.CancelReprocessRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}))
}

// selectionFlags say which tickets, under what, and how fast.
type selectionFlags struct {
	since, until moment
	selection    adminv1.ReprocessSelection
	spread       time.Duration
}

func (f *selectionFlags) add(c *cli, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&f.since, "since", "tickets created at this time or later: in RFC 3339 with its offset, or so long ago, such as 30d")
	flags.Var(&f.since, "from", "the same as --since")
	flags.Var(&f.until, "until", "tickets created before this time; now when not given")
	flags.Var(&f.until, "to", "the same as --until")
	cmd.MarkFlagsMutuallyExclusive("since", "from")
	cmd.MarkFlagsMutuallyExclusive("until", "to")
	cmd.MarkFlagsOneRequired("since", "from")
	flags.StringVar(&f.selection.Version, "version", "", "the version to evaluate under")
	flags.StringVar(&f.selection.ClientId, "client", "", "only tickets of this client")
	flags.StringVar(&f.selection.Department, "department", "", "only tickets that were answered with this department")
	flags.StringSliceVar(&f.selection.States, "state", nil, "only tickets whose evaluation under the active version is in one of these states:\n"+
		"pending, processing, succeeded, dead, or none")
	flags.BoolVar(&f.selection.OnlyMissing, "only-missing", false, "only tickets that no version has answered")
	flags.Int64Var(&f.selection.Limit, "limit", 0, "at most so many tickets, those created first; 0 takes all")
	flags.DurationVar(&f.spread, "spread", 30*time.Minute, "the time over which the evaluations become due; 0 makes all due at once")
	must(cmd.MarkFlagRequired("version"))
	must(cmd.RegisterFlagCompletionFunc("version", c.completeVersion))
	states := []cobra.Completion{"pending", "processing", "succeeded", "dead", "none"}
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"since", "from", "until", "to", "client", "department", "limit", "spread"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
}

// chosen is the selection, with an end when one was given. What was given as so long ago is sent as that: the command is
// the same request whenever it is repeated.
func (f *selectionFlags) chosen() *adminv1.ReprocessSelection {
	if f.since.ago > 0 {
		f.selection.CreatedWithin = durationpb.New(f.since.ago)
	} else {
		f.selection.CreatedFrom = timestamppb.New(f.since.Time)
	}
	if !f.until.IsZero() {
		f.selection.CreatedTo = timestamppb.New(f.until.Time)
	}
	return &f.selection
}

const reprocessExample = `  evalctl reprocess start --since 30d --version triage-2 --dry-run
  evalctl reprocess start --from 2026-11-01T00:00:00+01:00 --to 2026-11-08T00:00:00+01:00 \
      --version triage-2 --spread 2h --max-cost 25 --wait
  evalctl reprocess start --since 7d --version triage-2 --state dead --department billing`

func (c *cli) reprocessStart() *cobra.Command {
	var chosen selectionFlags
	var shared changeFlags
	var most string
	var yes, wait bool
	cmd := &cobra.Command{
		Use: "start --since TIME --version ID", Short: "Begin a job",
		Long: "Begin a job that evaluates the tickets of a range under a version. What the version has\n" +
			"answered, or is working on, is not evaluated again, however often this is done. It asks\n" +
			"first, with the number of calls and what they will cost.",
		Example: reprocessExample,
		Args:    cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			jobs := adminv1.NewReprocessServiceClient(conn)
			if err := c.mayAsk(yes || shared.dryRun); err != nil {
				return err
			}
			request := &adminv1.StartReprocessRequest{
				Selection: chosen.chosen(), Spread: durationpb.New(chosen.spread), MaxCostUsd: most, RequestId: shared.requestID, Reason: shared.reason,
			}
			if shared.dryRun || !yes {
				request.DryRun = true
				foretold, err := jobs.StartReprocess(ctx, request)
				if err != nil {
					return fmt.Errorf("start: %w", err)
				}
				request.DryRun = false
				e := foretold.GetEstimate()
				if shared.dryRun {
					return c.print(e, func(w io.Writer) { describeEstimate(w, e) })
				}
				if err := c.confirm(ctx, fmt.Sprintf("Evaluate %d tickets under %s, with %d calls for about $%s (%s), in about %s?",
					e.GetTickets(), chosen.selection.GetVersion(), e.GetCalls(), e.GetCostUsd(), costBasis(e), e.GetDuration().AsDuration())); err != nil {
					return err
				}
			}
			r, err := jobs.StartReprocess(ctx, request)
			if err != nil {
				return fmt.Errorf("start: %w", err)
			}
			if !wait {
				return c.print(r, func(w io.Writer) {
					fmt.Fprintf(w, "job %s is running; evalctl reprocess watch %s shows how far it is\n", r.GetId(), r.GetId())
				})
			}
			fmt.Fprintf(c.err, "job %s\n", r.GetId())
			return c.watchReprocess(ctx, jobs, r.GetId())
		}),
	}
	chosen.add(c, cmd)
	shared.add(cmd)
	cmd.Flags().StringVar(&most, "max-cost", "", "US dollars that it may cost: it does not begin when it is estimated at more, and is paused when it comes to it")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&wait, "wait", false, "show its progress until it ends")
	must(cmd.RegisterFlagCompletionFunc("max-cost", cobra.NoFileCompletions))
	return cmd
}

func (c *cli) reprocessPreview() *cobra.Command {
	var chosen selectionFlags
	cmd := &cobra.Command{
		Use: "preview --since TIME --version ID", Short: "Tell what a job would come to, and what it would cost",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			e, err := adminv1.NewReprocessServiceClient(conn).PreviewReprocess(ctx,
				&adminv1.PreviewReprocessRequest{Selection: chosen.chosen(), Spread: durationpb.New(chosen.spread)})
			if err != nil {
				return fmt.Errorf("preview: %w", err)
			}
			return c.print(e, func(w io.Writer) { describeEstimate(w, e) })
		}),
	}
	chosen.add(c, cmd)
	return cmd
}

func (c *cli) reprocessGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a job, and how far it is",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeReprocess),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			r, err := adminv1.NewReprocessServiceClient(conn).GetReprocess(ctx, &adminv1.GetReprocessRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get job %s: %w", args[0], err)
			}
			return c.print(r, func(w io.Writer) { describeReprocess(w, r) })
		}),
	}
}

func (c *cli) reprocessWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show the progress of a job until it ends or is paused",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeReprocess),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			return c.watchReprocess(ctx, adminv1.NewReprocessServiceClient(conn), args[0])
		}),
	}
}

func (c *cli) reprocessList() *cobra.Command {
	var state string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List jobs, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			jobs := adminv1.NewReprocessServiceClient(conn)
			all, next, err := pages(limit, func(size int32, token string) ([]*adminv1.Reprocess, string, error) {
				page, err := jobs.ListReprocesses(ctx, &adminv1.ListReprocessesRequest{State: state, PageSize: size, PageToken: token})
				return page.GetReprocesses(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list jobs: %w", err)
			}
			return c.print(&adminv1.ListReprocessesResponse{Reprocesses: all, NextPageToken: next}, func(w io.Writer) {
				rows := [][]string{{"ID", "STATE", "VERSION", "FROM", "TO", "EXAMINED", "ENQUEUED", "BY", "CREATED"}}
				for _, r := range all {
					s, p := r.GetSelection(), r.GetProgress()
					rows = append(rows, []string{
						r.GetId(), r.GetState(), s.GetVersion(), instant(s.GetCreatedFrom().AsTime()), instant(s.GetCreatedTo().AsTime()),
						whole(p.GetExamined()), whole(p.GetEnqueued()), r.GetCreatedBy(), instant(r.GetCreateTime().AsTime()),
					})
				}
				table(w, rows...)
			})
		}),
	}
	cmd.Flags().StringVar(&state, "state", "", "only jobs in this state: running, paused, canceled, done or failed")
	states := []cobra.Completion{"running", "paused", "canceled", "done", "failed"}
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)))
	limitFlag(cmd, &limit)
	return cmd
}

// reprocessChange is a command that changes the state of a job.
func (c *cli) reprocessChange(
	verb, short string, asks bool, do func(context.Context, adminv1.ReprocessServiceClient, string, changeFlags) (*adminv1.Reprocess, error),
) *cobra.Command {
	question := reprocessStands
	if !asks {
		question = nil
	}
	return jobChange(c, "job", verb, short, adminv1.NewReprocessServiceClient, upTo(1, c.completeReprocess), question, do)
}

// reprocessStands tells somebody who is to decide about a job how far it is, and what it has cost.
func reprocessStands(ctx context.Context, jobs adminv1.ReprocessServiceClient, id string) (string, error) {
	r, err := jobs.GetReprocess(ctx, &adminv1.GetReprocessRequest{Id: id})
	if err != nil {
		return "", err
	}
	p := r.GetProgress()
	return fmt.Sprintf("It is %s, %d of its %d evaluations wait, and $%s are spent.", r.GetState(), p.GetWaiting(), p.GetEnqueued(), p.GetSpentUsd()), nil
}

// completeReprocess offers the jobs that the service has.
func (c *cli) completeReprocess(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(c, cmd, func(ctx context.Context, conn *grpc.ClientConn) ([]*adminv1.Reprocess, error) {
		page, err := adminv1.NewReprocessServiceClient(conn).ListReprocesses(ctx, &adminv1.ListReprocessesRequest{})
		return page.GetReprocesses(), err
	}, func(r *adminv1.Reprocess) (word, about string) {
		return r.GetId(), r.GetState() + " under " + r.GetSelection().GetVersion()
	})
}

func costBasis(e *adminv1.ReprocessEstimate) string {
	switch e.GetCostBasis() {
	case adminv1.CostBasis_COST_BASIS_VERSION:
		return fmt.Sprintf("by %d calls of this version", e.GetBasisCalls())
	case adminv1.CostBasis_COST_BASIS_OTHER_VERSIONS:
		return fmt.Sprintf("by the tokens of %d calls of other versions", e.GetBasisCalls())
	case adminv1.CostBasis_COST_BASIS_TEXT:
		return "by the length of the texts, with all of the output there may be"
	default:
		return "by what this program does not know"
	}
}

func paceBasis(e *adminv1.ReprocessEstimate) string {
	switch e.GetPaceBasis() {
	case adminv1.PaceBasis_PACE_BASIS_LIMITS:
		return fmt.Sprintf("%.3g calls/s by the limits of the route", e.GetCallsPerSecond())
	case adminv1.PaceBasis_PACE_BASIS_MEASURED:
		return fmt.Sprintf("%.3g calls/s in the busiest minute of the route", e.GetCallsPerSecond())
	default:
		return "the spread; the pace of the route is not known"
	}
}

func describeEstimate(w io.Writer, e *adminv1.ReprocessEstimate) {
	table(w,
		[]string{"Tickets", whole(e.GetTickets())},
		[]string{"Distinct contents", whole(e.GetContents())},
		[]string{"  already answered", whole(e.GetAlreadyAnswered())},
		[]string{"  already queued", whole(e.GetAlreadyQueued())},
		[]string{"  dead letters", whole(e.GetAlreadyDead())},
		[]string{"Calls", whole(e.GetCalls())},
		[]string{"Cost", fmt.Sprintf("$%s (%s)", e.GetCostUsd(), costBasis(e))},
		[]string{"Duration", fmt.Sprintf("%s (%s)", e.GetDuration().AsDuration(), paceBasis(e))},
	)
}

func describeReprocess(w io.Writer, r *adminv1.Reprocess) {
	s, p := r.GetSelection(), r.GetProgress()
	rows := [][]string{
		{"ID", r.GetId()},
		{"State", r.GetState()},
	}
	optional := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	optional("Phase", r.GetPhase())
	optional("Why", r.GetStateReason())
	rows = append(rows, []string{"Version", s.GetVersion()},
		[]string{"Created", instant(s.GetCreatedFrom().AsTime()) + " to " + instant(s.GetCreatedTo().AsTime())})
	optional("Client", s.GetClientId())
	optional("Department", s.GetDepartment())
	for _, state := range s.GetStates() {
		optional("In state", state)
	}
	optional("Only", map[bool]string{true: "what no version has answered"}[s.GetOnlyMissing()])
	optional("At most", map[bool]string{true: whole(s.GetLimit()) + " tickets"}[s.GetLimit() > 0])
	optional("Maximum cost", map[bool]string{true: "$" + r.GetMaxCostUsd()}[r.GetMaxCostUsd() != ""])
	rows = append(rows, []string{"Spread", r.GetSpread().AsDuration().String()},
		[]string{"Started", instant(r.GetCreateTime().AsTime()) + " by " + r.GetCreatedBy()},
		[]string{"Seen", fmt.Sprintf("%d of %d tickets", p.GetSeen(), p.GetTotal())},
		[]string{"Examined", whole(p.GetExamined())},
		[]string{"  already answered", whole(p.GetAlreadyAnswered())},
		[]string{"  already queued", whole(p.GetAlreadyQueued())},
		[]string{"  dead letters", whole(p.GetAlreadyDead())},
		[]string{"  enqueued", whole(p.GetEnqueued())},
		[]string{"    waiting", whole(p.GetWaiting())},
		[]string{"      held back", whole(p.GetHeld())},
		[]string{"    processing", whole(p.GetProcessing())},
		[]string{"    evaluated", whole(p.GetEvaluated())},
		[]string{"    dead", whole(p.GetDead())},
		[]string{"    taken over", whole(p.GetTakenOver())},
		[]string{"    taken back", whole(p.GetRemoved())},
		[]string{"    kept", whole(p.GetKept())},
		[]string{"Spent", "$" + p.GetSpentUsd()})
	if p.GetEta() != nil {
		rows = append(rows, []string{"Done at about", instant(p.GetEta().AsTime())})
	}
	table(w, rows...)
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }
