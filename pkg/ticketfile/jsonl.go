package ticketfile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

func readJSONL(r *bufio.Reader, reader *Reader) (next func() (Row, error), offset func() int64) {
	number, read := 0, int64(0)
	next = func() (Row, error) {
		for {
			line, n, err := readLine(r)
			read += n
			if err != nil && n == 0 {
				return Row{}, err
			}
			number++
			if err != nil {
				return Row{}, &LineError{Line: number, Err: err}
			}
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
			values, err := reader.decode(line)
			if err != nil {
				return Row{}, &LineError{Line: number, Err: err}
			}
			return Row{Line: number, Values: values}, nil
		}
	}
	return next, func() int64 { return read }
}

// readLine returns a line and how many bytes it took of the file. Of one that is too large nothing is kept.
func readLine(r *bufio.Reader) (line []byte, n int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		n += int64(len(part))
		if n <= MaxRowBytes {
			line = append(line, part...)
		} else {
			line = nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && n > 0: // a last line without an end
		case err != nil:
			return nil, 0, err
		}
		if n > MaxRowBytes {
			return nil, n, errRowTooLarge
		}
		return line, n, nil
	}
}

// decode reads names as they are written: encoding/json would take "MESSAGE" for "message", and the last of two.
func (r *Reader) decode(line []byte) (map[string]string, error) {
	if !utf8.Valid(line) {
		return nil, errors.New("not valid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	values := map[string]string{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, invalid(err)
		}
		name, _ := token.(string) // a key cannot be anything else
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, invalid(err)
		}
		switch {
		case !r.columns.has(name):
			r.ignore(name)
			continue
		case has(values, name):
			return nil, fmt.Errorf("%q stands there twice", name)
		}
		s, err := text(value)
		if err != nil {
			return nil, fmt.Errorf("%q %w", name, err)
		}
		values[name] = s
	}
	if _, err := decoder.Token(); err != nil {
		return nil, invalid(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	for _, column := range r.columns.Required {
		if !has(values, column) {
			return nil, fmt.Errorf("no %q", column)
		}
	}
	return values, nil
}

// invalid is the decoder's complaint. The end of a line is not that of the file.
func invalid(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("not valid JSON: %w", err)
}

func has(values map[string]string, name string) bool {
	_, ok := values[name]
	return ok
}

// text takes numbers and truth values too, because many identifiers and some labels are; null is empty.
func text(value json.RawMessage) (string, error) {
	switch string(value) {
	case "null":
		return "", nil
	case "true", "false":
		return string(value), nil
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
