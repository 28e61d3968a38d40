package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const eraseLong = `Take a ticket's text out of the database, for good: subject, message, and the raw responses to it.
Its keys, answers, costs and the records of changes stay. Backups, and what the provider keeps, are
not reached.

What another ticket with the same text shares stays with that ticket. Work that no other ticket
needs goes to the dead letters, with the reason "erased".

While the text is with the model nothing is changed, and the command fails with the exit code of a
service that cannot answer now: repeat it.`

func (c *cli) ticketErase() *cobra.Command {
	var change changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use: "erase ID", Short: "Take a ticket's text out of the database, for good", Long: eraseLong,
		Example: `  evalctl ticket erase 01924f9a-3c4e-7b1d-9d0e-5a8f6f0c2b11 --reason "request 4711"`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if !change.dryRun {
				if err := c.mayAsk(yes); err != nil {
					return err
				}
				if !yes {
					if err := c.confirm(ctx, fmt.Sprintf("Erase the text of ticket %s? Nobody can bring it back.", args[0])); err != nil {
						return err
					}
				}
			}
			erased, err := adminv1.NewTicketAdminServiceClient(conn).EraseTicket(ctx, &adminv1.EraseTicketRequest{
				Id: args[0], DryRun: change.dryRun, RequestId: change.requestID, Reason: change.reason,
			})
			if err != nil {
				return fmt.Errorf("erase ticket %s: %w", args[0], err)
			}
			return c.print(erased, func(w io.Writer) {
				fmt.Fprintln(w, change.would(fmt.Sprintf("the text of ticket %s of client %s is erased, with %s raw responses; %s evaluations are dead letters",
					erased.GetId(), erased.GetClientId(), count(erased.GetErasedResponses()), count(erased.GetBuriedEvaluations()))))
			})
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	change.add(cmd)
	return cmd
}
