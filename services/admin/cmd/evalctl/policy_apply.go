package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) policyApply() *cobra.Command {
	var f changeFlags
	var expected, asked string
	var yes, wait bool
	cmd := &cobra.Command{
		Use: "apply", Short: "Decide all stored answers anew by the active policy, without any model call",
		Long: "Decide all stored answers anew by the active policy, without any model call, as a job\n" +
			"in the background. With --dry-run it shows how many decisions would change, and\n" +
			"which; without it asks first, and names that number.",
		Example: `  evalctl policy apply --dry-run
  evalctl policy apply --policy refunds-2 --dry-run    # before it is activated
  evalctl policy apply --expected refunds-1 --yes --wait`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			if asked != "" && !f.dryRun {
				return usageError{errors.New("--policy needs --dry-run: only the active policy is applied")}
			}
			if err := c.mayAsk(yes || f.dryRun); err != nil {
				return err
			}
			policies := adminv1.NewPolicyServiceClient(conn)
			r := &adminv1.ApplyPolicyRequest{ExpectedActiveId: expected, RequestId: f.requestID, Reason: f.reason}
			if f.dryRun || !yes {
				foretold, err := policies.ApplyPolicy(ctx, &adminv1.ApplyPolicyRequest{ExpectedActiveId: expected, PolicyId: asked, DryRun: true})
				if err != nil {
					return fmt.Errorf("see what the active policy would change: %w", err)
				}
				if f.dryRun {
					return c.print(foretold, func(w io.Writer) { describePreview(w, foretold) })
				}
				p := foretold.GetPreview()
				if err := c.confirm(ctx, fmt.Sprintf("Decide stored answers by policy %s? %d of %s decisions change; no model is called.",
					foretold.GetPolicyId(), p.GetChanged(), lookedAt(p))); err != nil {
					return err
				}
				r.ExpectedActiveId = foretold.GetPolicyId() // yes was said to that one
			}
			begun, err := policies.ApplyPolicy(ctx, r)
			if err != nil {
				return fmt.Errorf("apply the active policy: %w", err)
			}
			if wait {
				return c.watchApplication(ctx, policies, begun.GetId())
			}
			return c.print(begun, func(w io.Writer) {
				fmt.Fprintf(w, "job %s decides stored answers by policy %s; see evalctl policy job get %s\n", begun.GetId(), begun.GetPolicyId(), begun.GetId())
			})
		}),
	}
	cmd.Flags().StringVar(&expected, "expected", "", "refuse unless this policy is the active one")
	cmd.Flags().StringVar(&asked, "policy", "", "with --dry-run, the policy to ask about in place of the active one")
	must(cmd.RegisterFlagCompletionFunc("policy", c.completePolicy))
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the job is done")
	f.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("expected", c.completePolicy))
	return cmd
}

func lookedAt(p *adminv1.PolicyPreview) string {
	if p.GetSampled() {
		return fmt.Sprintf("a sample of %d", p.GetAnswers())
	}
	return whole(p.GetAnswers())
}

func describePreview(w io.Writer, a *adminv1.PolicyApplication) {
	p := a.GetPreview()
	fmt.Fprintf(w, "dry run: by policy %s %d of %s decisions change\n", a.GetPolicyId(), p.GetChanged(), lookedAt(p))
	if len(p.GetChanges()) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]string{{"ANSWERS", "PRIORITY", "QUEUE"}}
	for _, change := range p.GetChanges() {
		rows = append(rows, []string{
			whole(change.GetAnswers()), becomes(change.GetOldPriority(), change.GetNewPriority()), becomes(change.GetOldQueue(), change.GetNewQueue()),
		})
	}
	if n := p.GetOtherChanges(); n > 0 {
		rows = append(rows, []string{whole(n), "other changes", ""})
	}
	table(w, rows...)
}

func becomes(before, after string) string {
	if before == after {
		return before
	}
	return before + " -> " + after
}

// watchApplication shows a job's progress until it goes no further, and then the job. That it ends otherwise than done is
// an error. Whoever interrupts it leaves the job as it is.
func (c *cli) watchApplication(ctx context.Context, policies adminv1.PolicyServiceClient, id string) (err error) {
	deciding := &gauge{bar: c.startBar("deciding", 0, progress.UnitsDefault)}
	defer func() { deciding.stop(err) }()
	poll := time.NewTicker(watchPoll)
	defer poll.Stop()
	for {
		a, err := policies.GetPolicyApplication(ctx, &adminv1.GetPolicyApplicationRequest{Id: id})
		if err != nil {
			return fmt.Errorf("get job %s: %w", id, err)
		}
		deciding.to(a.GetSeen())
		switch a.GetState() {
		case "running":
		case "done":
			return c.print(a, func(w io.Writer) { describeApplication(w, a) })
		default:
			return fmt.Errorf("job %s is %s%s", id, a.GetState(), because(a.GetStateReason()))
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("job %s goes on: %w", id, context.Cause(ctx))
		}
	}
}

func (c *cli) policyJobCommands() *cobra.Command {
	return group("job", "Jobs that decide stored answers anew",
		c.policyJobList(), c.policyJobGet(),
		c.policyJobChange("pause", "Stop a running job",
			func(ctx context.Context, policies adminv1.PolicyServiceClient, id string, f changeFlags) (*adminv1.PolicyApplication, error) {
				return policies.PausePolicyApplication(ctx, &adminv1.PausePolicyApplicationRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.policyJobChange("resume", "Let a job go on that is paused or has failed",
			func(ctx context.Context, policies adminv1.PolicyServiceClient, id string, f changeFlags) (*adminv1.PolicyApplication, error) {
				return policies.ResumePolicyApplication(ctx, &adminv1.ResumePolicyApplicationRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}),
		c.policyJobChange("cancel", "End a job; what it has decided stays",
			func(ctx context.Context, policies adminv1.PolicyServiceClient, id string, f changeFlags) (*adminv1.PolicyApplication, error) {
				return policies.CancelPolicyApplication(ctx, &adminv1.CancelPolicyApplicationRequest{Id: id, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason})
			}))
}

func (c *cli) policyJobList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List jobs, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			policies := adminv1.NewPolicyServiceClient(conn)
			jobs, more, err := pages(limit, func(size int32, token string) ([]*adminv1.PolicyApplication, string, error) {
				page, err := policies.ListPolicyApplications(ctx, &adminv1.ListPolicyApplicationsRequest{PageSize: size, PageToken: token})
				return page.GetApplications(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list jobs: %w", err)
			}
			return c.print(&adminv1.ListPolicyApplicationsResponse{Applications: jobs, NextPageToken: more}, func(w io.Writer) {
				rows := [][]string{{"ID", "POLICY", "STATE", "SEEN", "CHANGED", "CREATED", "BY"}}
				for _, a := range jobs {
					rows = append(rows, []string{
						a.GetId(), a.GetPolicyId(), a.GetState(), whole(a.GetSeen()), whole(a.GetChanged()),
						instant(a.GetCreateTime().AsTime()), a.GetCreatedBy(),
					})
				}
				table(w, rows...)
			})
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

func (c *cli) policyJobGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a job",
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			a, err := adminv1.NewPolicyServiceClient(conn).GetPolicyApplication(ctx, &adminv1.GetPolicyApplicationRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get job %s: %w", args[0], err)
			}
			return c.print(a, func(w io.Writer) { describeApplication(w, a) })
		}),
	}
}

func describeApplication(w io.Writer, a *adminv1.PolicyApplication) {
	rows := [][]string{
		{"ID", a.GetId()},
		{"Policy", a.GetPolicyId()},
		{"State", strings.TrimSpace(a.GetState() + because(a.GetStateReason()))},
		{"Answers seen", whole(a.GetSeen())},
		{"Decisions changed", whole(a.GetChanged())},
	}
	for _, p := range a.GetPriorityChanges() {
		rows = append(rows, []string{"  " + becomes(p.GetOldPriority(), p.GetNewPriority()), whole(p.GetAnswers())})
	}
	rows = append(rows, []string{"Created", instant(a.GetCreateTime().AsTime()) + " by " + a.GetCreatedBy()})
	if a.GetFinishTime() != nil {
		rows = append(rows, []string{"Finished", instant(a.GetFinishTime().AsTime())})
	}
	table(w, rows...)
}

func (c *cli) policyJobChange(
	verb, short string, do func(context.Context, adminv1.PolicyServiceClient, string, changeFlags) (*adminv1.PolicyApplication, error),
) *cobra.Command {
	return jobChange(c, "job", verb, short, adminv1.NewPolicyServiceClient, cobra.NoFileCompletions, nil, do)
}
