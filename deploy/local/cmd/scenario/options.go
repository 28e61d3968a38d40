package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
	"github.com/evalonce/evalonce/pkg/process"
)

const usage = `Usage: make scenario [SEED=N] [TICKETS=N]

Plays a month of a support desk against three designs, and prints one table.

  --seed=N     decides arrivals, duplicates, outages, kills and answers (1)
  --tickets=N  200000 is a month; fewer, such as 5000 for a quick look, are as many days of it
  --pace=X     virtual seconds in a real one, around outages (300)
  --rate=X     tickets in a real second, elsewhere, at most (1250)

  EVALONCE_DATABASE_URL=...  make the databases on this Postgres, for the time of the run, and start no other
`

const (
	defaultPace = 300
	defaultRate = 1250
	// Short, because it is not scaled; long enough for a machine that stutters.
	defaultLease = 6 * time.Second
)

func parse(args, environ []string, root string, stdout io.Writer) (scenario.Options, error) {
	build := filepath.Join(root, ".build")
	opts := scenario.Options{Lease: defaultLease, Bin: filepath.Join(build, "bin"), Dir: filepath.Join(build, "scenario")}
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, "EVALONCE_DATABASE_URL="); ok {
			opts.Server = value
		}
	}
	flags := flag.NewFlagSet("scenario", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Uint64Var(&opts.Seed, "seed", 1, "")
	flags.IntVar(&opts.Count, "tickets", schedule.TicketsOfAMonth, "")
	flags.Float64Var(&opts.Pace, "pace", defaultPace, "")
	flags.Float64Var(&opts.Rate, "rate", defaultRate, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stdout, usage)
		return opts, err
	case err != nil:
		return opts, fmt.Errorf("%w: %w", process.ErrUsage, err)
	case flags.NArg() > 0:
		return opts, fmt.Errorf("%w: what is %q for?", process.ErrUsage, flags.Arg(0))
	}
	if _, err := schedule.New(opts.Options); err != nil {
		return opts, fmt.Errorf("%w: %w", process.ErrUsage, err)
	}
	if opts.Self, err = os.Executable(); err != nil {
		return opts, fmt.Errorf("find the own binary: %w", err)
	}
	return opts, nil
}
