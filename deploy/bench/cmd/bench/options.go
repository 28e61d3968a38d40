package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/pkg/process"
)

const usage = `Usage: make bench [BENCH=NAME,...] [SCALE=X] [ROUNDS=N] [STRICT=1]

Measures the product on this machine, and prints a table with ratios.

  --rows=NAME,...  only these: drain, create, duplicates, snapshot, backlog, claims, pickup, reprocess, beside, memory
  --scale=X        of the full size (1); 0.01 for a look, whose figures say nothing
  --rounds=N       runs of each, for whatever has more or fewer
  --strict         fail when a row has not reached what it must
`

type options struct {
	bin, dir string // of binaries; of data and logs
	figures  string // path of the figures for machines
	rows     []string
	scale    float64
	rounds   int
	strict   bool
	settings map[string]string // of Postgres
}

func parse(args []string, root string, stdout io.Writer) (options, error) {
	build := filepath.Join(root, ".build")
	opts := options{bin: filepath.Join(build, "bin"), dir: filepath.Join(build, "bench"), figures: filepath.Join(build, "bench.json"), settings: bed.Settings()}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("rows", "", func(s string) error {
		opts.rows = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	})
	flags.Float64Var(&opts.scale, "scale", 1, "")
	flags.IntVar(&opts.rounds, "rounds", 0, "")
	flags.BoolVar(&opts.strict, "strict", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stdout, usage)
		return opts, err
	case err != nil:
		return opts, fmt.Errorf("%w: %w", process.ErrUsage, err)
	case flags.NArg() > 0:
		return opts, fmt.Errorf("%w: what is %q for?", process.ErrUsage, flags.Arg(0))
	case !(opts.scale > 0 && opts.scale <= 1):
		return opts, fmt.Errorf("%w: the scale must be more than 0 and at most 1", process.ErrUsage)
	case opts.rounds < 0:
		return opts, fmt.Errorf("%w: the rounds must not be negative", process.ErrUsage)
	}
	return opts, nil
}

// fsyncProbe is how long the disk is asked how fast it is.
func (o options) fsyncProbe() time.Duration {
	const full = 2 * time.Second
	return time.Duration(o.scale * float64(full))
}

// choose returns the groups that have these names, in their own order; all when none is named.
func choose(all []harness.Group, names []string) ([]harness.Group, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []harness.Group
	known := make([]string, len(all))
	for i, g := range all {
		known[i] = g.Name
		if slices.Contains(names, g.Name) {
			chosen = append(chosen, g)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%w: no rows are named %q; there are %s", process.ErrUsage, name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}
