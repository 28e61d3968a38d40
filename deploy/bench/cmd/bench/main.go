// Command bench measures the product on this machine, against the limit that its statements set, against what people
// would use instead, and against itself in harder times. It prints a table with ratios, and writes it for machines.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/bench/internal/peer"
	"github.com/evalonce/evalonce/deploy/bench/internal/rows"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/process"
)

func main() { process.Main(run) }

var errFellShort = errors.New("a row has not reached what it must")

func run(ctx context.Context, args, _ []string, stdout, stderr io.Writer) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	opts, err := parse(args, root, stdout)
	if err != nil {
		return err
	}
	unlock, err := stack.Lock(opts.dir, "benchmark")
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(opts.dir); err != nil {
		return fmt.Errorf("remove what the last benchmark has left: %w", err)
	}
	report, err := measure(ctx, opts, stderr)
	if len(report.Rows) > 0 {
		report.WriteTable(stdout)
	}
	if _, stopped := errors.AsType[process.SignalError](context.Cause(ctx)); stopped {
		fmt.Fprintln(stderr, "stopped")
		return nil
	}
	if len(report.Rows) > 0 {
		if err := report.WriteJSON(opts.figures); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "The same for machines: %s\n", short(root, opts.figures))
	}
	if err == nil && opts.strict && !report.Reached() {
		err = errFellShort
	}
	return err
}

// measure starts a server, runs what was chosen, and takes all down again. A row that cannot be measured is the end, and
// those before it are reported.
func measure(ctx context.Context, opts options, stderr io.Writer) (report harness.Report, err error) {
	s, err := stack.New(ctx, stack.Options{Bin: opts.bin, Dir: opts.dir})
	if err != nil {
		return report, err
	}
	defer func() {
		err = errors.Join(err, s.Stop(), os.RemoveAll(filepath.Join(opts.dir, "postgres")))
	}()
	report.Scale = opts.scale
	if report.Machine, err = harness.ThisMachine(opts.dir, opts.fsyncProbe()); err != nil {
		return report, err
	}
	opts.settings[bed.Buffers] = bed.BuffersOf(report.Machine.MemoryBytes)
	b, err := bed.Start(ctx, s, "postgres", opts.settings)
	if err != nil {
		return report, err
	}
	if report.Machine.Postgres, report.Machine.Settings, err = b.Describe(ctx); err != nil {
		return report, err
	}
	report.Machine.River = peer.RiverVersion()
	groups, err := choose((&rows.Bench{Bed: b, Scale: opts.scale, Rounds: opts.rounds}).All(), opts.rows)
	if err != nil {
		return report, err
	}
	runs := 0
	for _, g := range groups {
		runs += g.Runs()
	}
	progress := harness.StartProgress(stderr, runs)
	defer progress.Stop()
	for _, g := range groups {
		results, err := g.Measure(ctx, progress)
		if err != nil {
			return report, err
		}
		report.Rows = append(report.Rows, results...)
	}
	return report, nil
}

func short(root, path string) string {
	if rel, err := filepath.Rel(root, path); err == nil {
		return rel
	}
	return path
}
