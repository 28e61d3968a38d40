package report_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for _, test := range []struct {
		of   []time.Duration
		p    float64
		want time.Duration
	}{
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 99.1, 100},
		{hundred, 100, 100},
		{hundred, 0, 1},
		{[]time.Duration{7}, 99, 7},
		{[]time.Duration{9, 3}, 50, 3},
		{[]time.Duration{9, 3}, 51, 9},
		{nil, 50, 0},
	} {
		if got := report.Percentile(test.of, test.p); got != test.want {
			t.Errorf("%v %% of %d: got %d, want %d", test.p, len(test.of), got, test.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the argument was sorted")
	}
}

func confusion(t *testing.T, departments []string, pairs ...[2]string) *report.Confusion {
	t.Helper()
	c := report.NewConfusion(departments)
	for _, p := range pairs {
		if err := c.Add(p[0], p[1]); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestConfusion(t *testing.T) {
	t.Parallel()
	c := confusion(t, []string{"billing", "sales"},
		[2]string{"billing", "billing"}, [2]string{" BILLING", "billing"}, [2]string{"billing", "sales"}, [2]string{"sales", ""})
	if got := c.Accuracy(); got != 0.5 || c.Total() != 4 {
		t.Errorf("accuracy %v of %d: an unanswered ticket is not right, and letter case is no difference", got, c.Total())
	}
	for _, pair := range [][2]string{{"other", "sales"}, {"sales", "other"}} {
		if err := c.Add(pair[0], pair[1]); err == nil {
			t.Errorf("%v was counted", pair)
		}
	}
	if c.Total() != 4 {
		t.Error("a refused pair was counted")
	}
	if got := report.NewConfusion([]string{"a"}).Accuracy(); got != 0 {
		t.Errorf("accuracy of nothing is %v", got)
	}
	var out strings.Builder
	c.Write(&out)
	want := `
┌────────────┬──────────┬───┬───┬──────┬───────┐
│ people say │ answers: │ 1 │ 2 │ none │ right │
├────────────┼──────────┼───┼───┼──────┼───────┤
│ billing    │        1 │ 2 │ 1 │    · │  67 % │
│ sales      │        2 │ · │ · │    1 │   0 % │
└────────────┴──────────┴───┴───┴──────┴───────┘
`
	if out.String() != want[1:] {
		t.Errorf("got\n%swant%s", out.String(), want)
	}
}

func TestConfusionOfManyDepartmentsShowsTheWorst(t *testing.T) {
	t.Parallel()
	var departments []string
	for i := range 77 {
		departments = append(departments, fmt.Sprintf("d%02d", i))
	}
	var pairs [][2]string
	for i := range 40 {
		for range i {
			pairs = append(pairs, [2]string{departments[i], departments[i+1]})
		}
	}
	c := confusion(t, departments, append(pairs, [2]string{"d39", "d39"}, [2]string{"d38", ""})...)
	var out strings.Builder
	c.Write(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 15+4 || !strings.Contains(lines[3], "│ d39        │ d40           │      39 │ 40 │") {
		t.Errorf("got\n%s", out.String())
	}
	var all strings.Builder
	if err := c.WriteCSV(&all); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(all.String()), "\n")
	if len(rows) != 78 || !strings.HasSuffix(rows[0], "d76,(no answer)") || !strings.HasPrefix(rows[3], "d02,0,0,0,2,0,") || !strings.HasSuffix(rows[39], ",1") {
		t.Errorf("got %d rows, such as\n%s\n%s", len(rows), rows[3], rows[39])
	}
}

func TestWriteSamples(t *testing.T) {
	t.Parallel()
	var samples []report.Sample
	for i := range 100 {
		samples = append(samples, report.Sample{
			Subject: fmt.Sprintf("ticket %d", i), Message: "m", Department: "billing", UrgencyScore: float64(i) / 99, OwnCall: true,
		})
	}
	samples = append(samples, samples[99]) // the same text again
	var out strings.Builder
	report.WriteSamples(&out, samples)
	if got := strings.Count(out.String(), "ticket "); got != 14+1 { // and the header
		t.Errorf("%d rows in\n%s", got, out.String())
	}
	first, last := strings.Index(out.String(), "ticket 99 "), strings.Index(out.String(), "ticket 0 ")
	if first < 0 || last < first || strings.Count(out.String(), "ticket 99 ") != 1 {
		t.Errorf("not from the most to the least urgent:\n%s", out.String())
	}
	if strings.Contains(out.String(), "people") {
		t.Errorf("a column of what nobody said:\n%s", out.String())
	}

	// Few scores: each is shown, and the rest fills up.
	for i := range samples {
		samples[i].UrgencyScore = 0.154
	}
	samples[50].UrgencyScore, samples[51].UrgencyScore = 0.9, 0.1
	out.Reset()
	report.WriteSamples(&out, samples)
	if got := strings.Count(out.String(), "ticket "); got != 14+1 || !strings.Contains(out.String(), "0.900") || !strings.Contains(out.String(), "0.100") {
		t.Errorf("%d rows in\n%s", got, out.String())
	}

	out.Reset()
	report.WriteSamples(&out, []report.Sample{
		{Subject: "\x1b[2Jcleared \u202egnp", Message: strings.Repeat("ü\n", 300), Truth: "Billing", Department: "billing"},
		{Message: "no subject", Truth: "sales", Department: "billing"},
	})
	for _, bad := range []string{"\x1b", "\u202e", "│ ·"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("%q in\n%s", bad, out.String())
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 6 || !strings.Contains(lines[3], "the same") || !strings.Contains(lines[4], "│ sales ") || !strings.Contains(lines[4], "twin's") {
		t.Errorf("got\n%s", out.String())
	}
	out.Reset()
	report.WriteSamples(&out, nil)
}

func TestFigures(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "demo.json")
	accuracy := 0.0
	for _, f := range []report.Figures{{Tickets: 3, Accuracy: &accuracy}, {Tickets: 2}} {
		if err := f.Write(path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]float64
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		want := []string{"create_p50_ms", "create_p99_ms", "dead", "distinct_contents", "evaluations_per_s", "paid_calls", "saved_calls", "succeeded", "tickets"}
		if f.Accuracy != nil {
			want = append([]string{"accuracy"}, want...)
		}
		var names []string
		for name := range got {
			names = append(names, name)
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("got  %q\nwant %q", names, want)
		}
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || left != nil {
		t.Errorf("left behind: %v %v", left, err)
	}
}
