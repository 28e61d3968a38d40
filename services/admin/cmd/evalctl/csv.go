package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// hasCSV marks a command that can print CSV.
func hasCSV(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{csvMark: "yes"}
	return cmd
}

const csvMark = "csv"

// checkOutput refuses, before anything is done, a form that the command does not have.
func (c *cli) checkOutput(cmd *cobra.Command) error {
	if c.flags.output == asCSV && cmd.Annotations[csvMark] == "" {
		return usageError{errors.New("this command has no output as CSV: use table or json")}
	}
	return nil
}

// writeCSV writes rows of cells, the first of them the header.
func writeCSV(w io.Writer, rows ...[]string) error {
	t := csv.NewWriter(w)
	for _, row := range rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = formulaSafe(cell)
		}
		if err := t.Write(safe); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	t.Flush()
	if err := t.Error(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// formulaSafe keeps a spreadsheet from taking for a formula what others have written.
func formulaSafe(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
