package ticketfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// MaxRowBytes bounds one row, so that a file that is no table is not read into memory as one.
const MaxRowBytes = 4 << 20

var errRowTooLarge = fmt.Errorf("longer than %d MiB", MaxRowBytes>>20)

// Format is that of a file.
type Format string

// The formats.
const (
	JSONL Format = "jsonl"
	CSV   Format = "csv"
)

// FormatOf tells the format by a file's name.
func FormatOf(path string) (Format, error) {
	switch f := Format(strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), ".")); f {
	case JSONL, CSV:
		return f, nil
	default:
		return "", errors.New("the name must end in .jsonl or .csv")
	}
}

// Row is one row of a file.
type Row struct {
	Line   int               // where it begins, from 1
	Values map[string]string // by column, of those that are read
}

// Columns are those that are read. A file without one that is required cannot be read; of JSON Lines, the row cannot.
type Columns struct {
	Required, Optional []string
}

func (c Columns) has(name string) bool {
	return slices.Contains(c.Required, name) || slices.Contains(c.Optional, name)
}

// Reader reads a file row by row. It holds one row at a time, however large the file is.
type Reader struct {
	columns Columns
	ignored []string
	next    func() (Row, error)
	offset  func() int64
	ended   error
}

// NewReader returns a reader of these columns; others are ignored.
func NewReader(r io.Reader, format Format, columns Columns) *Reader {
	reader := &Reader{columns: columns}
	// A byte order mark is none of the first column's.
	buffered := bufio.NewReaderSize(r, bufferBytes)
	var skipped int64
	if mark, _ := buffered.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		n, _ := buffered.Discard(len(byteOrderMark)) // it is in the buffer
		skipped = int64(n)
	}
	var offset func() int64
	if format == CSV {
		reader.next, offset = readCSV(buffered, reader)
	} else {
		reader.next, offset = readJSONL(buffered, reader)
	}
	reader.offset = func() int64 { return skipped + offset() }
	return reader
}

const (
	byteOrderMark = "\uFEFF"
	bufferBytes   = 64 << 10
)

// Next returns the next row, or io.EOF after the last. After a [*LineError] that is not final it goes on with the row
// behind it.
func (r *Reader) Next() (Row, error) {
	if r.ended != nil {
		return Row{}, r.ended
	}
	row, err := r.next()
	if err != nil {
		if wrong, ok := errors.AsType[*LineError](err); !ok || wrong.Final {
			r.ended = err
		}
		return Row{}, err
	}
	return row, nil
}

// Offset is how many bytes have been read up to the end of the last row.
func (r *Reader) Offset() int64 { return r.offset() }

// Ignored are the names of the columns that were not read so far, in the order of their first appearance.
func (r *Reader) Ignored() []string { return r.ignored }

func (r *Reader) ignore(column string) {
	if !slices.Contains(r.ignored, column) {
		r.ignored = append(r.ignored, column)
	}
}

// LineError is what is wrong with one line.
type LineError struct {
	Line  int
	Err   error
	Final bool // what comes behind it cannot be read
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }
