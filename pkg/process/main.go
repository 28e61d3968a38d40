// Package process is the frame of a service: [Main] turns signals into the end of a context and errors into exit
// codes, and [Group] takes the parts of a service down in the reverse of the order in which they were started, each
// within its own time, so that nothing loses what it still depends on.
package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/evalonce/evalonce/migrations/release"
)

// ErrUsage matches errors of whoever started the process: its arguments or its environment.
var ErrUsage = errors.New("usage")

// Exit codes of Main.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128 // plus its number, as shells have it
)

// SignalError is the cause of the end of Main's context.
type SignalError struct{ Signal os.Signal }

func (e SignalError) Error() string { return "received signal: " + e.Signal.String() }

// Main runs run and exits: with 0 after nil or [flag.ErrHelp], with 2 after an error that matches [ErrUsage], and
// with 1 after any other or a panic. The error is written to standard error, once.
//
// --version among the arguments is answered here, with the build of the binary, whatever else there is.
//
// SIGTERM and SIGINT end run's context, with a [SignalError] as its cause; run is then expected to come to an end
// and to return nil. A second signal ends the process at once, with 128 and the signal's number.
func Main(run func(ctx context.Context, args []string, environ []string, stdout, stderr io.Writer) error) {
	if slices.Contains(os.Args[1:], "--version") {
		fmt.Fprintln(os.Stdout, release.Current())
		os.Exit(0)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		cancel(SignalError{<-signals})
		second := <-signals
		fmt.Fprintf(os.Stderr, "%s: %v again: stopped at once\n", name(), SignalError{second})
		os.Exit(exitSignal + int(second.(syscall.Signal)))
	}()
	err := protect(func() error { return run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr) })
	os.Exit(exitCode(err, os.Stderr))
}

func exitCode(err error, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, ErrUsage):
		fmt.Fprintf(stderr, "%s: %v\n", name(), err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "%s: %v\n", name(), err)
		return exitFailure
	}
}

func name() string { return filepath.Base(os.Args[0]) }

// protect makes a panic of run an error with its stack.
func protect(run func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return run()
}
