// Package ticketfile reads support tickets from files.
//
// A file is JSON Lines (.jsonl), one object to a line, or comma-separated values (.csv) with a header. The columns
// are subject, message, external_id and the truth, that is the department a person decided on; only message is
// required, and columns of other names are ignored. What the customer wrote is returned as it stands: white space,
// line ends and Unicode forms are the evaluator's affair. (CSV alone cannot tell CRLF within a field from LF.)
//
// Nothing is skipped in silence. A file is either read whole, or refused with the line that is at fault.
package ticketfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of a file, so that a wrong one is refused and not read into memory.
const (
	MaxBytes   = 256 << 20
	MaxTickets = 100_000
)

// TruthColumn is where the truth is looked for when no other column is named.
const TruthColumn = "department"

// Ticket is one row.
type Ticket struct {
	Line       int // where it begins in the file, from 1
	ExternalID string
	Subject    string
	Message    string
	Truth      string // without outer white space; "" when the row has none
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

// LineError is what is wrong with one line.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// Open reads the file at path, with the truth in the given column. Its name tells the format.
func Open(path, truthColumn string) (File, error) {
	read := map[string]func([]byte, string) (File, error){".jsonl": readJSONL, ".csv": readCSV}[strings.ToLower(filepath.Ext(path))]
	if read == nil {
		return File{}, fmt.Errorf("read tickets from %s: the name must end in .jsonl or .csv", path)
	}
	data, err := load(path)
	if err == nil {
		var f File
		if f, err = read(data, truthColumn); err == nil {
			return f, nil
		}
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return File{}, fmt.Errorf("read tickets: %w", err)
	}
	return File{}, fmt.Errorf("read tickets from %s: %w", path, err)
}

func load(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("larger than %d MiB", MaxBytes>>20)
	}
	return bytes.TrimPrefix(data, []byte("\uFEFF")), nil
}

// add checks what both formats have in common.
func (f *File) add(t Ticket) error {
	t.Truth = strings.TrimSpace(t.Truth)
	if strings.TrimSpace(t.Message) == "" {
		return errors.New("the message is empty")
	}
	if len(f.Tickets) == MaxTickets {
		return fmt.Errorf("more than %d tickets", MaxTickets)
	}
	f.Tickets = append(f.Tickets, t)
	return nil
}

func (f File) finish() (File, error) {
	if len(f.Tickets) == 0 {
		return File{}, errors.New("no tickets in it")
	}
	return f, nil
}
