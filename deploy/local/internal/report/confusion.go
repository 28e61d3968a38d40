package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Confusion counts how often people and answers agree. The zero value is not usable; see NewConfusion.
type Confusion struct {
	departments []string
	counts      [][]int // by what people say, then by answer; the last column is "no answer"
	total       int
}

// NewConfusion returns an empty count over the departments.
func NewConfusion(departments []string) *Confusion {
	c := &Confusion{departments: departments, counts: make([][]int, len(departments))}
	for i := range c.counts {
		c.counts[i] = make([]int, len(departments)+1)
	}
	return c
}

// Add counts one ticket; the answer "" is none. Both have to be among the departments, which is otherwise an error.
func (c *Confusion) Add(truth, answer string) error {
	row, column := c.index(truth), c.index(answer)
	if answer == "" {
		column = len(c.departments)
	}
	if row < 0 || column < 0 {
		return fmt.Errorf("count an answer: %q or %q is none of the %d departments", truth, answer, len(c.departments))
	}
	c.counts[row][column]++
	c.total++
	return nil
}

func (c *Confusion) index(department string) int {
	return slices.IndexFunc(c.departments, func(d string) bool { return SameDepartment(d, department) })
}

// Total is how many tickets were counted.
func (c *Confusion) Total() int { return c.total }

// Accuracy is the share of answers that agree; a ticket without an answer does not. It is 0 of nothing.
func (c *Confusion) Accuracy() float64 {
	agreed := 0
	for i := range c.departments {
		agreed += c.counts[i][i]
	}
	return float64(agreed) / float64(max(c.total, 1))
}

const (
	widestMatrix = 12 // departments; beyond, a terminal has no room
	worstPairs   = 15
)

// Write shows the matrix, or, of one too wide for a terminal, what is confused most. It reports whether that was all.
func (c *Confusion) Write(w io.Writer) (whole bool) {
	if len(c.departments) > widestMatrix {
		c.writeWorst(w)
		return false
	}
	t := newTable()
	header := table.Row{"people say", "answers:"}
	for i := range c.departments {
		header = append(header, i+1)
	}
	unanswered := slices.ContainsFunc(c.counts, func(row []int) bool { return row[len(row)-1] > 0 })
	if unanswered {
		header = append(header, "none")
	}
	t.AppendHeader(append(header, "right"))
	for i, d := range c.departments {
		row := table.Row{d, i + 1}
		for _, n := range c.counts[i][:len(c.departments)] {
			row = append(row, countOrDot(n))
		}
		if unanswered {
			row = append(row, countOrDot(c.counts[i][len(c.departments)]))
		}
		t.AppendRow(append(row, percent(c.counts[i][i], sum(c.counts[i]))))
	}
	var columns []table.ColumnConfig
	for i := range header {
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	render(w, t)
	return true
}

func (c *Confusion) writeWorst(w io.Writer) {
	type pair struct{ truth, answer, count int }
	var pairs []pair
	for i, row := range c.counts {
		for j, n := range row {
			if i != j && n > 0 {
				pairs = append(pairs, pair{i, j, n})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(b.count, a.count) })
	t := newTable()
	t.AppendHeader(table.Row{"people say", "the answer is", "tickets", "of"})
	for _, p := range pairs[:min(worstPairs, len(pairs))] {
		t.AppendRow(table.Row{c.departments[p.truth], c.name(p.answer), p.count, sum(c.counts[p.truth])})
	}
	render(w, t)
}

// WriteCSV writes the whole matrix, for what a terminal has no room for.
func (c *Confusion) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	header := []string{"people say"}
	for j := range len(c.departments) + 1 {
		header = append(header, c.name(j))
	}
	rows := [][]string{header}
	for i, counts := range c.counts {
		row := []string{c.departments[i]}
		for _, n := range counts {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, row)
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write the confusion matrix: %w", err)
	}
	return nil
}

func (c *Confusion) name(column int) string {
	if column == len(c.departments) {
		return "(no answer)"
	}
	return c.departments[column]
}

func countOrDot(n int) string {
	if n == 0 {
		return "·"
	}
	return strconv.Itoa(n)
}

func percent(part, whole int) string {
	if whole == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

func sum(row []int) int {
	total := 0
	for _, n := range row {
		total += n
	}
	return total
}
