package ticketfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

func readJSONL(data []byte, truthColumn string) (File, error) {
	var f File
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		t, err := f.decode(line, truthColumn)
		if err == nil {
			t.Line = number
			err = f.add(t)
		}
		if err != nil {
			return File{}, &LineError{Line: number, Err: err}
		}
	}
	return f.finish()
}

// decode reads names as they are written: encoding/json would take "MESSAGE" for "message", and the last of two.
func (f *File) decode(line []byte, truthColumn string) (Ticket, error) {
	if !utf8.Valid(line) {
		return Ticket{}, errors.New("not valid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return Ticket{}, errors.New("not a JSON object")
	}
	var t Ticket
	columns := map[string]*string{truthColumn: &t.Truth, "external_id": &t.ExternalID, "subject": &t.Subject, "message": &t.Message}
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return Ticket{}, fmt.Errorf("not valid JSON: %w", err)
		}
		name, _ := token.(string) // a key cannot be anything else
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return Ticket{}, fmt.Errorf("not valid JSON: %w", err)
		}
		column, wanted := columns[name]
		switch {
		case !wanted:
			f.ignore(name)
			continue
		case seen[name]:
			return Ticket{}, fmt.Errorf("%q stands there twice", name)
		}
		seen[name] = true
		if *column, err = text(value); err != nil {
			return Ticket{}, fmt.Errorf("%q %w", name, err)
		}
	}
	if _, err := decoder.Token(); err != nil {
		return Ticket{}, fmt.Errorf("not valid JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Ticket{}, errors.New("something follows the JSON object")
	}
	if !seen["message"] {
		return Ticket{}, errors.New(`no "message"`)
	}
	return t, nil
}

// text takes numbers too, because many identifiers and some labels are; null is absent.
func text(value json.RawMessage) (string, error) {
	if string(value) == "null" {
		return "", nil
	}
	var s string
	if json.Unmarshal(value, &s) == nil {
		return s, nil
	}
	var n json.Number
	if json.Unmarshal(value, &n) == nil {
		return n.String(), nil
	}
	return "", errors.New("is neither a text nor a number")
}

func (f *File) ignore(column string) {
	if !slices.Contains(f.Ignored, column) {
		f.Ignored = append(f.Ignored, column)
	}
}
