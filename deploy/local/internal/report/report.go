// Package report says in tables, and in one JSON file, what became of a run: the samples, the sums, and, where people
// had decided before, how often the answers agree with them.
//
// Text of tickets is cleaned before it reaches a terminal, which would obey what it hides.
package report

import (
	"cmp"
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
	samplePrint = 44 // columns of a terminal
)

// WriteSamples shows some tickets, from the most to the least urgent.
func WriteSamples(w io.Writer, samples []Sample) {
	chosen := choose(samples)
	judged := slices.ContainsFunc(chosen, func(s Sample) bool { return s.Truth != "" })
	header := table.Row{"ticket", "department", "priority", "urgent", "score", "call"}
	if judged {
		header = append(header, "people say")
	}
	t := newTable()
	t.AppendHeader(header)
	for _, s := range chosen {
		call := "own"
		if !s.OwnCall {
			call = "twin's"
		}
		row := table.Row{excerpt(s), s.Department, s.Priority, fmt.Sprintf("%.3f", s.IsUrgent), fmt.Sprintf("%.3f", s.UrgencyScore), call}
		if judged {
			row = append(row, agreement(s))
		}
		t.AppendRow(row)
	}
	render(w, t)
}

// choose takes samples that look different: first one of each score, then others, evenly spread over the ranks; and
// each text once.
func choose(samples []Sample) []Sample {
	seenText, seenScore := map[string]bool{}, map[float64]bool{}
	var ofEachScore, others []Sample
	for _, s := range byUrgency(samples) {
		line := excerpt(s)
		if seenText[line] {
			continue
		}
		seenText[line] = true
		if seenScore[s.UrgencyScore] {
			others = append(others, s)
			continue
		}
		seenScore[s.UrgencyScore] = true
		ofEachScore = append(ofEachScore, s)
	}
	chosen := spread(ofEachScore, sampleRows)
	return byUrgency(append(chosen, spread(others, sampleRows-len(chosen))...))
}

func byUrgency(samples []Sample) []Sample {
	return slices.SortedStableFunc(slices.Values(samples), func(a, b Sample) int { return cmp.Compare(b.UrgencyScore, a.UrgencyScore) })
}

// spread takes n, at even distances, the first and the last among them.
func spread(samples []Sample, n int) []Sample {
	if len(samples) <= n {
		return slices.Clone(samples)
	}
	chosen := make([]Sample, n)
	for i := range chosen {
		chosen[i] = samples[i*(len(samples)-1)/max(n-1, 1)]
	}
	return chosen
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

const remarkWidth = 80

// WriteLines shows the sums.
func WriteLines(w io.Writer, lines []Line) {
	t := newTable()
	for _, l := range lines {
		t.AppendRow(table.Row{l.Name, l.Value, l.Remark})
	}
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: text.AlignRight}, {Number: 3, WidthMax: remarkWidth, WidthMaxEnforcer: text.WrapSoft},
	})
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
