package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// readMessage reads a file, or standard input for "-", as the JSON form of a message or as the same in YAML. Fields
// that are unknown or given twice are errors: a misspelt one would else have its default.
func (c *cli) readMessage(path string, m proto.Message) error {
	data, err := c.readFile(path)
	if err != nil {
		return err
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // some editors begin a file with a byte order mark
	trimmed := bytes.TrimSpace(data)
	if len(trimmed) == 0 {
		return fmt.Errorf("%s is empty", path)
	}
	isJSON := trimmed[0] == '{'
	if !isJSON {
		if data, err = fromYAML(data); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := protojson.Unmarshal(data, m); err != nil {
		where, what := explainJSON(err)
		if !isJSON {
			where = "" // a position in the converted text, which nobody has seen
		}
		return fmt.Errorf("%s%s: %s", path, where, what)
	}
	return nil
}

func (c *cli) readFile(path string) ([]byte, error) {
	if path == "-" {
		data, err := io.ReadAll(c.in)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return data, nil
	}
	return os.ReadFile(path)
}

var documentMarker = regexp.MustCompile(`(?m)^(?:---|\.\.\.)(?:\s|$)`)

// fromYAML converts one document. The library would take the first of several, and say nothing.
func fromYAML(data []byte) ([]byte, error) {
	documents := 0
	for _, part := range documentMarker.Split(string(data), -1) {
		for line := range strings.Lines(part) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '%' {
				documents++
				break
			}
		}
	}
	if documents > 1 {
		return nil, errors.New("more than one YAML document")
	}
	converted, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return converted, nil
}

// jsonError is the form of protojson's errors, which may have a no-break space after the colon.
var jsonError = regexp.MustCompile(`^proto:[\s\x{a0}]*(?:syntax error )?(\(line \d+:\d+\))?:?\s*(.*)$`)

// explainJSON takes an error of protojson apart.
func explainJSON(err error) (where, what string) {
	parts := jsonError.FindStringSubmatch(err.Error())
	if parts == nil {
		return "", err.Error()
	}
	if parts[1] != "" {
		where = " " + parts[1]
	}
	return where, parts[2]
}
