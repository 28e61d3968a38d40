package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) versionCommands() *cobra.Command {
	return group("version", "Evaluator versions: what is asked of which model, and at what price",
		c.versionRegister(), c.versionList(), c.versionGet(), c.versionPromote())
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
	var promote, yes bool
	var change changeFlags
	cmd := &cobra.Command{
		Use: "register -f FILE", Short: "Register a version from a file of JSON or YAML",
		Long: "Register a version from a file of JSON or YAML. A version never changes: registering\n" +
			"it again is fine, the same id with another content is refused.",
		Example: registerExample,
		Args:    cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			if promote {
				if err := c.mayAsk(yes); err != nil {
					return err
				}
			}
			v := &adminv1.Version{}
			if err := c.readMessage(file, v); err != nil {
				return usageError{err}
			}
			return c.register(ctx, adminv1.NewVersionServiceClient(conn), v, promote, yes, change)
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the version; - for standard input")
	cmd.Flags().BoolVar(&promote, "promote", false, "make it the active version as well")
	cmd.Flags().BoolVar(&yes, "yes", false, "promote without asking")
	change.add(cmd)
	must(cmd.MarkFlagRequired("file"))
	must(cmd.MarkFlagFilename("file", "json", "yaml", "yml"))
	return cmd
}

func (c *cli) register(ctx context.Context, versions adminv1.VersionServiceClient, v *adminv1.Version, promote, yes bool, change changeFlags) error {
	var header metadata.MD
	registered, err := versions.RegisterVersion(ctx, &adminv1.RegisterVersionRequest{
		Version: v, DryRun: change.dryRun, RequestId: change.requestID, Reason: change.reason,
	}, grpc.Header(&header))
	if err != nil {
		return fmt.Errorf("register version %s: %w", v.GetId(), err)
	}
	done := fmt.Sprintf("version %s is registered", registered.GetId())
	if replayed(header) {
		done = fmt.Sprintf("version %s was registered already", registered.GetId())
	}
	done = change.would(done)
	if !promote {
		return c.print(registered, func(w io.Writer) { fmt.Fprintln(w, done) })
	}
	// With the output as JSON, the one value on standard output is the promoted version.
	fmt.Fprintln(c.err, done)
	return c.promote(ctx, versions, registered.GetId(), "", yes)
}

func (c *cli) versionList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List all versions, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			list, err := adminv1.NewVersionServiceClient(conn).ListVersions(ctx, &adminv1.ListVersionsRequest{})
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
}

func (c *cli) versionGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a version with all of its content",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeVersionArg,
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
		[]string{"Created", instant(v.GetCreateTime().AsTime())},
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

func (c *cli) versionPromote() *cobra.Command {
	var expected string
	var yes bool
	cmd := &cobra.Command{
		Use: "promote ID", Short: "Make a version the active one",
		Long: "Make a version the active one: new tickets are evaluated under it, and work begun\n" +
			"under another version finishes under that. It asks first; then what is replaced is\n" +
			"the version that it has named, or nothing. Scripts give --yes, and --expected to\n" +
			"replace no other version than the one they know of.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeVersionArg,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if err := c.mayAsk(yes); err != nil {
				return err
			}
			return c.promote(ctx, adminv1.NewVersionServiceClient(conn), args[0], expected, yes)
		}),
	}
	cmd.Flags().StringVar(&expected, "expected", "", "refuse unless this version is the active one until then")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	must(cmd.RegisterFlagCompletionFunc("expected", c.completeVersion))
	return cmd
}

func (c *cli) promote(ctx context.Context, versions adminv1.VersionServiceClient, id, expected string, yes bool) error {
	if !yes {
		active, err := c.confirmPromotion(ctx, versions, id)
		if err != nil {
			return err
		}
		// Yes was said to replacing that one.
		if expected == "" {
			expected = active
		}
	}
	response, err := versions.PromoteVersion(ctx, &adminv1.PromoteVersionRequest{Id: id, ExpectedActiveId: expected})
	if err != nil {
		return fmt.Errorf("promote version %s: %w", id, err)
	}
	return c.print(response, func(w io.Writer) { fmt.Fprintf(w, "version %s is active\n", response.GetVersion().GetId()) })
}

// confirmPromotion asks unless there is nothing to change, and returns which version is active now.
func (c *cli) confirmPromotion(ctx context.Context, versions adminv1.VersionServiceClient, id string) (active string, err error) {
	list, err := versions.ListVersions(ctx, &adminv1.ListVersionsRequest{})
	if err != nil {
		return "", fmt.Errorf("find the active version: %w", err)
	}
	found := false
	for _, v := range list.GetVersions() {
		found = found || v.GetId() == id
		if v.GetActive() {
			active = v.GetId()
		}
	}
	switch {
	case !found, active == id:
		return active, nil // the service has the word
	case active == "":
		return "", c.confirm(ctx, fmt.Sprintf("Evaluate new tickets under version %s? None is active now.", id))
	default:
		return active, c.confirm(ctx, fmt.Sprintf("Evaluate new tickets under version %s instead of %s?", id, active))
	}
}

func (c *cli) completeVersionArg(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeVersion(cmd, args, typed)
}

// completionTimeout is how long somebody who pressed a key will wait.
const completionTimeout = 2 * time.Second

// completeVersion offers the ids that the service has.
func (c *cli) completeVersion(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c.flags.timeout = min(c.flags.timeout, completionTimeout)
	conn, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer conn.Close()
	list, err := adminv1.NewVersionServiceClient(conn).ListVersions(cmd.Context(), &adminv1.ListVersionsRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ids := make([]cobra.Completion, len(list.GetVersions()))
	for i, v := range list.GetVersions() {
		ids[i] = cobra.CompletionWithDesc(v.GetId(), v.GetModel())
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
