package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// output is the form of what is printed, and the value of a flag.
type output string

const (
	asTable output = "table"
	asJSON  output = "json"
	asCSV   output = "csv"
)

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "form" }

func (o *output) Set(s string) error {
	switch form := output(s); form {
	case asTable, asJSON, asCSV:
		*o = form
		return nil
	default:
		return fmt.Errorf("must be %s, %s or, where a command has it, %s", asTable, asJSON, asCSV)
	}
}

// print writes a message as JSON, in the form that REST has, or as people want it.
func (c *cli) print(m proto.Message, forPeople func(w io.Writer)) error {
	var b bytes.Buffer
	if c.flags.output == asJSON {
		data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode the output: %w", err)
		}
		// protojson varies its white space on purpose.
		if err := json.Indent(&b, data, "", "  "); err != nil {
			return fmt.Errorf("indent the output: %w", err)
		}
		b.WriteByte('\n')
	} else {
		forPeople(&b)
	}
	if _, err := c.out.Write(b.Bytes()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// table writes rows of cells in columns.
func table(w io.Writer, rows ...[]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = strings.ReplaceAll(printable(cell), "\n", " ")
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush() // into memory
}

// printable keeps what others have written from steering the terminal: whatever is not visible, but for line breaks, is
// shown as its escape.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteRune(r)
		case r == '\t':
			b.WriteByte(' ')
		case unicode.IsControl(r), !unicode.IsPrint(r) && !unicode.IsSpace(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func instant(t time.Time) string { return t.UTC().Truncate(time.Second).Format(time.RFC3339) }

func mark(b bool) string {
	if b {
		return "yes"
	}
	return ""
}
