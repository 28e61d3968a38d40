package ticketfile_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"unicode/utf8"

	"github.com/evalonce/evalonce/pkg/ticketfile"
)

// Every file comes to its end, with rows of UTF-8 and of known columns, in order.
func FuzzReader(f *testing.F) {
	for _, s := range []string{
		"{\"message\":\"a\"}\n\n{\"message\":1}\n", "message,subject\na,b\n\"c\nd\",e\n", "\ufeffmessage\nx", "message\n\"open", "{", "\xff\n", "message,message\n", "{\"message\":\"\\ud800\"}",
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, file []byte, csv bool) {
		format := ticketfile.JSONL
		if csv {
			format = ticketfile.CSV
		}
		columns := ticketfile.TicketColumns()
		r := ticketfile.NewReader(bytes.NewReader(file), format, columns)
		line := 0
		for range len(file) + 2 {
			row, err := r.Next()
			var wrong *ticketfile.LineError
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.As(err, &wrong):
				continue
			case err != nil:
				return
			}
			if row.Line <= line {
				t.Fatalf("line %d after line %d", row.Line, line)
			}
			line = row.Line
			for column, value := range row.Values {
				if !utf8.ValidString(value) || !utf8.ValidString(column) {
					t.Errorf("line %d has %q in %q", row.Line, value, column)
				}
			}
		}
		if _, err := r.Next(); err == nil {
			t.Error("there are more rows than bytes")
		}
	})
}
