// Command evalctl is the operator's command line to the admin service.
//
// Tables are for people; -o json prints what REST would, for programs. What changes production is confirmed on the
// terminal, or beforehand by --yes: without a terminal nothing is taken for granted. Every command can be repeated
// when its answer was lost.
//
// The exit code says what to do next:
//
//	0    done
//	1    failed, or not confirmed
//	2    the command line, the settings or the file are wrong; nothing was changed
//	3    there is no such thing
//	4    refused in the present state: it exists with another content, or is no longer as expected
//	5    the token is missing, not valid, or not enough
//	6    no answer: repeat it later
//	7    fsck has found a broken promise
//	130  interrupted
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() { os.Exit(start()) }

func start() int {
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer release()
	// The second signal is no longer ours, and ends the process.
	context.AfterFunc(ctx, release)
	return run(ctx, os.Args[1:], os.Environ(), streams{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		interactive: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
	})
}
