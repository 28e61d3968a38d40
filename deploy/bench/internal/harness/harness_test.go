package harness_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
)

// log keeps the order of things.
type log struct{ lines []string }

func (l *log) Began(_, subject string, _, _ int)               { l.lines = append(l.lines, subject) }
func (l *log) Ended(string, string, int, int, harness.Figures) {}
func (l *log) subject(name string, values ...float64) *harness.Subject {
	return &harness.Subject{
		Name:    name,
		Prepare: func(context.Context) error { l.lines = append(l.lines, "prepare "+name); return nil },
		Run: func(context.Context) (harness.Figures, error) {
			v := values[0]
			values = values[1:]
			if v < 0 {
				return nil, errors.New("broken")
			}
			return harness.Figures{"rate": v}, nil
		},
		Close: func(context.Context) error { l.lines = append(l.lines, "close "+name); return nil },
	}
}

func TestRunsAreInterleavedAndMediansCompared(t *testing.T) {
	t.Parallel()
	l := &log{}
	ours, peer := l.subject("ours", 30, 90, 45), l.subject("peer", 10, 20, 15)
	g := harness.Group{Name: "g", Rounds: 3, Rows: []harness.Row{
		{Name: "faster", Figure: "rate", Of: ours, Against: peer, Must: harness.AtLeast(3)},
		{Name: "not slower", Figure: "rate", Of: ours, Against: peer, Must: harness.AtMost(2)},
		{Name: "alone", Figure: "rate", Of: ours, Must: harness.AtLeast(50)},
		{Name: "told", Figure: "rate", Of: ours},
		{Name: "unknown", Figure: "nothing", Of: ours, Against: peer, Must: harness.AtLeast(1)},
	}}
	if g.Runs() != 6 {
		t.Errorf("%d runs", g.Runs())
	}
	results, err := g.Measure(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(l.lines, ","), "prepare ours,prepare peer,ours,peer,ours,peer,ours,peer,close peer,close ours"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	yes, no := true, false
	for i, want := range []struct {
		reached *bool
		ratio   float64
	}{{&yes, 3}, {&no, 3}, {&no, 0}, {nil, 0}, {nil, 0}} {
		r := results[i]
		if !reflect.DeepEqual(r.Reached, want.reached) || (r.Ratio == nil) != (want.ratio == 0) || r.Ratio != nil && *r.Ratio != want.ratio {
			t.Errorf("%s: %+v", r.Name, r)
		}
	}
	if r := results[0]; *r.Value != 45 || *r.Against.Value != 15 || len(r.Runs) != 3 {
		t.Errorf("%+v", r)
	}
	if r := results[4]; r.Value != nil {
		t.Errorf("what was not measured has a value: %+v", r)
	}
}

func TestWhatWasPreparedIsClosed(t *testing.T) {
	t.Parallel()
	l := &log{}
	g := harness.Group{Name: "g", Rounds: 1, Rows: []harness.Row{{Of: l.subject("ours", -1), Against: l.subject("peer", 1)}}}
	if _, err := g.Measure(t.Context(), l); err == nil || !strings.Contains(err.Error(), "run 1 of ours: broken") {
		t.Errorf("got %v", err)
	}
	if got := l.lines[len(l.lines)-2:]; got[0] != "close peer" || got[1] != "close ours" {
		t.Errorf("got %v", got)
	}
}
