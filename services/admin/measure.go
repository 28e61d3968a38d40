package main

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/services/admin/internal/observe"
)

// measure makes what the service measures, until the meter provider ends: its pools, and the tables for the whole fleet,
// which the observer has to be run for.
func measure(calls, replica, jobs *pgxpool.Pool, interval time.Duration) (*observe.Observer, error) {
	meter := otel.Meter(serviceName)
	pools := map[string]*pgxpool.Pool{"admin": calls, "jobs": jobs}
	if replica != calls {
		pools["replica"] = replica
	}
	if _, err := metrics.Pools(meter, pools); err != nil {
		return nil, err
	}
	observer := observe.New(calls, interval)
	_, err := metrics.Snapshot(meter, observe.ShownFor*interval, observer.Read)
	return observer, err
}
