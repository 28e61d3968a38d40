package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (c *cli) auditCommands() *cobra.Command {
	return group("audit", "What operators have changed: who, what, and why", c.auditList())
}

func (c *cli) auditList() *cobra.Command {
	var r adminv1.ListAuditEntriesRequest
	var since, until moment
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List changes, the newest first", Aliases: []string{"ls"},
		Example: `  evalctl audit list --since 7d
  evalctl audit list --target activeVersion --limit 10
  evalctl audit list --principal ana --method VersionService.PromoteVersion -o json`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			if !since.IsZero() {
				r.StartTime = timestamppb.New(since.Time)
			}
			if !until.IsZero() {
				r.EndTime = timestamppb.New(until.Time)
			}
			audit := adminv1.NewAuditServiceClient(conn)
			entries, more, err := pages(limit, func(size int32, token string) ([]*adminv1.AuditEntry, string, error) {
				r.PageSize, r.PageToken = size, token
				page, err := audit.ListAuditEntries(ctx, &r)
				return page.GetEntries(), page.GetNextPageToken(), err
			})
			if err != nil {
				return fmt.Errorf("list what was changed: %w", err)
			}
			return c.print(&adminv1.ListAuditEntriesResponse{Entries: entries, NextPageToken: more}, func(w io.Writer) {
				rows := [][]string{{"TIME", "WHO", "METHOD", "TARGET", "BEFORE", "AFTER", "REASON"}}
				for _, e := range entries {
					rows = append(rows, []string{
						instant(e.GetTime().AsTime()), e.GetPrincipal(), e.GetMethod(), e.GetTarget(), compact(e.GetBefore()), compact(e.GetAfter()), e.GetReason(),
					})
				}
				table(w, rows...)
			})
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&r.TargetPrefix, "target", "", "only changes to what begins with this, such as versions/")
	flags.StringVar(&r.Principal, "principal", "", "only changes by this operator")
	flags.StringVar(&r.Method, "method", "", "only changes by this method, such as VersionService.PromoteVersion")
	flags.Var(&since, "since", "only changes at this time or later: in RFC 3339, or so long ago, such as 7d")
	flags.Var(&until, "until", "only changes before this time")
	limitFlag(cmd, &limit)
	for _, name := range []string{"target", "principal", "method", "since", "until"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// compact is a value on one line of bounded length.
func compact(v *structpb.Value) string {
	if v == nil {
		return ""
	}
	const most = 60 // characters
	text, err := json.Marshal(v.AsInterface())
	if err != nil {
		return "?"
	}
	if shown := []rune(string(text)); len(shown) > most {
		return string(shown[:most-1]) + "…"
	}
	return string(text)
}
