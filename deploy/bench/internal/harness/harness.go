// Package harness measures things against each other on one machine: run after run, ours and the peer's by turns, so
// that whatever disturbs the machine disturbs both, and tells the medians and their ratio.
//
// It judges nothing by a single run, and hides none: every run's value is in the file for machines.
package harness

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// Figures are what one run came to, by name.
type Figures map[string]float64

// Subject is one of the things that are measured against each other.
type Subject struct {
	Name string
	// Prepare, if any, is called once before the first run, and Close, if any, after the last, also of one that failed.
	Prepare func(ctx context.Context) error
	Run     func(ctx context.Context) (Figures, error)
	Close   func(ctx context.Context) error
}

// Row is one line of the table: a figure of a subject, by itself or against the same figure of another.
type Row struct {
	Name    string
	Unit    string
	Figure  string
	Of      *Subject
	Against *Subject // nil for a figure that stands alone
	// AgainstFigure is for a figure that is compared with another one's.
	AgainstFigure string
	Must          Must
}

// Group is what is measured together. Its subjects are those of its rows.
type Group struct {
	Name   string
	Rounds int
	Rows   []Row
}

// subjects are in the order in which the rows name them, those without a row of their own last.
func (g Group) subjects() []*Subject {
	var all []*Subject
	add := func(s *Subject) {
		if s != nil && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, r := range g.Rows {
		add(r.Of)
		add(r.Against)
	}
	return all
}

// Must is what a row has to reach: its ratio, or its value where it stands alone. The zero value asks for nothing.
type Must struct {
	op    string
	bound float64
}

// AtLeast is a lower bound.
func AtLeast(bound float64) Must { return Must{">=", bound} }

// AtMost is an upper bound.
func AtMost(bound float64) Must { return Must{"<=", bound} }

func (m Must) String() string {
	if m.op == "" {
		return ""
	}
	return m.op + " " + strconv.FormatFloat(m.bound, 'f', -1, 64)
}

func (m Must) reached(v float64) bool {
	switch m.op {
	case ">=":
		return v >= m.bound
	case "<=":
		return v <= m.bound
	}
	return true
}

// Result is a row with what was measured.
type Result struct {
	Name    string    `json:"name"`
	Value   *float64  `json:"value"` // the median of Runs; null when this machine cannot tell
	Unit    string    `json:"unit"`
	Against *Peer     `json:"against"`
	Ratio   *float64  `json:"ratio"` // of the medians
	Must    string    `json:"must"`  // of the ratio, or of the value where there is none; empty for what is only reported
	Reached *bool     `json:"reached"`
	Runs    []float64 `json:"runs"`
	Group   string    `json:"group"`
}

// Peer is what a row was measured against.
type Peer struct {
	Name  string    `json:"name"`
	Value *float64  `json:"value"`
	Runs  []float64 `json:"runs"`
}

// Observer is told how a measurement goes.
type Observer interface {
	// Began is called before a run, and Ended after it.
	Began(group, subject string, round, rounds int)
	Ended(group, subject string, round, rounds int, f Figures)
}

// Runs is how many runs the group comes to.
func (g Group) Runs() int { return g.Rounds * len(g.subjects()) }

// Measure runs the group's subjects by turns and returns its rows.
func (g Group) Measure(ctx context.Context, o Observer) (results []Result, err error) {
	subjects := g.subjects()
	runs := make(map[*Subject][]Figures, len(subjects))
	for _, s := range subjects {
		if s.Close != nil {
			defer func() {
				if e := s.Close(context.WithoutCancel(ctx)); e != nil && err == nil {
					err = fmt.Errorf("%s: clean up after %s: %w", g.Name, s.Name, e)
				}
			}()
		}
		if s.Prepare != nil {
			if err := s.Prepare(ctx); err != nil {
				return nil, fmt.Errorf("%s: prepare %s: %w", g.Name, s.Name, err)
			}
		}
	}
	for round := range g.Rounds {
		for _, s := range subjects {
			o.Began(g.Name, s.Name, round+1, g.Rounds)
			f, err := s.Run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: run %d of %s: %w", g.Name, round+1, s.Name, err)
			}
			o.Ended(g.Name, s.Name, round+1, g.Rounds, f)
			runs[s] = append(runs[s], f)
		}
	}
	for _, r := range g.Rows {
		results = append(results, r.result(g.Name, runs))
	}
	return results, nil
}

func (r Row) result(group string, runs map[*Subject][]Figures) Result {
	res := Result{Name: r.Name, Unit: r.Unit, Must: r.Must.String(), Group: group, Runs: valuesOf(runs[r.Of], r.Figure)}
	res.Value = median(res.Runs)
	judged := res.Value
	if r.Against != nil {
		figure := r.Figure
		if r.AgainstFigure != "" {
			figure = r.AgainstFigure
		}
		res.Against = &Peer{Name: r.Against.Name, Runs: valuesOf(runs[r.Against], figure)}
		res.Against.Value = median(res.Against.Runs)
		if res.Value != nil && res.Against.Value != nil && *res.Against.Value != 0 {
			ratio := *res.Value / *res.Against.Value
			res.Ratio = &ratio
		}
		judged = res.Ratio
	}
	if res.Must != "" && judged != nil {
		reached := r.Must.reached(*judged)
		res.Reached = &reached
	}
	return res
}

func valuesOf(runs []Figures, figure string) []float64 {
	values := make([]float64, 0, len(runs))
	for _, f := range runs {
		if v, ok := f[figure]; ok {
			values = append(values, v)
		}
	}
	return values
}

func median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	m := sorted[len(sorted)/2]
	if len(sorted)%2 == 0 {
		m = (m + sorted[len(sorted)/2-1]) / 2
	}
	return &m
}
