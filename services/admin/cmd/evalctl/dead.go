package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) deadCommands() *cobra.Command {
	return group("dead", "Dead letters: evaluations that ended without an answer",
		c.deadGroups(), c.deadList(), c.deadGet(), c.deadAssign(), c.deadDiscard(), c.deadReplay())
}

// deadFilter are the flags that select dead letters.
type deadFilter struct {
	filter       adminv1.DeadLetterFilter
	since, until moment
	all          bool
}

func (f *deadFilter) add(c *cli, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.filter.Class, "class", "", "only those of this class, such as permanent")
	flags.StringVar(&f.filter.Reason, "of", "", "only those that died of this, such as contract_violation")
	flags.StringVar(&f.filter.Version, "version", "", "only those under this version")
	flags.StringVar(&f.filter.Route, "route", "", "only those on this route")
	flags.StringVar(&f.filter.Owner, "owned-by", "", "only those that are assigned to this person")
	flags.StringVar(&f.filter.Client, "client", "", "only those that a ticket of this client waits for")
	flags.Var(&f.since, "since", "only those that died at this time or later: in RFC 3339, or so long ago, such as 7d")
	flags.Var(&f.until, "until", "only those that died before this time")
	classes := []cobra.Completion{"transient", "unknown", "permanent"}
	must(cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions(classes, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("version", c.completeVersion))
	for _, name := range []string{"of", "route", "owned-by", "client", "since", "until"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
}

// addAll adds the flag that makes up for having named nothing.
func (f *deadFilter) addAll(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.all, "all", false, "all dead letters, where no other flag selects some")
}

func (f *deadFilter) addDiscarded(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.filter.IncludeDiscarded, "discarded", false, "discarded ones as well")
}

func (f *deadFilter) chosen() *adminv1.DeadLetterFilter {
	if !f.since.IsZero() {
		f.filter.DeadFrom = timestamppb.New(f.since.Time)
	}
	if !f.until.IsZero() {
		f.filter.DeadTo = timestamppb.New(f.until.Time)
	}
	return &f.filter
}

// selection is what a command line is about: the keys that it names, or what its flags select.
func (f *deadFilter) selection(keys []string) ([]string, *adminv1.DeadLetterFilter, error) {
	chosen := f.chosen()
	selects := chosen.GetClass() + chosen.GetReason() + chosen.GetVersion() + chosen.GetRoute() + chosen.GetOwner() + chosen.GetClient()
	filtered := selects != "" || chosen.GetDeadFrom() != nil || chosen.GetDeadTo() != nil
	switch {
	case len(keys) > 0 && (filtered || f.all):
		return nil, nil, usageError{errors.New("name keys, or select by flags, not both")}
	case len(keys) > 0:
		return keys, nil, nil
	case filtered && f.all:
		return nil, nil, usageError{errors.New("--all is for all dead letters: it cannot be given with flags that select some")}
	case !filtered && !f.all:
		return nil, nil, usageError{errors.New("which dead letters? Name keys, select by flags, or give --all")}
	}
	return nil, chosen, nil
}

func (c *cli) deadGroups() *cobra.Command {
	var f deadFilter
	cmd := hasCSV(&cobra.Command{
		Use: "groups", Short: "Count dead letters by class, reason and version",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			response, err := adminv1.NewDeadLetterServiceClient(conn).GroupDeadLetters(ctx, &adminv1.GroupDeadLettersRequest{Filter: f.chosen()})
			if err != nil {
				return fmt.Errorf("group the dead letters: %w", err)
			}
			rows := [][]string{{"CLASS", "REASON", "VERSION", "COUNT", "FIRST", "LAST"}}
			for _, g := range response.GetGroups() {
				rows = append(rows, []string{
					g.GetClass(), g.GetReason(), g.GetVersion(), whole(g.GetCount()), instant(g.GetFirstDeadTime().AsTime()), instant(g.GetLastDeadTime().AsTime()),
				})
			}
			if c.flags.output == asCSV {
				return writeCSV(c.out, rows...)
			}
			return c.print(response, func(w io.Writer) { table(w, rows...) })
		}),
	})
	f.add(c, cmd)
	f.addDiscarded(cmd)
	return cmd
}

func (c *cli) deadList() *cobra.Command {
	var f deadFilter
	var limit int
	cmd := hasCSV(&cobra.Command{
		Use: "list", Short: "List dead letters, those that died last first", Aliases: []string{"ls"},
		Example: `  evalctl dead list --class permanent --since 7d
  evalctl dead list --of contract_violation --version triage-2 --limit 0 -o csv`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			dead := adminv1.NewDeadLetterServiceClient(conn)
			letters, more, err := pages(limit, func(size int32, token string) ([]*adminv1.DeadLetter, string, error) {
				page, err := dead.ListDeadLetters(ctx, &adminv1.ListDeadLettersRequest{Filter: f.chosen(), PageSize: size, PageToken: token})
				return page.GetDeadLetters(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list the dead letters: %w", err)
			}
			rows := [][]string{{"KEY", "CLASS", "REASON", "VERSION", "ROUTE", "DIED", "RESPONSE", "OWNER", "NOTE"}}
			for _, d := range letters {
				rows = append(rows, []string{
					d.GetKey(), d.GetClass(), d.GetReason(), d.GetVersion(), d.GetRoute(), instant(d.GetDeadTime().AsTime()), mark(d.GetHasResponse()),
					d.GetOwner(), d.GetNote(),
				})
			}
			if c.flags.output == asCSV {
				return writeCSV(c.out, rows...)
			}
			return c.print(&adminv1.ListDeadLettersResponse{DeadLetters: letters, NextPageToken: more}, func(w io.Writer) { table(w, rows...) })
		}),
	})
	f.add(c, cmd)
	f.addDiscarded(cmd)
	limitFlag(cmd, &limit)
	return cmd
}

func (c *cli) deadGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a dead letter with all of its calls",
		Long: "Show a dead letter with all calls that were made for it and the tickets that wait for it.\n" +
			"ID is an evaluation key, or the id of a ticket.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			d, err := adminv1.NewDeadLetterServiceClient(conn).GetDeadLetter(ctx, &adminv1.GetDeadLetterRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get the dead letter %s: %w", args[0], err)
			}
			return c.print(d, func(w io.Writer) { describeDeadLetter(w, d) })
		}),
	}
}

func describeDeadLetter(w io.Writer, d *adminv1.DeadLetter) {
	rows := [][]string{
		{"Key", d.GetKey()},
		{"Version", d.GetVersion()},
		{"Route", d.GetRoute()},
		{"Died", instant(d.GetDeadTime().AsTime())},
		{"Of", d.GetClass() + ": " + d.GetReason()},
		{"Detail", d.GetDetail()},
		{"Attempts", strconv.Itoa(int(d.GetAttempts()))},
		{"Unknown calls", strconv.Itoa(int(d.GetUnknownCalls()))},
		{"Tickets", whole(d.GetTicketCount())},
		{"Owner", d.GetOwner()},
		{"Note", d.GetNote()},
	}
	if d.GetDiscardTime() != nil {
		rows = append(rows, []string{"Discarded", instant(d.GetDiscardTime().AsTime())})
	}
	table(w, rows...)
	fmt.Fprintln(w)
	calls := [][]string{{"CALL", "ATTEMPT", "STARTED", "OUTCOME", "REASON", "HTTP", "TOKENS", "USD", "LATE", "RECALLED BY"}}
	for _, call := range d.GetCalls() {
		calls = append(calls, []string{
			call.GetId(), strconv.Itoa(int(call.GetAttempt())), instant(call.GetStartTime().AsTime()), call.GetOutcome(), call.GetReason(),
			unlessZero(int64(call.GetHttpStatus())), unlessZero(call.GetInputTokens() + call.GetOutputTokens()), call.GetCostUsd(), mark(call.GetLate()), call.GetRecalledBy(),
		})
	}
	table(w, calls...)
	for _, call := range d.GetCalls() {
		if call.GetDetail() != "" {
			fmt.Fprintf(w, "\nDETAIL OF %s\n%s\n", call.GetId(), printable(call.GetDetail()))
		}
		if call.GetResponse() != "" {
			fmt.Fprintf(w, "\nRESPONSE TO %s, %d BYTES\n%s\n", call.GetId(), call.GetResponseBytes(), printable(call.GetResponse()))
		}
	}
	fmt.Fprintf(w, "\nTICKETS\n%s\n", strings.Join(d.GetTicketIds(), "\n"))
}

// unlessZero leaves a zero out.
func unlessZero(n int64) string {
	if n == 0 {
		return ""
	}
	return whole(n)
}

func (c *cli) deadAssign() *cobra.Command {
	var shared changeFlags
	var owner, note string
	cmd := &cobra.Command{
		Use: "assign ID", Short: "Say who looks after a dead letter, and what there is to know",
		Example: `  evalctl dead assign 91e0… --owner bob --note "waits for the vendor"
  evalctl dead assign 91e0…        # nobody's again`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			d, err := adminv1.NewDeadLetterServiceClient(conn).AssignDeadLetter(ctx, &adminv1.AssignDeadLetterRequest{
				Id: args[0], Owner: owner, Note: note, DryRun: shared.dryRun, RequestId: shared.requestID, Reason: shared.reason,
			})
			if err != nil {
				return fmt.Errorf("assign the dead letter %s: %w", args[0], err)
			}
			who := d.GetOwner()
			if who == "" {
				who = "nobody"
			}
			return c.print(d, func(w io.Writer) {
				fmt.Fprintln(w, printable(shared.would(fmt.Sprintf("dead letter %s is assigned to %s", d.GetKey(), who))))
			})
		}),
	}
	cmd.Flags().StringVar(&owner, "owner", "", "who looks after it; nobody when not given")
	cmd.Flags().StringVar(&note, "note", "", "what there is to know; replaces the note")
	shared.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("owner", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("note", cobra.NoFileCompletions))
	return cmd
}

func (c *cli) deadDiscard() *cobra.Command {
	var shared changeFlags
	var f deadFilter
	var yes bool
	cmd := &cobra.Command{
		Use: "discard [KEY...] --reason WHY", Short: "Mark dead letters as wanted by nobody",
		Long: "Mark dead letters as wanted by nobody: they leave the groups and the lists, and stay dead\n" +
			"with all that is known of them. A replay that names them takes them back.",
		Example: `  evalctl dead discard 91e0… 0c4f… --reason "test tickets"
  evalctl dead discard --of content_filter --version triage-1 --reason "version is retired" --dry-run`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			keys, filter, err := f.selection(args)
			if err != nil {
				return err
			}
			if err := c.mayAsk(yes || shared.dryRun); err != nil {
				return err
			}
			dead := adminv1.NewDeadLetterServiceClient(conn)
			request := &adminv1.DiscardDeadLettersRequest{
				Keys: keys, Filter: filter, DryRun: true, RequestId: shared.requestID, Reason: shared.reason,
			}
			var response *adminv1.DiscardDeadLettersResponse
			if shared.dryRun || !yes {
				if response, err = dead.DiscardDeadLetters(ctx, request); err != nil {
					return fmt.Errorf("discard dead letters: %w", err)
				}
			}
			if !shared.dryRun {
				if !yes {
					if err := c.confirm(ctx, fmt.Sprintf("Discard %d dead letters?", response.GetDiscarded())); err != nil {
						return err
					}
				}
				request.DryRun = false
				if response, err = dead.DiscardDeadLetters(ctx, request); err != nil {
					return fmt.Errorf("discard dead letters: %w", err)
				}
			}
			return c.print(response, func(w io.Writer) {
				fmt.Fprintln(w, shared.would(fmt.Sprintf("discarded %d dead letters, skipped %d", response.GetDiscarded(), response.GetSkipped())))
			})
		}),
	}
	f.add(c, cmd)
	f.addAll(cmd)
	shared.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	must(cmd.MarkFlagRequired("reason"))
	return cmd
}
