package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

var errNotConfirmed = errors.New("not confirmed")

// mayAsk is for commands that change production: they need somebody to ask, or have been told yes.
func (c *cli) mayAsk(yes bool) error {
	if yes || c.interactive {
		return nil
	}
	return usageError{errors.New("this needs to be confirmed, and there is no terminal to ask on: give --yes")}
}

// confirm asks, and takes nothing but yes for a yes.
func (c *cli) confirm(ctx context.Context, question string) error {
	fmt.Fprintf(c.err, "%s [y/N] ", printable(question))
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(c.in).ReadString('\n') // an end without an answer is no yes
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(c.err)
		return errNotConfirmed
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		default:
			return errNotConfirmed
		}
	}
}
