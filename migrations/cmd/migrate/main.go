// Command migrate brings a database to the schema of this release, and says which migrations a database has taken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/evalonce/evalonce/migrations"
	"github.com/evalonce/evalonce/migrations/release"
)

const usage = `Usage: migrate [--database-url URL] COMMAND

Commands:
  up      apply every migration that the database lacks; any number of processes may do so at once
  status  list all migrations and when each was applied; changes nothing
  wait    wait until all are applied, by somebody else; what starts before a service does

Options:
  --database-url URL  Postgres itself, or a pooler in session mode; EVALONCE_DATABASE_URL when not given,
                      which is the better place for a password
  --timeout DURATION  how long wait waits; 10m when not given
  --version           print the release
  --help              print this text

Exit code: 0 success, 1 failure, 2 wrong usage.
`

var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "migrate: %v (see migrate --help)\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "migrate: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("migrate", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	url := flags.String("database-url", getenv("EVALONCE_DATABASE_URL"), "")
	timeout := flags.Duration("timeout", 10*time.Minute, "")
	version := flags.Bool("version", false, "")

	var commands []string
	for rest := args; ; rest = flags.Args()[1:] {
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			_, err := io.WriteString(stdout, usage)
			return err
		} else if err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		if flags.NArg() == 0 {
			break
		}
		commands = append(commands, flags.Arg(0))
	}
	if *version {
		_, err := fmt.Fprintln(stdout, release.Current())
		return err
	}
	command := strings.Join(commands, " ")
	switch command {
	case "up", "status", "wait":
	case "":
		return fmt.Errorf("%w: no command given", errUsage)
	default:
		return fmt.Errorf("%w: unknown command %q", errUsage, command)
	}
	if *url == "" {
		return fmt.Errorf("%w: which database? Set EVALONCE_DATABASE_URL or --database-url", errUsage)
	}
	switch command {
	case "status":
		return status(ctx, *url, stdout)
	case "wait":
		ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("gave up after %s", *timeout))
		defer cancel()
		return wait(ctx, *url, stdout)
	default:
		return up(ctx, *url, stdout)
	}
}

const waitInterval = 2 * time.Second

// wait asks until nothing is missing. A database that does not answer, or is not there yet, is asked again.
func wait(ctx context.Context, url string, stdout io.Writer) error {
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	told := ""
	for {
		missing, err := migrations.MissingAt(ctx, url)
		if err == nil && len(missing) == 0 {
			fmt.Fprintln(stdout, "all migrations are applied")
			return nil
		}
		state := "waiting for " + strings.Join(missing, ", ")
		if err != nil {
			state = "waiting for the database: " + err.Error()
		}
		if state != told {
			fmt.Fprintln(stdout, state)
			told = state
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), state)
		case <-tick.C:
		}
	}
}

func up(ctx context.Context, url string, stdout io.Writer) error {
	applied, err := migrations.Up(ctx, url)
	for _, name := range applied {
		fmt.Fprintln(stdout, "applied", name)
	}
	if err == nil && len(applied) == 0 {
		fmt.Fprintln(stdout, "nothing to apply")
	}
	return err
}

func status(ctx context.Context, url string, stdout io.Writer) error {
	list, err := migrations.Status(ctx, url)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, migration := range list {
		when := "pending"
		if migration.Applied {
			when = migration.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\n", migration.Name, when)
	}
	return table.Flush()
}
