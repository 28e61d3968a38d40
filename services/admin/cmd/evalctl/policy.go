package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) policyCommands() *cobra.Command {
	return group("policy", "Policies: the priority and the queue that follow from an answer",
		c.policyRegister(), c.policyList(), c.policyGet(), c.policyActivate(), c.policyHistory(), c.policyApply(), c.policyJobCommands())
}

const policyExample = `  evalctl policy register -f refunds-1.yaml
  evalctl policy get builtin-1 -o json | evalctl policy register -f -

A file in YAML:

  id: refunds-1
  description: refunds have a queue of their own
  urgent_threshold: 0.5
  rules:                        # the first whose condition is true decides
    - name: urgent
      when: is_urgent >= urgent_threshold && urgency_score >= 0.5
      priority: urgent
    - name: refunds
      when: department == "billing"
      priority: normal
      queue: refunds            # the department's own when left out
    - name: the rest
      when: "true"
      priority: low`

func (c *cli) policyRegister() *cobra.Command {
	var file string
	var f changeFlags
	cmd := &cobra.Command{
		Use: "register -f FILE", Short: "Register a policy from a file of JSON or YAML",
		Long: "Register a policy from a file of JSON or YAML. Conditions are written in CEL, and are\n" +
			"checked: what is wrong with one is told with its line and column. A policy never\n" +
			"changes: registering it again is fine, the same id with another content is refused.",
		Example: policyExample,
		Args:    cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			p := &adminv1.Policy{}
			if err := c.readMessage(file, p); err != nil {
				return usageError{err}
			}
			var header metadata.MD
			registered, err := adminv1.NewPolicyServiceClient(conn).RegisterPolicy(ctx, &adminv1.RegisterPolicyRequest{
				Policy: p, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason,
			}, grpc.Header(&header))
			if err != nil {
				return fmt.Errorf("register policy %s: %w", p.GetId(), err)
			}
			done := "is registered"
			if replayed(header) {
				done = "was registered already"
			}
			return c.print(registered, func(w io.Writer) { fmt.Fprintln(w, f.would(fmt.Sprintf("policy %s %s", registered.GetId(), done))) })
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the policy; - for standard input")
	f.add(cmd)
	must(cmd.MarkFlagRequired("file"))
	must(cmd.MarkFlagFilename("file", "json", "yaml", "yml"))
	return cmd
}

func (c *cli) policyList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List policies, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			list, err := listPolicies(ctx, adminv1.NewPolicyServiceClient(conn), limit)
			if err != nil {
				return fmt.Errorf("list policies: %w", err)
			}
			return c.print(list, func(w io.Writer) {
				rows := [][]string{{"ID", "ACTIVE", "URGENT FROM", "RULES", "CREATED", "BY", "DESCRIPTION"}}
				for _, p := range list.GetPolicies() {
					rows = append(rows, []string{
						p.GetId(), mark(p.GetActive()), threshold(p.GetUrgentThreshold()), strconv.Itoa(len(p.GetRules())),
						instant(p.GetCreateTime().AsTime()), p.GetCreatedBy(), p.GetDescription(),
					})
				}
				table(w, rows...)
			})
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

// listPolicies is the list up to a limit, as one page.
func listPolicies(ctx context.Context, policies adminv1.PolicyServiceClient, limit int) (*adminv1.ListPoliciesResponse, error) {
	list := &adminv1.ListPoliciesResponse{}
	var err error
	list.Policies, list.NextPageToken, err = pages(limit, func(size int32, token string) ([]*adminv1.Policy, string, error) {
		page, err := policies.ListPolicies(ctx, &adminv1.ListPoliciesRequest{PageSize: size, PageToken: token})
		list.ActiveId = page.GetActiveId()
		return page.GetPolicies(), page.GetNextPageToken(), err
	})
	return list, err
}

func threshold(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func (c *cli) policyGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a policy with its rules",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completePolicy),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			p, err := adminv1.NewPolicyServiceClient(conn).GetPolicy(ctx, &adminv1.GetPolicyRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get policy %s: %w", args[0], err)
			}
			return c.print(p, func(w io.Writer) { describePolicy(w, p) })
		}),
	}
}

func describePolicy(w io.Writer, p *adminv1.Policy) {
	table(w,
		[]string{"ID", p.GetId()},
		[]string{"Active", mark(p.GetActive())},
		[]string{"Description", p.GetDescription()},
		[]string{"Urgent from", threshold(p.GetUrgentThreshold())},
		[]string{"Created", instant(p.GetCreateTime().AsTime()) + " by " + p.GetCreatedBy()},
		[]string{"Digest", p.GetDigest()},
	)
	fmt.Fprintln(w)
	rows := [][]string{{"RULE", "PRIORITY", "QUEUE", "WHEN"}}
	for _, r := range p.GetRules() {
		queue := r.GetQueue()
		if queue == "" {
			queue = "(the department's)"
		}
		rows = append(rows, []string{r.GetName(), r.GetPriority(), queue, r.GetWhen()})
	}
	table(w, rows...)
}

func (c *cli) policyActivate() *cobra.Command {
	var f changeFlags
	var expected string
	var yes bool
	cmd := &cobra.Command{
		Use: "activate ID", Short: "Make a policy the active one",
		Long: "Make a policy the active one: answers that come from then on are decided by it. Those\n" +
			"that are stored keep their decisions until it is applied to them (evalctl policy\n" +
			"apply). It asks first. Scripts give --yes, and --expected to replace no other\n" +
			"policy than the one they know of.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completePolicy),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if err := c.mayAsk(yes || f.dryRun); err != nil {
				return err
			}
			policies := adminv1.NewPolicyServiceClient(conn)
			r := &adminv1.ActivatePolicyRequest{Id: args[0], ExpectedActiveId: expected, DryRun: f.dryRun, RequestId: f.requestID, Reason: f.reason}
			if !yes && !f.dryRun {
				foretold, err := policies.ActivatePolicy(ctx, &adminv1.ActivatePolicyRequest{Id: args[0], ExpectedActiveId: expected, DryRun: true})
				if err != nil {
					return fmt.Errorf("see what would be activated: %w", err)
				}
				if replaced := foretold.GetReplacedId(); replaced != "" {
					if err := c.confirm(ctx, fmt.Sprintf("Decide new answers by policy %s instead of %s?", args[0], replaced)); err != nil {
						return err
					}
					r.ExpectedActiveId = replaced // yes was said to replacing that one
				}
			}
			response, err := policies.ActivatePolicy(ctx, r)
			if err != nil {
				return fmt.Errorf("activate policy %s: %w", args[0], err)
			}
			return c.print(response, func(w io.Writer) {
				fmt.Fprintln(w, f.would(fmt.Sprintf("policy %s is active", response.GetPolicy().GetId())))
			})
		}),
	}
	cmd.Flags().StringVar(&expected, "expected", "", "refuse unless this policy is the active one until then")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	f.add(cmd)
	must(cmd.RegisterFlagCompletionFunc("expected", c.completePolicy))
	return cmd
}

func (c *cli) policyHistory() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "history", Short: "List activations, the newest first",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			policies := adminv1.NewPolicyServiceClient(conn)
			activations, more, err := pages(limit, func(size int32, token string) ([]*adminv1.PolicyActivation, string, error) {
				page, err := policies.ListPolicyActivations(ctx, &adminv1.ListPolicyActivationsRequest{PageSize: size, PageToken: token})
				return page.GetActivations(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list activations: %w", err)
			}
			return c.print(&adminv1.ListPolicyActivationsResponse{Activations: activations, NextPageToken: more}, func(w io.Writer) {
				rows := [][]string{{"TIME", "POLICY", "REPLACED", "WHO"}}
				for _, a := range activations {
					rows = append(rows, []string{instant(a.GetTime().AsTime()), a.GetPolicyId(), a.GetReplacedId(), a.GetPrincipal()})
				}
				table(w, rows...)
			})
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

// completePolicy offers the ids that the service has.
func (c *cli) completePolicy(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(c, cmd, func(ctx context.Context, conn *grpc.ClientConn) ([]*adminv1.Policy, error) {
		list, err := listPolicies(ctx, adminv1.NewPolicyServiceClient(conn), largestPage)
		return list.GetPolicies(), err
	}, func(p *adminv1.Policy) (word, about string) {
		return p.GetId(), p.GetDescription()
	})
}
