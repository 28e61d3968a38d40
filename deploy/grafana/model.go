package main

import (
	"encoding/json"
	"fmt"
)

// board is a dashboard: rows of panels, two beside each other.
type board struct {
	name, title string
	panels      []panel
}

// panel is a graph of one or more queries, or a single number.
type panel struct {
	title, about string
	unit         string // of Grafana's: s, currencyUSD, short, reqps, percentunit, bytes
	number       bool   // the last value alone
	queries      []query
}

type query struct{ legend, expr string }

const (
	width  = 12
	height = 8
)

func (b board) file() string { return "evalonce-" + b.name + ".json" }

// encode returns what Grafana imports. It asks for the data source, and has no other variable: the routes, versions and
// models of a system are few enough to be seen together.
func (b board) encode() ([]byte, error) {
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${datasource}"}
	panels := make([]object, len(b.panels))
	for i, p := range b.panels {
		targets := make([]object, len(p.queries))
		for j, q := range p.queries {
			targets[j] = object{"datasource": source, "expr": q.expr, "legendFormat": q.legend, "refId": string(rune('A' + j))}
		}
		kind := "timeseries"
		if p.number {
			kind = "stat"
		}
		panels[i] = object{
			"id": i + 1, "type": kind, "title": p.title, "description": p.about, "datasource": source, "targets": targets,
			"gridPos":     object{"x": i % 2 * width, "y": i / 2 * height, "w": width, "h": height},
			"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}},
		}
	}
	text, err := json.MarshalIndent(object{
		"uid": "evalonce-" + b.name, "title": b.title, "tags": []string{"evalonce"}, "schemaVersion": 39, "version": 1, "editable": true,
		"refresh": "30s", "time": object{"from": "now-6h", "to": "now"}, "panels": panels,
		"links":      []object{{"title": "EvalOnce", "type": "dashboards", "tags": []string{"evalonce"}, "asDropdown": true}},
		"templating": object{"list": []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the dashboard %s: %w", b.name, err)
	}
	return append(text, '\n'), nil
}
