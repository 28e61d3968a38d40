// Package ticketfile reads support tickets, and what people decided on them, from files.
//
// A file is JSON Lines (.jsonl), one object to a line, or comma-separated values (.csv) with a header. Columns are found
// by their names, exactly; those that nobody asks for are ignored. What the customer wrote is returned as it stands: white
// space, line ends and Unicode forms are the evaluator's affair. (CSV alone cannot tell CRLF within a field from LF.)
//
// Nothing is skipped in silence. A [Reader] reads row by row, and says of each line that cannot be read what is wrong with
// it. [Open] reads a file whole, or refuses it with the line that is at fault.
package ticketfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Bounds of a file that is read whole, so that a wrong one is refused and not read into memory.
const (
	MaxBytes   = 256 << 20
	MaxTickets = 100_000
)

// TruthColumn is where the truth, that is the department a person decided on, is looked for when no other column is named.
const TruthColumn = "department"

// The columns of a ticket.
const (
	SubjectColumn    = "subject"
	MessageColumn    = "message"
	ExternalIDColumn = "external_id"
)

// Ticket is one row.
type Ticket struct {
	Line       int // where it begins in the file, from 1
	ExternalID string
	Subject    string
	Message    string
	Truth      string // without outer white space; "" when the row has none
}

// TicketColumns are the columns of a ticket, and more.
func TicketColumns(more ...string) Columns {
	return Columns{Required: []string{MessageColumn}, Optional: append([]string{SubjectColumn, ExternalIDColumn}, more...)}
}

// Ticket is the row's, with the truth in the given column.
func (r Row) Ticket(truthColumn string) (Ticket, error) {
	message := r.Values[MessageColumn]
	if strings.TrimSpace(message) == "" {
		return Ticket{}, &LineError{Line: r.Line, Err: errors.New("the message is empty")}
	}
	return Ticket{
		Line: r.Line, ExternalID: r.Values[ExternalIDColumn], Subject: r.Values[SubjectColumn], Message: message,
		Truth: strings.TrimSpace(r.Values[truthColumn]),
	}, nil
}

// File is all rows, in order.
type File struct {
	Tickets []Ticket
	// Ignored are the names of the columns that were not read, in the order of their first appearance.
	Ignored []string
}

// Truths returns the distinct departments in the order of their first appearance. Those that differ in letter case
// alone are one, in the spelling that came first.
func (f File) Truths() []string {
	var truths []string
	seen := map[string]bool{}
	for _, t := range f.Tickets {
		if folded := strings.ToLower(t.Truth); t.Truth != "" && !seen[folded] {
			seen[folded] = true
			truths = append(truths, t.Truth)
		}
	}
	return truths
}

// Open reads the file at path, with the truth in the given column. Its name tells the format.
func Open(path, truthColumn string) (File, error) {
	format, err := FormatOf(path)
	if err != nil {
		return File{}, fmt.Errorf("read tickets from %s: %w", path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return File{}, fmt.Errorf("read tickets: %w", err)
	}
	defer file.Close()
	f, err := readAll(NewReader(file, format, TicketColumns(truthColumn)), truthColumn)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return File{}, fmt.Errorf("read tickets: %w", err)
	}
	if err != nil {
		return File{}, fmt.Errorf("read tickets from %s: %w", path, err)
	}
	return f, nil
}

func readAll(r *Reader, truthColumn string) (File, error) {
	var f File
	for {
		row, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var t Ticket
		if err == nil {
			t, err = row.Ticket(truthColumn)
		}
		switch {
		case err != nil:
			return File{}, err
		case len(f.Tickets) == MaxTickets:
			return File{}, &LineError{Line: row.Line, Err: fmt.Errorf("more than %d tickets", MaxTickets)}
		case r.Offset() > MaxBytes:
			return File{}, fmt.Errorf("larger than %d MiB", MaxBytes>>20)
		}
		f.Tickets = append(f.Tickets, t)
	}
	if len(f.Tickets) == 0 {
		return File{}, errors.New("no tickets in it")
	}
	f.Ignored = r.Ignored()
	return f, nil
}
