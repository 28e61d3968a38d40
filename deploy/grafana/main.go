// Command grafana writes the dashboards of EvalOnce, as JSON that Grafana imports, into the folder that it is given.
//
// They have one description, in boards.go. What is read of the tables is shown by every replica of admin with the same
// values, hence max where others have sum. Each query asks for what pkg/metrics describes, and nothing else: a test parses
// them all.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: grafana FOLDER")
	}
	for _, b := range boards() {
		text, err := b.encode()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(args[0], b.file()), text, 0o644); err != nil { //nolint:gosec // they are for everyone
			return fmt.Errorf("write the dashboard %s: %w", b.name, err)
		}
	}
	return nil
}
