package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
)

// completionTimeout is how long somebody who pressed a key will wait.
const completionTimeout = 2 * time.Second

// upTo completes so many arguments, and none after them.
func upTo(most int, complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, typed)
	}
}

// offer completes by what the service has: a word for each thing, and what is said beside it.
func offer[T any](
	c *cli, cmd *cobra.Command, list func(context.Context, *grpc.ClientConn) ([]T, error), describe func(T) (word, about string),
) ([]cobra.Completion, cobra.ShellCompDirective) {
	c.flags.timeout = min(c.flags.timeout, completionTimeout)
	conn, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer conn.Close()
	things, err := list(cmd.Context(), conn)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words := make([]cobra.Completion, len(things))
	for i, thing := range things {
		words[i] = cobra.CompletionWithDesc(describe(thing))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
