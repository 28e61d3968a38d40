package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// unsoundError is that promises are broken: fsck itself went well.
type unsoundError struct{ violations int32 }

func (e unsoundError) Error() string {
	if e.violations == 1 {
		return "1 promise is broken"
	}
	return fmt.Sprintf("%d promises are broken", e.violations)
}

func (c *cli) fsckCommand() *cobra.Command {
	request := &adminv1.RunFsckRequest{}
	var most time.Duration
	cmd := &cobra.Command{
		Use: "fsck", Short: "Check every promise over the tables",
		Long: "Check every promise over the tables, in one snapshot, without changing anything. Findings\n" +
			"are shown as they are made. Broken promises end it with exit code 7; notes, which are\n" +
			"worth a look and contradict nothing, do not. With -o json each finding is an object on a\n" +
			"line of its own, and so is the summary at the end.",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, _ []string) error {
			request.CheckTimeout = durationpb.New(most)
			stream, err := adminv1.NewFsckServiceClient(conn).RunFsck(ctx, request)
			if err != nil {
				return fmt.Errorf("fsck: %w", err)
			}
			var summary *adminv1.FsckSummary
			if err := each(stream, func(m *adminv1.RunFsckResponse) error {
				if m.GetSummary() != nil {
					summary = m.GetSummary()
				}
				return c.printEvent(m)
			}); err != nil {
				return fmt.Errorf("fsck: %w", err)
			}
			switch {
			case summary == nil:
				return errors.New("fsck has ended without a summary")
			case !summary.GetHealthy():
				return unsoundError{summary.GetViolations()}
			}
			return nil
		}),
	}
	const defaultExamples, defaultTimeout = 10, 10 * time.Minute
	cmd.Flags().Int32Var(&request.Examples, "examples", defaultExamples, "show at most so many ids of each finding")
	cmd.Flags().DurationVar(&most, "check-timeout", defaultTimeout, "longest time of one check")
	must(cmd.RegisterFlagCompletionFunc("examples", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("check-timeout", cobra.NoFileCompletions))
	return cmd
}

// printEvent writes one message of the stream, as JSON on a line or in words.
func (c *cli) printEvent(m *adminv1.RunFsckResponse) error {
	var b strings.Builder
	if c.flags.output == asJSON {
		data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		b.Write(data)
		b.WriteByte('\n')
	} else {
		describeEvent(&b, m)
	}
	if _, err := io.WriteString(c.out, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func describeEvent(w io.Writer, m *adminv1.RunFsckResponse) {
	if f := m.GetFinding(); f != nil {
		kind := "violation"
		if f.GetNote() {
			kind = "note"
		}
		more := ""
		if f.GetCount() > int64(len(f.GetExamples())) {
			more = ", …"
		}
		fmt.Fprintf(w, "%s  %s: %d\n  promise: %s\n  found:   %s%s\n", kind, f.GetCheck(), f.GetCount(), printable(f.GetPromise()),
			printable(strings.Join(f.GetExamples(), ", ")), more)
	}
	if s := m.GetSummary(); s != nil {
		fmt.Fprintf(w, "%d promises checked: %d broken, %d notes\n", s.GetChecks(), s.GetViolations(), s.GetNotes())
	}
}
