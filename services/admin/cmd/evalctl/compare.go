package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/ticketfile"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const compareExample = `  evalctl compare triage-1 triage-2 --since 30d
  evalctl compare triage-1 triage-2 --sample march -o csv > disagreements.csv
  evalctl compare triage-2 --truth labelled.jsonl
  evalctl compare triage-2 --truth labelled.csv --part departments -o csv`

// part is a table of a comparison, as CSV.
type part string

const (
	partDisagreements part = "disagreements"
	partConfusion     part = "confusion"
	partDepartments   part = "departments"
)

func (p *part) String() string { return string(*p) }
func (p *part) Type() string   { return "table" }

func (p *part) Set(s string) error {
	switch named := part(s); named {
	case partDisagreements, partConfusion, partDepartments:
		*p = named
		return nil
	default:
		return fmt.Errorf("must be %s, %s or %s", partDisagreements, partConfusion, partDepartments)
	}
}

func (c *cli) compareCommand() *cobra.Command {
	var r adminv1.CompareRequest
	var since, until moment
	var truth string
	var limit int32
	table := partDisagreements
	cmd := &cobra.Command{
		Use: "compare VERSION [OTHER_VERSION]", Short: "Compare a version with another one, or with the truth",
		Long: "Compare a version with another one, or with the truth in a file, by the answers that\n" +
			"are stored. No model is called, and nothing is changed.\n\n" +
			"A file of truth is .jsonl or .csv, with a department and an external_id or a ticket_id\n" +
			"in each row, and with urgent, true or false, where that is known.\n\n" +
			"As JSON, each message is a line: the summary, and then the tickets that disagree, the\n" +
			"worst first. As CSV it is one table, by default that of these tickets.",
		Example: compareExample,
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeVersion,
		RunE: c.action(func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if err := c.completeComparison(&r, args, since, until, truth); err != nil {
				return usageError{err}
			}
			r.MaxDisagreements = &limit
			stream, err := adminv1.NewCompareServiceClient(conn).Compare(ctx, &r)
			if err == nil {
				err = c.printComparison(stream, table)
			}
			if err != nil {
				return fmt.Errorf("compare: %w", err)
			}
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&truth, "truth", "", "file with the truth")
	flags.Var(&since, "since", "only tickets created at this time or later: in RFC 3339, or so long ago, such as 30d")
	flags.Var(&until, "until", "only tickets created before this time; now when only --since is given")
	flags.StringVar(&r.ClientId, "client", "", "only tickets of this client")
	flags.StringVar(&r.SampleId, "sample", "", "the tickets of this sample, in place of a range")
	flags.Int32VarP(&limit, "disagreements", "n", 20, "how many tickets that disagree are shown")
	flags.Var(&table, "part", "with -o csv, the table that is printed: disagreements, confusion or departments")
	must(cmd.MarkFlagFilename("truth", "jsonl", "csv"))
	parts := []cobra.Completion{string(partDisagreements), string(partConfusion), string(partDepartments)}
	must(cmd.RegisterFlagCompletionFunc("part", cobra.FixedCompletions(parts, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("sample", c.completeSample))
	for _, name := range []string{"since", "until", "client", "disagreements"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return hasCSV(cmd)
}

// completeComparison fills in what is no flag of the request's own.
func (c *cli) completeComparison(r *adminv1.CompareRequest, args []string, since, until moment, truth string) (err error) {
	r.VersionId = args[0]
	switch {
	case len(args) == 2 && truth != "":
		return errors.New("a version is compared with another one or with a truth: leave out one of them")
	case len(args) == 2:
		r.OtherVersionId = args[1]
	case truth == "":
		return errors.New("name another version, or a file by --truth")
	default:
		if r.Truth, err = readTruth(truth); err != nil {
			return err
		}
	}
	if !since.IsZero() {
		r.CreatedFrom = timestamppb.New(since.Time)
		if until.IsZero() {
			r.CreatedTo = timestamppb.Now()
		}
	}
	if !until.IsZero() {
		r.CreatedTo = timestamppb.New(until.Time)
	}
	if truth == "" && r.GetSampleId() == "" && since.IsZero() {
		return errors.New("say over which tickets: by --since, or --sample")
	}
	return nil
}

// The columns of a file of truth, beside those of tickets.
const (
	ticketIDColumn = "ticket_id"
	urgentColumn   = "urgent"
)

// readTruth reads all rows, or says what is wrong with one: a figure over a part of the truth would pass for the whole.
func readTruth(path string) ([]*adminv1.Truth, error) {
	format, err := ticketfile.FormatOf(path)
	if err != nil {
		return nil, fmt.Errorf("read the truth from %s: %w", path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the truth: %w", err)
	}
	defer file.Close()
	reader := ticketfile.NewReader(file, format, ticketfile.Columns{
		Required: []string{ticketfile.TruthColumn}, Optional: []string{ticketfile.ExternalIDColumn, ticketIDColumn, urgentColumn},
	})
	var truth []*adminv1.Truth
	for {
		row, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return truth, nil
		}
		var t *adminv1.Truth
		if err == nil {
			t, err = truthOf(row)
		}
		if err != nil {
			return nil, fmt.Errorf("read the truth from %s: %w", path, err)
		}
		truth = append(truth, t)
	}
}

func truthOf(row ticketfile.Row) (*adminv1.Truth, error) {
	t := &adminv1.Truth{
		TicketId: row.Values[ticketIDColumn], ExternalId: row.Values[ticketfile.ExternalIDColumn], Department: row.Values[ticketfile.TruthColumn],
	}
	if t.GetTicketId() != "" {
		t.ExternalId = "" // one of the two is enough, and that one is exact
	}
	refuse := func(what string) (*adminv1.Truth, error) {
		return nil, &ticketfile.LineError{Line: row.Line, Err: errors.New(what)}
	}
	if t.GetTicketId() == "" && t.GetExternalId() == "" {
		return refuse("neither a ticket_id nor an external_id")
	}
	if t.GetDepartment() == "" {
		return refuse("no department")
	}
	if text := row.Values[urgentColumn]; text != "" {
		urgent, err := strconv.ParseBool(text)
		if err != nil {
			return refuse("urgent is neither true nor false")
		}
		t.Urgent = &urgent
	}
	return t, nil
}

// printComparison prints JSON as it comes; a table wants to be whole.
func (c *cli) printComparison(stream grpc.ServerStreamingClient[adminv1.CompareResponse], table part) error {
	if c.flags.output == asJSON {
		return each(stream, func(m *adminv1.CompareResponse) error { return c.printLine(m) })
	}
	var summary *adminv1.Comparison
	var worst []*adminv1.Disagreement
	err := each(stream, func(m *adminv1.CompareResponse) error {
		if s := m.GetSummary(); s != nil {
			summary = s
		} else {
			worst = append(worst, m.GetDisagreement())
		}
		return nil
	})
	if err != nil {
		return err
	}
	if c.flags.output == asCSV {
		return writeCSV(c.out, comparisonRows(summary, worst, table)...)
	}
	return c.print(summary, func(w io.Writer) { describeComparison(w, summary, worst) })
}

// printLine prints a message as JSON on one line.
func (c *cli) printLine(m *adminv1.CompareResponse) error {
	data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if _, err := c.out.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
