// Command demo shows the whole product on one machine: it starts a Postgres and every service as a process of its
// own, sends tickets through the public API, waits for their evaluations, and says what they cost and how fast they
// were. Nothing outlives it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/process"
)

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	cfg, err := parse(args, environ, root)
	if err != nil {
		return err
	}
	job, err := plan(cfg)
	if err != nil {
		return err
	}
	unlock, err := prepare(cfg.dir)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := stack.New(ctx, stack.Options{Bin: cfg.bin, Dir: cfg.dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	// Whatever ends unasked ends the demo, which says so.
	ctx, cancel := s.Watch(ctx)
	defer cancel()
	err = (&demo{config: cfg, job: job, stack: s, out: stdout}).run(ctx)
	if cause := context.Cause(ctx); cause != nil && err != nil {
		if _, stopped := errors.AsType[process.SignalError](cause); stopped {
			fmt.Fprintln(stdout, "\nstopping")
			return nil
		}
		return cause
	}
	return err
}

// prepare empties the directory of the last demo, once no other one is running in it.
func prepare(dir string) (unlock func(), err error) {
	unlock, err = stack.Lock(dir, "demo")
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil {
		unlock()
		return nil, fmt.Errorf("remove what the last demo has left: %w", err)
	}
	return unlock, nil
}
