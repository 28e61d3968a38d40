package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) sampleCommands() *cobra.Command {
	return group("sample", "Samples: tickets that were drawn once, to compare versions over the same ones",
		c.sampleCreate(), c.sampleList(), c.sampleGet(), c.sampleDelete())
}

func (c *cli) sampleCreate() *cobra.Command {
	var r adminv1.CreateSampleRequest
	var since, until moment
	var shared changeFlags
	cmd := &cobra.Command{
		Use: "create ID --since TIME --size N", Short: "Draw tickets of a range, and keep which they are",
		Long: "Draw tickets of a range, and keep which they are. The same seed draws the same from\n" +
			"the same tickets; a sample never changes.",
		Example: "  evalctl sample create march --since 2026-03-01T00:00:00Z --until 2026-04-01T00:00:00Z --size 2000",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			r.Id = args[0]
			r.CreatedFrom, r.CreatedTo = timestamppb.New(since.Time), timestamppb.Now()
			if !until.IsZero() {
				r.CreatedTo = timestamppb.New(until.Time)
			}
			r.DryRun, r.RequestId, r.Reason = shared.dryRun, shared.requestID, shared.reason
			var header metadata.MD
			s, err := adminv1.NewCompareServiceClient(conn).CreateSample(ctx, &r, grpc.Header(&header))
			if err != nil {
				return fmt.Errorf("create sample %s: %w", r.GetId(), err)
			}
			done := "has"
			if replayed(header) {
				done = "was there already, with"
			}
			return c.print(s, func(w io.Writer) {
				fmt.Fprintln(w, shared.would(fmt.Sprintf("sample %s %s %d tickets", s.GetId(), done, s.GetTickets())))
			})
		}),
	}
	flags := cmd.Flags()
	flags.Var(&since, "since", "tickets created at this time or later: in RFC 3339, or so long ago, such as 30d")
	flags.Var(&until, "until", "tickets created before this time; now when not given")
	flags.StringVar(&r.ClientId, "client", "", "only tickets of this client")
	flags.Int32Var(&r.Size, "size", 1000, "how many tickets to draw")
	flags.Int64Var(&r.Seed, "seed", 1, "what decides which are drawn")
	shared.add(cmd)
	must(cmd.MarkFlagRequired("since"))
	for _, name := range []string{"since", "until", "client", "size", "seed"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

func (c *cli) sampleList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List all samples, the newest first", Aliases: []string{"ls"},
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			list, err := adminv1.NewCompareServiceClient(conn).ListSamples(ctx, &adminv1.ListSamplesRequest{})
			if err != nil {
				return fmt.Errorf("list samples: %w", err)
			}
			return c.print(list, func(w io.Writer) { table(w, sampleRows(list.GetSamples()...)...) })
		}),
	}
}

func (c *cli) sampleGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a sample",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeSample),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			s, err := adminv1.NewCompareServiceClient(conn).GetSample(ctx, &adminv1.GetSampleRequest{Id: args[0]})
			if err != nil {
				return fmt.Errorf("get sample %s: %w", args[0], err)
			}
			return c.print(s, func(w io.Writer) { table(w, sampleRows(s)...) })
		}),
	}
}

func sampleRows(samples ...*adminv1.Sample) [][]string {
	rows := [][]string{{"ID", "TICKETS", "SIZE", "FROM", "TO", "CLIENT", "SEED", "BY", "CREATED"}}
	for _, s := range samples {
		rows = append(rows, []string{
			s.GetId(), strconv.Itoa(int(s.GetTickets())), strconv.Itoa(int(s.GetSize())), instant(s.GetCreatedFrom().AsTime()), instant(s.GetCreatedTo().AsTime()),
			s.GetClientId(), strconv.FormatInt(s.GetSeed(), 10), s.GetCreatedBy(), instant(s.GetCreateTime().AsTime()),
		})
	}
	return rows
}

func (c *cli) sampleDelete() *cobra.Command {
	var shared changeFlags
	var yes bool
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Forget which tickets were drawn; the tickets stay",
		Args: cobra.ExactArgs(1), ValidArgsFunction: upTo(1, c.completeSample),
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			samples := adminv1.NewCompareServiceClient(conn)
			if !shared.dryRun && !yes {
				if err := c.mayAsk(yes); err != nil {
					return err
				}
				s, err := samples.GetSample(ctx, &adminv1.GetSampleRequest{Id: args[0]})
				if err != nil {
					return fmt.Errorf("get sample %s: %w", args[0], err)
				}
				if err := c.confirm(ctx, fmt.Sprintf("Forget sample %s of %d tickets?", s.GetId(), s.GetTickets())); err != nil {
					return err
				}
			}
			done, err := samples.DeleteSample(ctx, &adminv1.DeleteSampleRequest{
				Id: args[0], DryRun: shared.dryRun, RequestId: shared.requestID, Reason: shared.reason,
			})
			if err != nil {
				return fmt.Errorf("delete sample %s: %w", args[0], err)
			}
			return c.print(done, func(w io.Writer) { fmt.Fprintln(w, shared.would(fmt.Sprintf("sample %s is deleted", args[0]))) })
		}),
	}
	shared.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// completeSample offers the ids that the service has.
func (c *cli) completeSample(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(c, cmd, func(ctx context.Context, conn *grpc.ClientConn) ([]*adminv1.Sample, error) {
		list, err := adminv1.NewCompareServiceClient(conn).ListSamples(ctx, &adminv1.ListSamplesRequest{})
		return list.GetSamples(), err
	}, func(s *adminv1.Sample) (word, about string) {
		return s.GetId(), strconv.Itoa(int(s.GetTickets())) + " tickets"
	})
}
