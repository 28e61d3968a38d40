// Command bench-worker runs the worker in this process, with a provider that answers at once, and prints what it
// measured as one JSON object.
//
//	bench-worker [flags] drain     evaluate -n evaluations that are there; claims: latencies of the claims' transactions
//	bench-worker [flags] pickup    commit -n tickets one by one, -gap apart, and time each from its commit to its call
//	bench-worker [flags] hold      hold -n calls in flight, of evaluations that are there, and tell the memory they take
//	bench-worker [flags] idle      do nothing for -for, and tell how many statements that takes
//
// All but the provider is what the service does, with its defaults. The database, -database-url, is migrated and has an
// active version; pickup uses it, and finds its own tickets among others' work. The provider answers with the body of a
// chat completion of 380 bytes and 300 tokens. drain and hold stop after -timeout, which is an error.
//
//	-database-url URL     postgres://…; $EVALONCE_DATABASE_URL
//	-n N                  evaluations, tickets or calls (1000)
//	-concurrency N        calls in flight for each route (the service's default)
//	-gap D                between the tickets of pickup (50ms)
//	-for D                of idle (10s)
//	-timeout D            (5m)
//	-latency D            of the provider (0s)
//	-cpuprofile FILE      write a profile of the run
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

func main() { process.Main(run) }

type options struct {
	url         string
	n           int
	concurrency int
	gap         time.Duration
	idle        time.Duration
	timeout     time.Duration
	latency     time.Duration
	profile     string
}

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	var o options
	flags := flag.NewFlagSet("bench-worker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.url, "database-url", lookup(environ, "EVALONCE_DATABASE_URL"), "Postgres, migrated and with an active version")
	flags.IntVar(&o.n, "n", 1000, "evaluations, tickets or calls")
	flags.IntVar(&o.concurrency, "concurrency", evaluate.DefaultConcurrency, "calls in flight for each route")
	flags.DurationVar(&o.gap, "gap", 50*time.Millisecond, "between the tickets of pickup")
	flags.DurationVar(&o.idle, "for", 10*time.Second, "of idle")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Minute, "of drain and hold")
	flags.DurationVar(&o.latency, "latency", 0, "of the provider")
	flags.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile to this file")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", process.ErrUsage, err)
	}
	measure, ok := map[string]func(context.Context, options) (report, error){
		"drain": drain, "pickup": pickup, "hold": hold, "idle": idle,
	}[flags.Arg(0)]
	if !ok || flags.NArg() != 1 {
		return fmt.Errorf("%w: one of drain, pickup, hold and idle", process.ErrUsage)
	}
	evaluate.CollectLess(environ)
	if o.profile != "" {
		file, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return errors.Join(err, file.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, file.Close())
		}()
	}
	r, err := measure(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(r)
}

func lookup(environ []string, name string) string {
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}
