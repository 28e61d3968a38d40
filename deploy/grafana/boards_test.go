package main

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/evalonce/evalonce/pkg/metrics"
)

func catalogue() map[string]metrics.Metric {
	known := map[string]metrics.Metric{}
	for _, m := range metrics.Catalogue() {
		for _, series := range m.Series() {
			known[series] = m
		}
	}
	return known
}

// check parses a query as Prometheus would, and returns what it asks for that nobody measures, and the series that it reads.
func check(expr string) (problems, series []string) {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(expr, "$__rate_interval", "5m"))
	if err != nil {
		return []string{err.Error()}, nil
	}
	known, named := catalogue(), map[string]bool{"le": true}
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		m, ok := known[selector.Name]
		if !ok {
			problems = append(problems, "nobody measures "+selector.Name)
			return nil
		}
		series = append(series, selector.Name)
		for _, l := range m.Labels {
			named[l.Name] = true
		}
		for _, match := range selector.LabelMatchers {
			if match.Name == model.MetricNameLabel {
				continue
			}
			label, ok := m.Label(match.Name)
			if !ok || !label.Has(match.Value) {
				problems = append(problems, selector.Name+" has no "+match.String())
			}
		}
		return nil
	})
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if a, ok := node.(*parser.AggregateExpr); ok {
			for _, name := range a.Grouping {
				if !named[name] {
					problems = append(problems, "nothing has the label "+name)
				}
			}
		}
		return nil
	})
	return problems, series
}

func TestEveryQueryAsksForWhatIsMeasured(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, b := range boards() {
		for _, p := range b.panels {
			for _, q := range p.queries {
				problems, series := check(q.expr)
				for _, problem := range problems {
					t.Errorf("%s, %s: %s\n%s", b.name, p.title, problem, q.expr)
				}
				for _, s := range series {
					shown[catalogue()[s].Name] = true
				}
			}
		}
	}
	elsewhere := []string{ // they are for alerts, or tell what another graph tells
		"evalonce.webhook.endpoints.disabled", "evalonce.db.waits", "evalonce.sweep.ok", "evalonce.sweep.count",
	}
	for _, m := range metrics.Catalogue() {
		if !shown[m.Name] && !slices.Contains(elsewhere, m.Name) {
			t.Errorf("no dashboard shows %s", m.Name)
		}
	}
}

func TestTheCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, expr := range []string{
		"sum(", "sum(evalonce_made_up)", `evalonce_tickets_total{outcome="made_up"}`, `evalonce_tickets_total{made_up="x"}`,
		"sum by (made_up) (evalonce_tickets_total)", "evalonce_tickets",
	} {
		if problems, _ := check(expr); len(problems) == 0 {
			t.Errorf("%s passes", expr)
		}
	}
}

// What is in the folder is what is described: go run . . writes it.
func TestTheFilesAreOfTheDescription(t *testing.T) {
	t.Parallel()
	files := map[string]bool{}
	for _, b := range boards() {
		want, err := b.encode()
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(b.file())
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is not what its description makes of it (%v): make dashboards", b.file(), err)
		}
		files[b.file()] = true
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") && !files[e.Name()] {
			t.Errorf("%s is of no dashboard; there are %v", e.Name(), slices.Sorted(maps.Keys(files)))
		}
	}
}
