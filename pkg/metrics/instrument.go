package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maker makes instruments of the catalogue; its error is for all of them together.
type maker struct {
	meter metric.Meter
	errs  []error
}

func (m *maker) find(name string, kind Kind) Metric {
	for _, d := range Catalogue() {
		if d.Name == name && d.Kind == kind && !d.Library {
			return d
		}
	}
	m.errs = append(m.errs, fmt.Errorf("the catalogue has no %s %s", kind, name))
	return Metric{Name: name, Kind: kind}
}

func (m *maker) err() error { return errors.Join(m.errs...) }

// labelsMost is the most labels that a metric of the catalogue has.
const labelsMost = 5

// labels makes sets of attributes, each of them once: there are as many as the metric has series.
type labels struct {
	labels []Label
	mu     sync.RWMutex
	sets   map[[labelsMost]string]attribute.Set
}

func labelsOf(d Metric) *labels {
	return &labels{labels: d.Labels, sets: map[[labelsMost]string]attribute.Set{}}
}

// set is that of the values, in the order of the catalogue's labels.
func (l *labels) set(values ...string) attribute.Set {
	var key [labelsMost]string
	copy(key[:], values)
	l.mu.RLock()
	set, ok := l.sets[key]
	l.mu.RUnlock()
	if ok {
		return set
	}
	attributes := make([]attribute.KeyValue, len(l.labels))
	for i, label := range l.labels {
		value := key[i]
		if !label.Has(value) {
			value = Other
		}
		attributes[i] = attribute.String(label.Name, value)
	}
	set = attribute.NewSet(attributes...)
	l.mu.Lock()
	l.sets[key] = set
	l.mu.Unlock()
	return set
}

type counter struct {
	*labels
	of metric.Int64Counter
}

func (m *maker) counter(name string) counter {
	d := m.find(name, Counter)
	c, err := m.meter.Int64Counter(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.errs = append(m.errs, err)
	made := counter{labelsOf(d), c}
	if err == nil {
		made.begin()
	}
	return made
}

// seriesMost is how many series of a counter are begun at nothing.
const seriesMost = 8

// begin shows series that are known beforehand with a 0. Of one that begins with its first event, nobody sees the rise.
func (c counter) begin() {
	all := [][]string{nil}
	for _, l := range c.labels.labels {
		var longer [][]string
		for _, values := range all {
			for _, v := range l.Values {
				longer = append(longer, append(slices.Clone(values), v))
			}
		}
		all = longer
	}
	if len(all) > seriesMost {
		return
	}
	for _, values := range all {
		c.of.Add(context.Background(), 0, metric.WithAttributeSet(c.set(values...)))
	}
}

func (c counter) add(ctx context.Context, n int64, values ...string) {
	if n > 0 {
		c.of.Add(ctx, n, metric.WithAttributeSet(c.set(values...)))
	}
}

type sum struct {
	*labels
	of metric.Float64Counter
}

func (m *maker) sum(name string) sum {
	d := m.find(name, Counter)
	c, err := m.meter.Float64Counter(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.errs = append(m.errs, err)
	return sum{labelsOf(d), c}
}

func (s sum) add(ctx context.Context, n float64, values ...string) {
	if n > 0 {
		s.of.Add(ctx, n, metric.WithAttributeSet(s.set(values...)))
	}
}

type histogram struct {
	*labels
	of metric.Float64Histogram
}

func (m *maker) histogram(name string) histogram {
	d := m.find(name, Histogram)
	h, err := m.meter.Float64Histogram(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help), metric.WithExplicitBucketBoundaries(d.Buckets...))
	m.errs = append(m.errs, err)
	return histogram{labelsOf(d), h}
}

func (h histogram) record(ctx context.Context, all []float64, values ...string) {
	if len(all) == 0 {
		return
	}
	option := metric.WithAttributeSet(h.set(values...))
	for _, v := range all {
		h.of.Record(ctx, v, option)
	}
}

// gauge is observed when somebody asks.
type gauge struct {
	*labels
	of metric.Float64ObservableGauge
}

func (m *maker) gauge(name string) gauge {
	d := m.find(name, Gauge)
	g, err := m.meter.Float64ObservableGauge(d.Name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.errs = append(m.errs, err)
	return gauge{labelsOf(d), g}
}

func (g gauge) observe(o metric.Observer, value float64, values ...string) {
	o.ObserveFloat64(g.of, value, metric.WithAttributeSet(g.set(values...)))
}
