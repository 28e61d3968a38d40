package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// promotion is how a version is to be promoted.
type promotion struct {
	changeFlags
	expected string
	coverage share // the least that will do
	window   span
	force    bool
	yes      bool
}

func (p promotion) request(id string) *adminv1.PromoteVersionRequest {
	r := &adminv1.PromoteVersionRequest{
		Id: id, ExpectedActiveId: p.expected, Force: p.force, DryRun: p.dryRun, RequestId: p.requestID, Reason: p.reason,
		MinCoverage: p.coverage.value,
	}
	if p.window != 0 {
		r.Window = durationpb.New(time.Duration(p.window))
	}
	return r
}

func (c *cli) versionPromote() *cobra.Command {
	var p promotion
	cmd := &cobra.Command{
		Use: "promote ID", Short: "Make a version the active one",
		Long: "Make a version the active one: new tickets are evaluated under it, and work begun\n" +
			"under another version finishes under that. It is refused when too few of the recent\n" +
			"tickets have an answer under the version, and then says how they get one. It asks\n" +
			"first; what is replaced is the version that it has named, or nothing.\n" +
			"Scripts give --yes, and --expected to replace no other version than the one they\n" +
			"know of.",
		Example: `  evalctl version promote triage-2 --reason "fewer urgency flips"
  evalctl version promote triage-2 --expected triage-1 --min-coverage 0.99 --yes
  evalctl version promote triage-2 --dry-run`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeVersion),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if err := c.mayAsk(p.yes || p.dryRun); err != nil {
				return err
			}
			return c.promote(ctx, adminv1.NewVersionServiceClient(conn), args[0], p)
		}),
	}
	cmd.Flags().StringVar(&p.expected, "expected", "", "refuse unless this version is the active one until then")
	cmd.Flags().Var(&p.coverage, "min-coverage", "refuse when fewer of the recent tickets have an answer under the version; 0.95 when not given")
	cmd.Flags().Var(&p.window, "window", "how far back tickets count for the coverage, such as 7d; 30d when not given")
	cmd.Flags().BoolVar(&p.force, "force", false, "promote it whatever its coverage")
	cmd.Flags().BoolVar(&p.yes, "yes", false, "do not ask")
	p.changeFlags.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("expected", c.completeVersion))
	must(cmd.RegisterFlagCompletionFunc("min-coverage", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("window", cobra.NoFileCompletions))
	return cmd
}

func (c *cli) promote(ctx context.Context, versions adminv1.VersionServiceClient, id string, p promotion) error {
	if !p.yes && !p.dryRun {
		active, err := c.confirmPromotion(ctx, versions, id)
		if err != nil {
			return err
		}
		// Yes was said to replacing that one.
		if p.expected == "" {
			p.expected = active
		}
	}
	response, err := versions.PromoteVersion(ctx, p.request(id))
	if err != nil {
		return fmt.Errorf("promote version %s: %w", id, err)
	}
	return c.printPromotion(response, p.changeFlags)
}

func (c *cli) printPromotion(response *adminv1.PromoteVersionResponse, f changeFlags) error {
	return c.print(response, func(w io.Writer) {
		fmt.Fprintln(w, f.would(fmt.Sprintf("version %s is active", response.GetVersion().GetId())))
		coverage := response.GetCoverage()
		if coverage.GetContents() == 0 {
			return
		}
		fmt.Fprintf(w, "%d of %d distinct contents of recent tickets have an answer under it\n", coverage.GetAnswered(), coverage.GetContents())
		if line := coverage.GetReprocessCommand(); line != "" {
			fmt.Fprintf(w, "the others get one with: %s\n", printable(line))
		}
	})
}

// confirmPromotion asks unless there is nothing to change, and returns which version is active now.
func (c *cli) confirmPromotion(ctx context.Context, versions adminv1.VersionServiceClient, id string) (active string, err error) {
	list, err := listVersions(ctx, versions, 0)
	if err != nil {
		return "", fmt.Errorf("find the active version: %w", err)
	}
	found := false
	for _, v := range list.GetVersions() {
		found = found || v.GetId() == id
	}
	switch active = list.GetActiveId(); {
	case !found, active == id:
		return active, nil // the service has the word
	case active == "":
		return "", c.confirm(ctx, fmt.Sprintf("Evaluate new tickets under version %s? None is active now.", id))
	default:
		return active, c.confirm(ctx, fmt.Sprintf("Evaluate new tickets under version %s instead of %s?", id, active))
	}
}

func (c *cli) versionRollback() *cobra.Command {
	var f changeFlags
	var expected string
	var yes bool
	cmd := &cobra.Command{
		Use: "rollback", Short: "Promote the version that the last promotion replaced",
		Long: "Promote the version that the last promotion replaced, whatever its coverage. It is\n" +
			"a promotion itself, so that a second rollback undoes the first. Scripts give\n" +
			"--expected, the version to get rid of.",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			if err := c.mayAsk(yes || f.dryRun); err != nil {
				return err
			}
			versions := adminv1.NewVersionServiceClient(conn)
			r := &adminv1.RollbackVersionRequest{ExpectedActiveId: expected, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason}
			if !yes && !f.dryRun {
				foretold, err := versions.RollbackVersion(ctx, &adminv1.RollbackVersionRequest{ExpectedActiveId: expected, DryRun: true})
				if err != nil {
					return fmt.Errorf("see what would be rolled back: %w", err)
				}
				from, to := foretold.GetReplacedId(), foretold.GetVersion().GetId()
				if err := c.confirm(ctx, fmt.Sprintf("Evaluate new tickets under version %s again, instead of %s?", to, from)); err != nil {
					return err
				}
				r.ExpectedActiveId = from // yes was said to that
			}
			response, err := versions.RollbackVersion(ctx, r)
			if err != nil {
				return fmt.Errorf("roll back: %w", err)
			}
			return c.printPromotion(response, f)
		}),
	}
	cmd.Flags().StringVar(&expected, "expected", "", "refuse unless this version is the active one until then")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	f.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("expected", c.completeVersion))
	return cmd
}

func (c *cli) versionHistory() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "history", Short: "List promotions, the newest first",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			versions := adminv1.NewVersionServiceClient(conn)
			promotions, more, err := pages(limit, func(size int32, token string) ([]*adminv1.Promotion, string, error) {
				page, err := versions.ListPromotions(ctx, &adminv1.ListPromotionsRequest{PageSize: size, PageToken: token})
				return page.GetPromotions(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list promotions: %w", err)
			}
			return c.print(&adminv1.ListPromotionsResponse{Promotions: promotions, NextPageToken: more}, func(w io.Writer) {
				rows := [][]string{{"TIME", "VERSION", "REPLACED", "WHO"}}
				for _, p := range promotions {
					rows = append(rows, []string{instant(p.GetTime().AsTime()), p.GetVersionId(), p.GetReplacedId(), p.GetPrincipal()})
				}
				table(w, rows...)
			})
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}
