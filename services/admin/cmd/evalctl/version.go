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
	"google.golang.org/grpc/metadata"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) versionCommands() *cobra.Command {
	return group("version", "Evaluator versions: what is asked of which model, and at what price",
		c.versionRegister(), c.versionList(), c.versionGet(), c.versionDiff(), c.versionPromote(), c.versionRollback(), c.versionHistory())
}

const registerExample = `  evalctl version register -f triage-2.yaml
  evalctl version get triage-1 -o json | evalctl version register -f -

A file in YAML:

  id: triage-2
  prompt_version: triage-2
  provider: openai
  model: gpt-5-mini
  effort: low
  prompt: |
    You sort support tickets. ...
  departments:
    - name: billing
      description: invoices, payments, refunds
    - name: technical
      description: what fails or behaves oddly
  max_output_tokens: 2048
  route: openai
  prices:                       # US dollars for a million tokens, in quotes
    input_usd_per_mtok: "0.25"
    cached_input_usd_per_mtok: "0.025"
    output_usd_per_mtok: "2.00"
  max_age: 86400s`

func (c *cli) versionRegister() *cobra.Command {
	var file string
	var promote bool
	var promotion promotion
	cmd := &cobra.Command{
		Use: "register -f FILE", Short: "Register a version from a file of JSON or YAML",
		Long: "Register a version from a file of JSON or YAML. A version never changes: registering\n" +
			"it again is fine, the same id with another content is refused.",
		Example: registerExample,
		Args:    cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			if promote && promotion.dryRun {
				return usageError{errors.New("--dry-run does not go with --promote: the version is not there to be promoted")}
			}
			if promote {
				if err := c.mayAsk(promotion.yes); err != nil {
					return err
				}
			}
			v := &adminv1.Version{}
			if err := c.readMessage(file, v); err != nil {
				return usageError{err}
			}
			return c.register(ctx, adminv1.NewVersionServiceClient(conn), v, promote, promotion)
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the version; - for standard input")
	cmd.Flags().BoolVar(&promote, "promote", false, "make it the active version as well")
	cmd.Flags().BoolVar(&promotion.yes, "yes", false, "promote without asking")
	cmd.Flags().BoolVar(&promotion.force, "force", false, "promote it whatever its coverage")
	promotion.changeFlags.add(cmd)
	must(cmd.MarkFlagRequired("file"))
	must(cmd.MarkFlagFilename("file", "json", "yaml", "yml"))
	return cmd
}

func (c *cli) register(ctx context.Context, versions adminv1.VersionServiceClient, v *adminv1.Version, promote bool, p promotion) error {
	var header metadata.MD
	registered, err := versions.RegisterVersion(ctx, &adminv1.RegisterVersionRequest{
		Version: v, DryRun: p.dryRun, RequestId: p.requestID, Reason: p.reason,
	}, grpc.Header(&header))
	if err != nil {
		return fmt.Errorf("register version %s: %w", v.GetId(), err)
	}
	done := fmt.Sprintf("version %s is registered", registered.GetId())
	if replayed(header) {
		done = fmt.Sprintf("version %s was registered already", registered.GetId())
	}
	done = p.would(done)
	if !promote {
		return c.print(registered, func(w io.Writer) { fmt.Fprintln(w, done) })
	}
	// With the output as JSON, the one value on standard output is the promoted version.
	fmt.Fprintln(c.err, done)
	return c.promote(ctx, versions, registered.GetId(), p)
}

func (c *cli) versionList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List versions, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			list, err := listVersions(ctx, adminv1.NewVersionServiceClient(conn), limit)
			if err != nil {
				return fmt.Errorf("list versions: %w", err)
			}
			return c.print(list, func(w io.Writer) {
				rows := [][]string{{"ID", "ACTIVE", "PROVIDER", "MODEL", "EFFORT", "PROMPT VERSION", "ROUTE", "CREATED"}}
				for _, v := range list.GetVersions() {
					rows = append(rows, []string{
						v.GetId(), mark(v.GetActive()), v.GetProvider(), v.GetModel(), v.GetEffort(), v.GetPromptVersion(), v.GetRoute(),
						instant(v.GetCreateTime().AsTime()),
					})
				}
				table(w, rows...)
			})
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

// listVersions is the list up to a limit, as one page.
func listVersions(ctx context.Context, versions adminv1.VersionServiceClient, limit int) (*adminv1.ListVersionsResponse, error) {
	list := &adminv1.ListVersionsResponse{}
	var err error
	list.Versions, list.NextPageToken, err = pages(limit, func(size int32, token string) ([]*adminv1.Version, string, error) {
		page, err := versions.ListVersions(ctx, &adminv1.ListVersionsRequest{PageSize: size, PageToken: token})
		list.ActiveId = page.GetActiveId()
		return page.GetVersions(), page.GetNextPageToken(), err
	})
	return list, err
}

func (c *cli) versionDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff OLD NEW", Short: "Show what changes from one version to another",
		Args: cobra.ExactArgs(2), ValidArgsFunction: upTo(2, c.completeVersion),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			diff, err := adminv1.NewVersionServiceClient(conn).DiffVersions(ctx, &adminv1.DiffVersionsRequest{Id: args[0], OtherId: args[1]})
			if err != nil {
				return fmt.Errorf("compare version %s with version %s: %w", args[0], args[1], err)
			}
			return c.print(diff, func(w io.Writer) { describeDiff(w, args[0], args[1], diff.GetDifferences()) })
		}),
	}
}

func describeDiff(w io.Writer, before, after string, differences []*adminv1.FieldDifference) {
	if len(differences) == 0 {
		fmt.Fprintln(w, "no difference")
		return
	}
	rows := [][]string{{"FIELD", before, after, "DECIDES ANSWERS"}}
	for _, d := range differences {
		if d.GetUnifiedDiff() != "" {
			rows = append(rows, []string{d.GetField(), "see below", "", mark(d.GetAffectsAnswers())})
			continue
		}
		rows = append(rows, []string{d.GetField(), d.GetOldValue(), d.GetNewValue(), mark(d.GetAffectsAnswers())})
	}
	table(w, rows...)
	for _, d := range differences {
		if d.GetUnifiedDiff() != "" {
			fmt.Fprintf(w, "\n%s\n%s", strings.ToUpper(d.GetField()), printable(d.GetUnifiedDiff()))
		}
	}
}

func (c *cli) versionGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a version with all of its content",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeVersion),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			v, err := adminv1.NewVersionServiceClient(conn).GetVersion(ctx, &adminv1.GetVersionRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get version %s: %w", args[0], err)
			}
			return c.print(v, func(w io.Writer) { describeVersion(w, v) })
		}),
	}
}

func describeVersion(w io.Writer, v *adminv1.Version) {
	number := func(n int32) string { return strconv.Itoa(int(n)) }
	table(w,
		[]string{"ID", v.GetId()},
		[]string{"Active", mark(v.GetActive())},
		[]string{"Created", instant(v.GetCreateTime().AsTime()) + " by " + v.GetCreatedBy()},
		[]string{"Digest", v.GetDigest()},
		[]string{"Provider", v.GetProvider()},
		[]string{"Model", v.GetModel()},
		[]string{"Effort", v.GetEffort()},
		[]string{"Prompt version", v.GetPromptVersion()},
		[]string{"Max output tokens", number(v.GetMaxOutputTokens())},
		[]string{"Route", v.GetRoute()},
		[]string{"Max attempts", number(v.GetMaxAttempts())},
		[]string{"Unknown policy", v.GetUnknownPolicy()},
		[]string{"Max unknown calls", number(v.GetMaxUnknownCalls())},
		[]string{"Max age", v.GetMaxAge().AsDuration().String()},
	)
	fmt.Fprintln(w)
	table(w,
		[]string{"TOKENS", "USD PER MILLION"},
		[]string{"input", v.GetPrices().GetInputUsdPerMtok()},
		[]string{"cached input", v.GetPrices().GetCachedInputUsdPerMtok()},
		[]string{"output", v.GetPrices().GetOutputUsdPerMtok()},
	)
	fmt.Fprintln(w)
	departments := [][]string{{"DEPARTMENT", "DESCRIPTION"}}
	for _, d := range v.GetDepartments() {
		departments = append(departments, []string{d.GetName(), d.GetDescription()})
	}
	table(w, departments...)
	fmt.Fprintf(w, "\nPROMPT\n%s\n", printable(v.GetPrompt()))
}

// completeVersion offers the ids that the service has.
func (c *cli) completeVersion(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(c, cmd, func(ctx context.Context, conn *grpc.ClientConn) ([]*adminv1.Version, error) {
		list, err := listVersions(ctx, adminv1.NewVersionServiceClient(conn), largestPage)
		return list.GetVersions(), err
	}, func(v *adminv1.Version) (word, about string) {
		return v.GetId(), v.GetModel()
	})
}
