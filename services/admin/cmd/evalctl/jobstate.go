package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// pausable is something long that the service does, and that can be paused, resumed and canceled.
type pausable interface {
	proto.Message
	GetId() string
	GetState() string
}

// jobChange is a command that changes the state of a job, which is called what. With a question it asks first, since the
// change costs money or cannot be undone; complete offers the jobs that there are.
func jobChange[J pausable, S any](
	c *cli, what, verb, short string, service func(grpc.ClientConnInterface) S, complete cobra.CompletionFunc,
	question func(ctx context.Context, jobs S, id string) (string, error),
	do func(ctx context.Context, jobs S, id string, f changeFlags) (J, error),
) *cobra.Command {
	var shared changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use: verb + " ID", Short: short,
		Args: cobra.ExactArgs(1), ValidArgsFunction: complete,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			jobs := service(conn)
			if question != nil && !shared.dryRun && !yes {
				if err := c.mayAsk(yes); err != nil {
					return err
				}
				is, err := question(ctx, jobs, args[0])
				if err != nil {
					return fmt.Errorf("get %s %s: %w", what, args[0], err)
				}
				if err := c.confirm(ctx, fmt.Sprintf("%s %s %s? %s", sentence(verb), what, args[0], is)); err != nil {
					return err
				}
			}
			j, err := do(ctx, jobs, args[0], shared)
			if err != nil {
				return fmt.Errorf("%s %s %s: %w", verb, what, args[0], err)
			}
			return c.print(j, func(w io.Writer) {
				fmt.Fprintln(w, shared.would(fmt.Sprintf("%s %s is %s", what, j.GetId(), j.GetState())))
			})
		}),
	}
	shared.add(cmd)
	if question != nil {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	}
	return cmd
}

// sentence begins with a capital.
func sentence(verb string) string { return string(verb[0]-'a'+'A') + verb[1:] }
