// Package metrics is all that EvalOnce measures: one catalogue, and the instruments that are made from it.
//
// What it guarantees: no instrument exists that the [Catalogue] does not describe, and none has a label that the catalogue
// does not name. A label has a closed set of values, or it says what bounds them. A value outside its closed set is
// counted as [Other], so that a mistake makes one series more and not one for each ticket.
//
// Names are OpenTelemetry's, with dots and with units apart; [Metric.Prometheus] is what Prometheus is shown. Documents,
// dashboards and alerts are checked against the same catalogue.
package metrics

import (
	"fmt"
	"strings"
)

// Kind is how a metric behaves.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"   // only grows, until its process ends
	Gauge     Kind = "gauge"     // of now
	Histogram Kind = "histogram" // of single values
)

// Service exposes metrics.
type Service string

// The services. Every is all of them but the sweeper, which exposes nothing and pushes where OTLP is configured.
const (
	TicketAPIService Service = "ticket-api"
	WorkerService    Service = "evaluator-worker"
	AdminService     Service = "admin"
	SweeperService   Service = "sweeper"
	RPCServices      Service = "ticket-api, admin"
	Every            Service = "every service"
)

// Other stands for a label's value outside its closed set. Only a mistake brings it about.
const Other = "other"

// Label is a label of a metric: one of Values, or as many as Bound says.
type Label struct {
	Name   string
	Values []string
	Bound  string
}

// Has reports whether the label may have a value.
func (l Label) Has(value string) bool {
	for _, v := range l.Values {
		if v == value {
			return true
		}
	}
	return l.Bound != ""
}

// Metric describes what is measured.
type Metric struct {
	Name    string // such as evalonce.tickets
	Unit    string // of UCUM: s, By, 1, or what is counted, such as {ticket}
	Kind    Kind
	Help    string
	Labels  []Label
	Service Service
	Buckets []float64 // of a histogram
	// Snapshot says that it is read from the tables, once for the whole fleet, and exposed with the same values by every
	// replica of admin.
	Snapshot bool
	// Library says that a library measures it: it is in the catalogue for those who ask for it.
	Library bool
}

// Prometheus is the metric's name as Prometheus is shown it; a histogram's series add _bucket, _sum and _count.
func (m Metric) Prometheus() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	switch {
	case m.Unit == "s":
		name += "_seconds"
	case m.Unit == "By":
		name += "_bytes"
	case m.Unit != "" && m.Unit != "1" && !strings.HasPrefix(m.Unit, "{"):
		name += "_" + m.Unit
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// Series are the names of the metric's series in Prometheus.
func (m Metric) Series() []string {
	name := m.Prometheus()
	if m.Kind == Histogram {
		return []string{name + "_bucket", name + "_sum", name + "_count"}
	}
	return []string{name}
}

// Label returns the label of a name.
func (m Metric) Label(name string) (Label, bool) {
	for _, l := range m.Labels {
		if l.Name == name {
			return l, true
		}
	}
	return Label{}, false
}

// Table is the catalogue as a table in Markdown.
func Table() string {
	var b strings.Builder
	b.WriteString("| metric | kind | of | labels | meaning |\n|---|---|---|---|---|\n")
	for _, m := range Catalogue() {
		var labels []string
		for _, l := range m.Labels {
			if l.Bound != "" {
				labels = append(labels, fmt.Sprintf("`%s`: %s", l.Name, l.Bound))
				continue
			}
			labels = append(labels, fmt.Sprintf("`%s`: %s", l.Name, strings.Join(l.Values, ", ")))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Prometheus(), m.Kind, m.Service, strings.Join(labels, "<br>"), m.Help)
	}
	return b.String()
}
