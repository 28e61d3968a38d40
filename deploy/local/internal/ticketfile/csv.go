package ticketfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

func readCSV(data []byte, truthColumn string) (File, error) {
	if i := firstInvalid(data); i >= 0 {
		return File{}, &LineError{Line: 1 + bytes.Count(data[:i], []byte("\n")), Err: errors.New("not valid UTF-8")}
	}
	reader := csv.NewReader(bytes.NewReader(data))
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return File{}, errors.New("no header line")
	}
	if err != nil {
		return File{}, csvError(err)
	}
	var f File
	var t Ticket
	columns := map[string]*string{truthColumn: &t.Truth, "external_id": &t.ExternalID, "subject": &t.Subject, "message": &t.Message}
	fields := make([]*string, len(header))
	for i, name := range header {
		name = strings.TrimSpace(name)
		column, wanted := columns[name]
		switch {
		case !wanted:
			f.ignore(name)
		case slices.Contains(fields[:i], column):
			return File{}, &LineError{Line: 1, Err: fmt.Errorf("two columns named %q", name)}
		default:
			fields[i] = column
		}
	}
	if !slices.Contains(fields, &t.Message) {
		return File{}, &LineError{Line: 1, Err: fmt.Errorf("no column %q in the header: %s", "message", strings.Join(header, ", "))}
	}
	for {
		row, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return f.finish()
		}
		if err != nil {
			return File{}, csvError(err)
		}
		t.Line, _ = reader.FieldPos(0)
		for i, field := range fields {
			if field != nil {
				*field = row[i]
			}
		}
		if err := f.add(t); err != nil {
			return File{}, &LineError{Line: t.Line, Err: err}
		}
	}
}

func csvError(err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return &LineError{Line: parse.StartLine, Err: parse.Err}
	}
	return err
}

func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
	return -1
}
