// Command scenario plays a month of a support desk in minutes against three designs: the model called inside the request,
// a plain queue with retries, and EvalOnce. It prints one table, writes it for machines, and fails when EvalOnce breaks a
// promise. See package scenario for what is scaled and what the comparison does not show.
//
// The processes of the other two designs are this command too, with their name as its argument.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/rival"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/process"
)

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) error {
	if len(args) == 1 && rival.Is(args[0]) {
		return rival.Run(ctx, args[0], environ, stdout)
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	opts, err := parse(args, environ, root, stdout)
	if err != nil {
		return err
	}
	unlock, err := stack.Lock(opts.Dir, "scenario")
	if err != nil {
		return err
	}
	defer unlock()
	results, err := scenario.Run(ctx, opts, stdout)
	if cause := context.Cause(ctx); cause != nil {
		if _, stopped := errors.AsType[process.SignalError](cause); stopped {
			fmt.Fprintln(stdout, "\nstopped")
			return nil
		}
	}
	if len(results) > 0 {
		fmt.Fprintln(stdout)
		scenario.WriteTable(stdout, results)
		path := opts.Dir + ".json"
		if err := scenario.WriteJSON(path, results); err != nil {
			return err
		}
		if short, err := filepath.Rel(root, path); err == nil {
			path = short
		}
		fmt.Fprintf(stdout, "The same for machines: %s\n", path)
	}
	return err
}
