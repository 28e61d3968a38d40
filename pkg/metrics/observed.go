package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
)

// Pools measures pools of connections, by their names in the catalogue, until stop is called.
func Pools(meter metric.Meter, pools map[string]*pgxpool.Pool) (stop func() error, err error) {
	m := maker{meter: meter}
	connections := m.gauge("evalonce.db.connections")
	waits, waited := m.find("evalonce.db.waits", Counter), m.find("evalonce.db.wait.time", Counter)
	of := labelsOf(waits)
	count, err := meter.Int64ObservableCounter(waits.Name, metric.WithUnit(waits.Unit), metric.WithDescription(waits.Help))
	m.errs = append(m.errs, err)
	seconds, err := meter.Float64ObservableCounter(waited.Name, metric.WithUnit(waited.Unit), metric.WithDescription(waited.Help))
	m.errs = append(m.errs, err)
	if err := m.err(); err != nil {
		return nil, err
	}
	r, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for name, pool := range pools {
			s := pool.Stat()
			connections.observe(o, float64(s.IdleConns()), name, "idle")
			connections.observe(o, float64(s.AcquiredConns()+s.ConstructingConns()), name, "used")
			connections.observe(o, float64(s.MaxConns()), name, "max")
			set := metric.WithAttributeSet(of.set(name))
			o.ObserveInt64(count, s.EmptyAcquireCount(), set)
			o.ObserveFloat64(seconds, s.EmptyAcquireWaitTime().Seconds(), set)
		}
		return nil
	}, connections.of, count, seconds)
	if err != nil {
		return nil, fmt.Errorf("measure the pools: %w", err)
	}
	return r.Unregister, nil
}

// Sample is one value of the snapshot. Its metric is one of the catalogue's; one that this build does not know, because
// another has written it, is not exposed.
type Sample struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels,omitempty"` // in the order of the catalogue
	Value  float64  `json:"value"`
}

// Read returns the newest samples, their age, and whether there are any.
type Read func() (samples []Sample, age time.Duration, ok bool)

// Snapshot exposes what read returns, until stop is called. Of samples older than most the age alone is exposed: what was
// true then would pass for what is.
func Snapshot(meter metric.Meter, most time.Duration, read Read) (stop func() error, err error) {
	m := maker{meter: meter}
	gauges := map[string]gauge{}
	var all []metric.Observable
	for _, d := range Catalogue() {
		if d.Snapshot {
			gauges[d.Name] = m.gauge(d.Name)
			all = append(all, gauges[d.Name].of)
		}
	}
	if err := m.err(); err != nil {
		return nil, err
	}
	r, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		samples, age, ok := read()
		if !ok {
			return nil
		}
		gauges[SnapshotAge].observe(o, age.Seconds())
		if age > most {
			return nil
		}
		for _, s := range samples {
			if g, ok := gauges[s.Metric]; ok && len(s.Labels) == len(g.labels.labels) {
				g.observe(o, s.Value, s.Labels...)
			}
		}
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("expose what is measured of the tables: %w", err)
	}
	return r.Unregister, nil
}
