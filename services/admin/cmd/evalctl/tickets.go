package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/ticketfile"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func (c *cli) ticketsCommands() *cobra.Command {
	cmd := group("tickets", "Tickets: create them, as a client of ticket-api, and erase their text", c.ticketsImport(), c.ticketErase())
	cmd.Aliases = []string{"ticket"}
	return cmd
}

const importLong = `Create a ticket for each row of a file of JSON Lines or CSV, with the columns subject,
message and external_id; only message is needed, and others are ignored.

This is a client's command: it goes to ticket-api, with the token of the client that
will own the tickets.
  EVALONCE_API_ADDRESS     host:port of its gRPC (localhost:8081)
  EVALONCE_API_TOKEN       the client's token, or
  EVALONCE_API_TOKEN_FILE  a file that holds it

Repeated after an interruption, it goes on: each row has its own idempotency key, made of
its content and of how often that came before in the file, or taken from the column that
--key-column names. A row that is there already is counted and not created again, for as
long as ticket-api knows its keys (7 days by default), whatever became of the rows around
it. A row that cannot be created is told with its line, and stops nothing unless --strict
is given; the command then fails with exit code 1.`

// importFlags say how a file is imported.
type importFlags struct {
	format      string
	keyColumn   string
	batch       int
	concurrency int
	patience    time.Duration
	strict      bool
}

func (f importFlags) check() error {
	const mostBatch, mostConcurrency = 500, 64
	switch {
	case f.batch < 1 || f.batch > mostBatch:
		return fmt.Errorf("--batch must be from 1 to %d", mostBatch)
	case f.concurrency < 1 || f.concurrency > mostConcurrency:
		return fmt.Errorf("--concurrency must be from 1 to %d", mostConcurrency)
	case f.patience < 0:
		return errors.New("--patience must not be negative")
	default:
		return nil
	}
}

func (c *cli) ticketsImport() *cobra.Command {
	var flags importFlags
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Create a ticket for each row of a file; repeat it to go on", Long: importLong,
		Example: "  evalctl tickets import march.jsonl\n  zcat march.csv.gz | evalctl tickets import - --format csv --key-column id",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{string(ticketfile.JSONL), string(ticketfile.CSV)}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: c.actionOn(c.connectAPI, func(ctx context.Context, conn *grpc.ClientConn, args []string) error {
			if err := flags.check(); err != nil {
				return usageError{err}
			}
			return c.importTickets(ctx, ticketv1.NewTicketServiceClient(conn), args[0], flags)
		}),
	}
	set := cmd.Flags()
	set.StringVar(&flags.format, "format", "", "jsonl or csv; by the file's name when not given")
	set.StringVar(&flags.keyColumn, "key-column", "", "the column that holds each row's idempotency key")
	set.IntVar(&flags.batch, "batch", 200, "rows that are created at once, all or none")
	set.IntVar(&flags.concurrency, "concurrency", 4, "batches at a time")
	set.DurationVar(&flags.patience, "patience", 2*time.Minute, "how long to try again while the service does not answer")
	set.BoolVar(&flags.strict, "strict", false, "stop at the first row that cannot be created")
	formats := []cobra.Completion{string(ticketfile.JSONL), string(ticketfile.CSV)}
	must(cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"key-column", "batch", "concurrency", "patience"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// importTickets reads the file once, row by row, and prints what became of it, even of a part.
func (c *cli) importTickets(ctx context.Context, tickets ticketv1.TicketServiceClient, path string, flags importFlags) error {
	in, size, format, err := c.openTickets(path, flags.format)
	if err != nil {
		return usageError{err}
	}
	defer in.Close()
	bar := c.startBar("imported", size, progress.UnitsBytes)
	i := newImporter(tickets, flags, bar.add, func(line int, why string) {
		fmt.Fprintf(c.err, "line %d: %s\n", line, printable(why))
	})
	began := time.Now()
	err = i.run(ctx, ticketfile.NewReader(in, format, i.columns()))
	bar.stop(err)
	if err == nil && i.rejected.Load() > 0 {
		err = fmt.Errorf("%d rows were not imported", i.rejected.Load())
	}
	done := imported{
		Rows: i.rows.Load(), Created: i.created.Load(), AlreadyThere: i.replayed.Load(), Rejected: i.rejected.Load(),
		Seconds: time.Since(began).Seconds(), Complete: i.complete,
	}
	if err := c.printImported(done); err != nil {
		return err
	}
	if err != nil && !i.complete {
		return fmt.Errorf("import %s: %w; the same command goes on", path, err)
	}
	return err
}

// openTickets opens the file, or standard input for "-", whose size is not known.
func (c *cli) openTickets(path, named string) (in io.ReadCloser, size int64, format ticketfile.Format, err error) {
	switch format = ticketfile.Format(named); {
	case named == "" && path == "-":
		return nil, 0, "", errors.New("say by --format what comes on standard input")
	case named == "":
		if format, err = ticketfile.FormatOf(path); err != nil {
			return nil, 0, "", fmt.Errorf("read tickets from %s: %w", path, err)
		}
	case format != ticketfile.JSONL && format != ticketfile.CSV:
		return nil, 0, "", fmt.Errorf("--format must be %s or %s", ticketfile.JSONL, ticketfile.CSV)
	}
	if path == "-" {
		return io.NopCloser(c.in), 0, format, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, "", fmt.Errorf("read tickets: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, "", errors.Join(fmt.Errorf("read tickets: %w", err), file.Close())
	}
	return file, info.Size(), format, nil
}

// imported is what became of a file.
type imported struct {
	Rows         int64   `json:"rows"` // that were read
	Created      int64   `json:"created"`
	AlreadyThere int64   `json:"already_there"`
	Rejected     int64   `json:"rejected"`
	Seconds      float64 `json:"seconds"`
	Complete     bool    `json:"complete"` // the end of the file was reached
}

func (c *cli) printImported(done imported) error {
	if c.flags.output == asJSON {
		data, err := json.MarshalIndent(done, "", "  ")
		if err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		if _, err := c.out.Write(append(data, '\n')); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
	rate := ""
	if done.Seconds > 0 {
		rate = fmt.Sprintf(", %.0f rows/s", float64(done.Rows)/done.Seconds)
	}
	table(c.out,
		[]string{"rows", count(done.Rows)},
		[]string{"created", count(done.Created)},
		[]string{"already there", count(done.AlreadyThere)},
		[]string{"rejected", count(done.Rejected)},
		[]string{"took", fmt.Sprintf("%.1f s%s", done.Seconds, rate)},
	)
	return nil
}
