// Package report says in tables, and in one JSON file, what became of a run: the samples, the sums, and, where people
// had decided before, how often the answers agree with them.
//
// Text of tickets is cleaned before it reaches a terminal, which would obey what it hides.
package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/evalonce/evalonce/pkg/failure"
)

// Percentile is the smallest of the durations that at least p per cent of them do not exceed; 0 for none.
func Percentile(durations []time.Duration, p float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Sample is one ticket as a table shows it.
type Sample struct {
	Subject, Message string
	Truth            string // "" when nobody decided
	Department       string
	Priority         string
	IsUrgent         float64
	UrgencyScore     float64
	OwnCall          bool // false when the answer was there already, or on its way
}

const (
	sampleRows  = 14
	samplePrint = 52 // columns of a terminal
)

// WriteSamples shows some tickets, from the most to the least urgent, evenly spread. Equal answers to equal text
// stand side by side, so a text is shown once.
func WriteSamples(w io.Writer, samples []Sample) {
	byUrgency := slices.SortedStableFunc(slices.Values(samples), func(a, b Sample) int {
		switch {
		case a.UrgencyScore > b.UrgencyScore:
			return -1
		case a.UrgencyScore < b.UrgencyScore:
			return 1
		}
		return 0
	})
	seen := map[string]bool{}
	byUrgency = slices.DeleteFunc(byUrgency, func(s Sample) bool {
		line := excerpt(s)
		defer func() { seen[line] = true }()
		return seen[line]
	})
	judged := slices.ContainsFunc(byUrgency, func(s Sample) bool { return s.Truth != "" })
	header := table.Row{"ticket", "department", "priority", "urgent", "score", "answered by"}
	if judged {
		header = slices.Insert(header, 2, any("as people say"))
	}
	t := newTable()
	t.AppendHeader(header)
	for i := range min(sampleRows, len(byUrgency)) {
		s := byUrgency[i*(len(byUrgency)-1)/max(min(sampleRows, len(byUrgency))-1, 1)]
		call := "its own call"
		if !s.OwnCall {
			call = "a twin's call"
		}
		row := table.Row{excerpt(s), s.Department, s.Priority, fmt.Sprintf("%.3f", s.IsUrgent), fmt.Sprintf("%.3f", s.UrgencyScore), call}
		if judged {
			row = slices.Insert(row, 2, any(agreement(s)))
		}
		t.AppendRow(row)
	}
	render(w, t)
}

func agreement(s Sample) string {
	switch {
	case s.Truth == "":
		return ""
	case SameDepartment(s.Truth, s.Department):
		return "the same"
	}
	return s.Truth
}

func excerpt(s Sample) string {
	line := failure.Excerpt([]byte(s.Subject + " · " + s.Message))
	return text.Snip(strings.TrimPrefix(line, "· "), samplePrint, "…")
}

// SameDepartment compares as the evaluation's contract does.
func SameDepartment(a, b string) bool {
	return strings.EqualFold(strings.TrimSpace(a), strings.TrimSpace(b))
}

// Line is one row of the sums.
type Line struct {
	Name, Value, Remark string
}

// WriteLines shows the sums.
func WriteLines(w io.Writer, lines []Line) {
	t := newTable()
	for _, l := range lines {
		t.AppendRow(table.Row{l.Name, l.Value, l.Remark})
	}
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, Align: text.AlignRight}})
	render(w, t)
}

func newTable() table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	return t
}

func render(w io.Writer, t table.Writer) { fmt.Fprintln(w, t.Render()) }
