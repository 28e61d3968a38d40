package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/metrics"
)

// measureEvaluations and measureWebhooks make what the worker measures, until the meter provider ends.
func measureEvaluations(claims, settles *pgxpool.Pool) (*metrics.Worker, error) {
	meter := otel.Meter(serviceName)
	if _, err := metrics.Pools(meter, map[string]*pgxpool.Pool{"claims": claims, "settles": settles}); err != nil {
		return nil, err
	}
	return metrics.NewWorker(meter)
}

func measureWebhooks(db *pgxpool.Pool) (*metrics.Webhooks, error) {
	meter := otel.Meter(serviceName)
	if _, err := metrics.Pools(meter, map[string]*pgxpool.Pool{"webhooks": db}); err != nil {
		return nil, err
	}
	return metrics.NewWebhooks(meter)
}
