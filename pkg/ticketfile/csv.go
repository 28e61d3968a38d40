package ticketfile

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// readCSV takes the columns from a header line. Of a file without one, or with a header that cannot be read, nothing else
// can be.
func readCSV(r io.Reader, reader *Reader) (next func() (Row, error), offset func() int64) {
	source := &capped{r: r}
	table := csv.NewReader(source)
	table.ReuseRecord = true
	var fields []string // the column of each field; "" where it is ignored
	read := func() ([]string, error) {
		// What the table's own buffer has read ahead does not count.
		source.most = table.InputOffset() + MaxRowBytes + bufferBytes
		record, err := table.Read()
		if err == nil {
			err = checkUTF8(table, record)
		}
		return record, csvError(err)
	}
	next = func() (Row, error) {
		if fields == nil {
			header, err := read()
			if errors.Is(err, io.EOF) {
				return Row{}, errors.New("no header line")
			}
			if err == nil {
				fields, err = reader.header(header)
			}
			if err != nil {
				return Row{}, final(err)
			}
		}
		record, err := read()
		if err != nil {
			return Row{}, err
		}
		row := Row{Values: make(map[string]string, len(fields))}
		row.Line, _ = table.FieldPos(0)
		for i, column := range fields {
			if column != "" {
				row.Values[column] = record[i]
			}
		}
		return row, nil
	}
	return next, table.InputOffset
}

func (r *Reader) header(names []string) ([]string, error) {
	fields := make([]string, len(names))
	for i, name := range names {
		name = strings.TrimSpace(name)
		switch {
		case !r.columns.has(name):
			r.ignore(name)
		case slices.Contains(fields[:i], name):
			return nil, &LineError{Line: 1, Err: fmt.Errorf("two columns named %q", name)}
		default:
			fields[i] = name
		}
	}
	for _, column := range r.columns.Required {
		if !slices.Contains(fields, column) {
			return nil, &LineError{Line: 1, Err: fmt.Errorf("no column %q in the header: %s", column, strings.Join(names, ", "))}
		}
	}
	return fields, nil
}

// checkUTF8 names the line, which within a field may be a later one than the row's.
func checkUTF8(table *csv.Reader, record []string) error {
	for i, field := range record {
		if at := firstInvalid(field); at >= 0 {
			line, _ := table.FieldPos(i)
			return &LineError{Line: line + strings.Count(field[:at], "\n"), Err: errors.New("not valid UTF-8")}
		}
	}
	return nil
}

func firstInvalid(s string) int {
	for i, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return i
		}
	}
	return -1
}

func csvError(err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return &LineError{Line: parse.StartLine, Err: parse.Err}
	}
	return err
}

func final(err error) error {
	if wrong, ok := errors.AsType[*LineError](err); ok {
		wrong.Final = true
	}
	return err
}

// capped stops reading where a row would be too large: without its closing quote, a row goes on to the end of the file.
type capped struct {
	r    io.Reader
	read int64
	most int64
}

func (c *capped) Read(p []byte) (int, error) {
	if c.read >= c.most {
		return 0, errRowTooLarge
	}
	n, err := c.r.Read(p)
	c.read += int64(n)
	return n, err
}
