package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Report is everything that was measured.
type Report struct {
	Machine Machine  `json:"machine"`
	Scale   float64  `json:"scale"` // of the full size; figures of less than 1 are for a look only
	Rows    []Result `json:"rows"`
}

// Reached reports whether every row has reached what it must.
func (r Report) Reached() bool {
	return !slices.ContainsFunc(r.Rows, func(row Result) bool { return row.Reached != nil && !*row.Reached })
}

// WriteTable writes the rows for people, and what they were measured on.
func (r Report) WriteTable(w io.Writer) {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"what", "measured", "against", "measured", "ratio", "must", ""})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: text.AlignRight}, {Number: 4, Align: text.AlignRight}, {Number: 5, Align: text.AlignRight},
	})
	for i, row := range r.Rows {
		if i > 0 && row.Group != r.Rows[i-1].Group {
			t.AppendSeparator()
		}
		against, peer, ratio, verdict := "", "", "", ""
		if row.Against != nil {
			against, peer = row.Against.Name, quantity(row.Against.Value, row.Unit)
		}
		if row.Ratio != nil {
			ratio = strconv.FormatFloat(*row.Ratio, 'f', 2, 64)
		}
		if row.Reached != nil {
			verdict = "reached"
			if !*row.Reached {
				verdict = "NOT REACHED"
			}
		}
		t.AppendRow(table.Row{row.Name, quantity(row.Value, row.Unit), against, peer, ratio, row.Must, verdict})
	}
	fmt.Fprintln(w, t.Render())
	m := r.Machine
	fmt.Fprintf(w, "%d cores of %s, %.0f GiB of memory, %.0f fsyncs/s of 8 KiB, %s, Go %s\n",
		m.Cores, m.CPU, float64(m.MemoryBytes)/(1<<30), m.FsyncsPerSec, m.OS, strings.TrimPrefix(m.Go, "go"))
	settings := make([]string, 0, len(m.Settings))
	for name, value := range m.Settings {
		settings = append(settings, name+"="+value)
	}
	slices.Sort(settings)
	version, _, _ := strings.Cut(m.Postgres, " ")
	const width = 120
	for line := range strings.Lines(text.WrapSoft(fmt.Sprintf("River %s. Postgres %s with %s", m.River, version, strings.Join(settings, ", ")), width)) {
		fmt.Fprintln(w, strings.TrimSpace(line))
	}
	if r.Scale != 1 {
		fmt.Fprintf(w, "At %g of the full size: for a look only.\n", r.Scale)
	}
}

// quantity keeps three digits that say something.
func quantity(v *float64, unit string) string {
	switch {
	case v == nil:
		return "not measured"
	case math.Abs(*v) >= 100 || *v == math.Trunc(*v):
		return Thousands(int(math.Round(*v))) + " " + unit
	case math.Abs(*v) >= 10:
		return strconv.FormatFloat(*v, 'f', 1, 64) + " " + unit
	}
	return strconv.FormatFloat(*v, 'f', 2, 64) + " " + unit
}

// Thousands writes a number with commas.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// WriteJSON writes the report for machines.
func (r Report) WriteJSON(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil { //nolint:gosec // figures are no secret
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}
