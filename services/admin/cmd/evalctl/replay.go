package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// replayMode is a mode as a flag.
type replayMode adminv1.ReplayMode

func (m *replayMode) Type() string { return "mode" }

func (m *replayMode) String() string {
	switch adminv1.ReplayMode(*m) {
	case adminv1.ReplayMode_REPLAY_MODE_REVALIDATE:
		return "revalidate"
	case adminv1.ReplayMode_REPLAY_MODE_RECALL:
		return "recall"
	default:
		return ""
	}
}

func (m *replayMode) Set(text string) error {
	for _, mode := range []replayMode{replayMode(adminv1.ReplayMode_REPLAY_MODE_REVALIDATE), replayMode(adminv1.ReplayMode_REPLAY_MODE_RECALL)} {
		if text == mode.String() {
			*m = mode
			return nil
		}
	}
	return fmt.Errorf("must be revalidate or recall, and not %q", text)
}

func (c *cli) deadReplay() *cobra.Command {
	var shared changeFlags
	var f deadFilter
	var mode replayMode
	request := &adminv1.ReplayDeadLettersRequest{}
	var yes, wait bool
	cmd := &cobra.Command{
		Use: "replay [KEY...] --mode MODE", Short: "Make dead letters due again",
		Long: "Make dead letters due again, as a job. With --mode revalidate their stored responses are\n" +
			"judged again, which costs nothing; what has none is skipped. With --mode recall the model\n" +
			"is called again, which is paid again. It asks first, with what it will cost.",
		Example: `  evalctl dead replay --of contract_violation --version triage-2 --mode revalidate --wait
  evalctl dead replay --of unknown_outcome --mode recall --canary 10 --rate 5 --dry-run
  evalctl dead replay 91e0… --mode recall`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) (err error) {
			if request.Keys, request.Filter, err = f.selection(args); err != nil {
				return err
			}
			if err := c.mayAsk(yes || shared.dryRun); err != nil {
				return err
			}
			dead := adminv1.NewDeadLetterServiceClient(conn)
			request.Mode, request.RequestId, request.Reason = adminv1.ReplayMode(mode), shared.requestID, shared.reason
			if shared.dryRun || !yes {
				request.DryRun = true
				estimate, err := dead.ReplayDeadLetters(ctx, request)
				if err != nil {
					return fmt.Errorf("estimate the replay: %w", err)
				}
				if shared.dryRun {
					return c.print(estimate, func(w io.Writer) { fmt.Fprintf(w, "dry run: would %s\n", intended(estimate)) })
				}
				if err := c.confirm(ctx, sentence(intended(estimate))+"?"); err != nil {
					return err
				}
				request.DryRun = false
			}
			r, err := dead.ReplayDeadLetters(ctx, request)
			if err != nil {
				return fmt.Errorf("begin the replay: %w", err)
			}
			if !wait {
				return c.print(r, func(w io.Writer) {
					if r.GetSelected() == 0 {
						fmt.Fprintln(w, "no dead letter is selected: there is nothing to replay")
						return
					}
					fmt.Fprintf(w, "replay %s of %d dead letters is running; evalctl replay watch %s shows how far it is\n", r.GetId(), r.GetSelected(), r.GetId())
				})
			}
			fmt.Fprintf(c.err, "replay %s\n", r.GetId())
			return c.watchReplay(ctx, dead, r.GetId())
		}),
	}
	f.add(c, cmd)
	f.addAll(cmd)
	shared.add(cmd)
	flags := cmd.Flags()
	flags.Var(&mode, "mode", "revalidate, which costs nothing, or recall, which is paid")
	flags.Int64Var(&request.Limit, "limit", 0, "at most so many, those that died first; 0 takes all")
	flags.Int64Var(&request.Canary, "canary", 0, "pause when so many are replayed, to see what becomes of them; evalctl replay resume goes on")
	flags.Float64Var(&request.RatePerSecond, "rate", 0, "make so many due in a second; 0 makes all due at once")
	flags.BoolVar(&wait, "wait", false, "show its progress until it ends or pauses")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	must(cmd.MarkFlagRequired("mode"))
	modes := []cobra.Completion{"revalidate", "recall"}
	must(cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"limit", "canary", "rate"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// intended says what a replay is about to do, and what that costs.
func intended(r *adminv1.Replay) string {
	if r.GetMode() != adminv1.ReplayMode_REPLAY_MODE_RECALL {
		s := fmt.Sprintf("judge %d stored responses again, for nothing", r.GetWithResponse())
		if none := r.GetSelected() - r.GetWithResponse(); none > 0 {
			s += fmt.Sprintf(", and skip %d dead letters that have none", none)
		}
		return s
	}
	cost := "at a cost that is not known, as no call of one of the versions has a known cost"
	if r.GetEstimatedCostUsd() != "" {
		cost = "for about $" + r.GetEstimatedCostUsd()
	}
	return fmt.Sprintf("call the model again for %d dead letters, with %d calls %s", r.GetSelected(), r.GetCalls(), cost)
}

func (c *cli) replayCommands() *cobra.Command {
	return group("replay", "Replays of dead letters; evalctl dead replay begins one",
		c.replayList(), c.replayGet(), c.replayWatch(),
		c.replayChange("pause", "Stop a replay; what is due already goes on", false,
			func(ctx context.Context, dead adminv1.DeadLetterServiceClient, id string, f changeFlags) (*adminv1.Replay, error) {
				return dead.PauseReplay(ctx, &adminv1.PauseReplayRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.replayChange("resume", "Let a replay go on that is paused or has failed", true,
			func(ctx context.Context, dead adminv1.DeadLetterServiceClient, id string, f changeFlags) (*adminv1.Replay, error) {
				return dead.ResumeReplay(ctx, &adminv1.ResumeReplayRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.replayChange("cancel", "End a replay; what it has not come to stays dead", true,
			func(ctx context.Context, dead adminv1.DeadLetterServiceClient, id string, f changeFlags) (*adminv1.Replay, error) {
				return dead.CancelReplay(ctx, &adminv1.CancelReplayRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}))
}

func (c *cli) replayList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List replays, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			dead := adminv1.NewDeadLetterServiceClient(conn)
			all, more, err := pages(limit, func(size int32, token string) ([]*adminv1.Replay, string, error) {
				page, err := dead.ListReplays(ctx, &adminv1.ListReplaysRequest{PageSize: size, PageToken: token})
				return page.GetReplays(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list replays: %w", err)
			}
			return c.print(&adminv1.ListReplaysResponse{Replays: all, NextPageToken: more}, func(w io.Writer) {
				rows := [][]string{{"ID", "MODE", "STATE", "SELECTED", "REPLAYED", "SKIPPED", "FAILED", "REMAINING", "BY", "CREATED"}}
				for _, r := range all {
					mode := replayMode(r.GetMode())
					rows = append(rows, []string{
						r.GetId(), mode.String(), r.GetState() + because(r.GetStateReason()), whole(r.GetSelected()), whole(r.GetReplayed()), whole(r.GetSkipped()),
						whole(r.GetFailed()), whole(r.GetRemaining()), r.GetCreatedBy(), instant(r.GetCreateTime().AsTime()),
					})
				}
				table(w, rows...)
			})
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

func (c *cli) replayGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a replay, and what became of its work",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeReplay),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			r, err := adminv1.NewDeadLetterServiceClient(conn).GetReplay(ctx, &adminv1.GetReplayRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get replay %s: %w", args[0], err)
			}
			return c.print(r, func(w io.Writer) { describeReplay(w, r) })
		}),
	}
}

func describeReplay(w io.Writer, r *adminv1.Replay) {
	mode := replayMode(r.GetMode())
	rows := [][]string{
		{"ID", r.GetId()},
		{"Mode", mode.String()},
		{"State", r.GetState() + because(r.GetStateReason())},
		{"Selected", whole(r.GetSelected())},
		{"  replayed", whole(r.GetReplayed())},
		{"  skipped", whole(r.GetSkipped())},
	}
	for _, word := range slices.Sorted(maps.Keys(r.GetSkippedFor())) {
		rows = append(rows, []string{"    " + strings.ReplaceAll(word, "_", " "), whole(r.GetSkippedFor()[word])})
	}
	rows = append(rows, []string{"  failed", whole(r.GetFailed())}, []string{"  remaining", whole(r.GetRemaining())},
		[]string{"Of those replayed, waiting", whole(r.GetWaiting())}, []string{"Of those replayed, dead again", whole(r.GetDeadAgain())})
	if r.GetMode() == adminv1.ReplayMode_REPLAY_MODE_RECALL {
		rows = append(rows, []string{"Estimated cost, US$", r.GetEstimatedCostUsd()}, []string{"Cost until now, US$", r.GetCostUsd()})
	}
	rows = append(rows, []string{"By", r.GetCreatedBy()}, []string{"Created", instant(r.GetCreateTime().AsTime())})
	table(w, rows...)
}

func (c *cli) replayWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show the progress of a replay until it ends or pauses",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeReplay),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			return c.watchReplay(ctx, adminv1.NewDeadLetterServiceClient(conn), args[0])
		}),
	}
}

// watchReplay shows a replay's progress until it is done, or pauses behind its canary, and then the replay. That it ends
// otherwise is an error. Whoever interrupts it leaves the replay as it is.
func (c *cli) watchReplay(ctx context.Context, dead adminv1.DeadLetterServiceClient, id string) (err error) {
	var shown *gauge
	defer func() { shown.stop(err) }()
	poll := time.NewTicker(watchPoll)
	defer poll.Stop()
	for {
		r, err := dead.GetReplay(ctx, &adminv1.GetReplayRequest{Id: id})
		if err != nil {
			return fmt.Errorf("get replay %s: %w", id, err)
		}
		if shown == nil {
			shown = &gauge{bar: c.startBar("replaying", r.GetSelected(), progress.UnitsDefault)}
		}
		shown.to(r.GetSelected() - r.GetRemaining())
		if r.GetState() != "running" {
			shown.stop(nil)
			shown = nil
			if r.GetState() != "done" && r.GetStateReason() != "canary" {
				return fmt.Errorf("replay %s is %s%s", id, r.GetState(), because(r.GetStateReason()))
			}
			return c.print(r, func(w io.Writer) { describeReplay(w, r) })
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("replay %s goes on: %w", id, context.Cause(ctx))
		}
	}
}

// replayChange is a command that changes the state of a replay.
func (c *cli) replayChange(
	verb, short string, asks bool, do func(context.Context, adminv1.DeadLetterServiceClient, string, changeFlags) (*adminv1.Replay, error),
) *cobra.Command {
	question := replayStands
	if !asks {
		question = nil
	}
	return jobChange(c, "replay", verb, short, adminv1.NewDeadLetterServiceClient, upTo(1, c.completeReplay), question, do)
}

// replayStands tells somebody who is to decide about a replay how far it is, and what it costs.
func replayStands(ctx context.Context, dead adminv1.DeadLetterServiceClient, id string) (string, error) {
	r, err := dead.GetReplay(ctx, &adminv1.GetReplayRequest{Id: id})
	if err != nil {
		return "", err
	}
	cost := "for nothing"
	if r.GetMode() == adminv1.ReplayMode_REPLAY_MODE_RECALL {
		cost = fmt.Sprintf("$%s of about $%s are spent", r.GetCostUsd(), r.GetEstimatedCostUsd())
	}
	return fmt.Sprintf("It is %s, with %d replayed, %d dead again and %d remaining; %s.",
		r.GetState(), r.GetReplayed(), r.GetDeadAgain(), r.GetRemaining(), cost), nil
}

// completeReplay offers the replays that the service has.
func (c *cli) completeReplay(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(c, cmd, func(ctx context.Context, conn *grpc.ClientConn) ([]*adminv1.Replay, error) {
		page, err := adminv1.NewDeadLetterServiceClient(conn).ListReplays(ctx, &adminv1.ListReplaysRequest{})
		return page.GetReplays(), err
	}, func(r *adminv1.Replay) (word, about string) {
		mode := replayMode(r.GetMode())
		return r.GetId(), mode.String() + ", " + r.GetState()
	})
}
