package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/migrations/release"
)

// streams are the process's own.
type streams struct {
	in       io.Reader
	out, err io.Writer
	// interactive says that somebody can be asked on err and will answer on in.
	interactive bool
}

// cli is one run of the program.
type cli struct {
	streams
	environ []string
	flags   struct {
		address, tokenFile string
		insecure           bool
		timeout            time.Duration
		output             output
	}
	// understood says that the command line was, so that what fails from then on is no error of usage.
	understood bool
}

const defaultTimeout = 30 * time.Second

const about = `evalctl operates EvalOnce through its admin service.

It finds the service and its token in the environment:
  EVALONCE_ADMIN_ADDRESS     host:port of the service's gRPC (localhost:8084)
  EVALONCE_ADMIN_TOKEN       the API token, or
  EVALONCE_ADMIN_TOKEN_FILE  a file that holds it

The connection is encrypted, with the system's certificates, unless the service
is on this machine. Where it has its own, or knows its callers by theirs:
  EVALONCE_TLS_CA_FILE       the authorities of the service's certificate
  EVALONCE_TLS_CERT_FILE     the caller's certificate; it needs no token, and
  EVALONCE_TLS_KEY_FILE      its private key

Exit codes:
  0    done
  1    failed, or not confirmed
  2    the command line, the settings or the file are wrong; nothing was changed
  3    there is no such thing
  4    refused in the present state: it exists with another content, or is no
       longer as expected
  5    the token is missing, not valid, or not enough
  6    no answer: repeat it later; every command may be repeated
  7    fsck has found a broken promise
  130  interrupted`

// run executes one command line and returns its exit code.
func run(ctx context.Context, args, environ []string, s streams) int {
	c := &cli{streams: s, environ: environ}
	root := c.root()
	root.SetArgs(append([]string{}, args...)) // nil would stand for those of the process
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if !c.understood {
		err = usageError{fmt.Errorf("%w\n%s --help explains it", err, cmd.CommandPath())}
	}
	code := exitCode(ctx, err)
	fmt.Fprintf(s.err, "evalctl: %s\n", printable(err.Error()))
	return code
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use: "evalctl", Short: "Operate EvalOnce", Long: about, Version: release.Current().Version,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetVersionTemplate(release.Current().String() + "\n")
	flags := root.PersistentFlags()
	flags.StringVar(&c.flags.address, "address", "", "host:port of the service, in place of EVALONCE_ADMIN_ADDRESS")
	flags.StringVar(&c.flags.tokenFile, "token-file", "", "file that holds the API token, in place of EVALONCE_ADMIN_TOKEN")
	flags.BoolVar(&c.flags.insecure, "insecure", false, "send the token and everything else unencrypted, wherever the service is")
	flags.DurationVar(&c.flags.timeout, "timeout", defaultTimeout, "longest time to wait for one answer")
	c.flags.output = asTable
	flags.VarP(&c.flags.output, "output", "o", "form of the output: table, json or, where a command has it, csv")
	forms := []cobra.Completion{string(asTable), string(asJSON), string(asCSV)}
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)))
	must(root.RegisterFlagCompletionFunc("address", cobra.NoFileCompletions))
	must(root.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions))
	root.AddCommand(c.versionCommands(), c.policyCommands(), c.auditCommands(), c.compareCommand(), c.sampleCommands(), c.ticketsCommands(), c.credentialCommands(),
		c.reprocessCommands(), c.deadCommands(), c.replayCommands(), c.routeCommands(), c.fsckCommand())
	return root
}

// must is for what can fail only when a command is built of flags that it does not have.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// group is a command that only holds others. Cobra would answer a misspelt one of them with help and success.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: use, Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	g.AddCommand(commands...)
	return g
}

// action is a command's work with a connection to the service.
func (c *cli) action(do func(ctx context.Context, conn *grpc.ClientConn, args []string) error) func(*cobra.Command, []string) error {
	return c.actionOn(c.connect, do)
}

func (c *cli) actionOn(
	connect func() (*grpc.ClientConn, error), do func(ctx context.Context, conn *grpc.ClientConn, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		c.understood = true
		if err := c.checkOutput(cmd); err != nil {
			return err
		}
		conn, err := connect()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return do(cmd.Context(), conn, args)
	}
}
