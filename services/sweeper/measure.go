package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/metrics"
)

// measure makes what the sweeper measures by itself: it is pushed where that is configured. What else a sweep has come to
// is in its row, for the admin to show.
func measure(pool *pgxpool.Pool) (*metrics.Worker, error) {
	meter := otel.Meter(serviceName)
	if _, err := metrics.Pools(meter, map[string]*pgxpool.Pool{"sweeper": pool}); err != nil {
		return nil, err
	}
	return metrics.NewWorker(meter)
}
