package telemetry

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/evalonce/evalonce/pkg/process"
)

// cardinalityLimit bounds the series of one instrument. Labels come from closed sets, so it is never met; a mistake would
// show as one series more, with otel_metric_overflow.
const cardinalityLimit = 2000

// setupMetrics installs OpenTelemetry's meter provider. What it measures is served by the handler, for Prometheus to
// fetch, and exported besides where environ asks for it.
func setupMetrics(ctx context.Context, res *resource.Resource, environ []string) (handler http.Handler, shutdown func(context.Context) error, err error) {
	if disabled(environ) {
		otel.SetMeterProvider(noop.NewMeterProvider())
		return http.NotFoundHandler(), func(context.Context) error { return nil }, nil
	}
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := registry.Register(c); err != nil {
			return nil, nil, fmt.Errorf("measure the process: %w", err)
		}
	}
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, nil, fmt.Errorf("make the metrics that Prometheus fetches: %w", err)
	}
	options := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(reader), sdkmetric.WithCardinalityLimit(cardinalityLimit)}
	if exportingMetrics(environ) {
		exporter, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("make the metric exporter that OTEL_METRICS_EXPORTER and OTEL_EXPORTER_OTLP_* ask for: %w: %w", process.ErrUsage, err)
		}
		options = append(options, sdkmetric.WithReader(exporter))
	}
	provider := sdkmetric.NewMeterProvider(options...)
	otel.SetMeterProvider(provider)
	handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, MaxRequestsInFlight: 4})
	return handler, func(ctx context.Context) error {
		if err := provider.Shutdown(ctx); err != nil {
			return fmt.Errorf("send the last metrics: %w", err)
		}
		return nil
	}, nil
}

// exportingMetrics reports whether environ asks for metrics to be pushed: as [Exporting] does for spans.
func exportingMetrics(environ []string) bool {
	if exporter := lookup(environ, "OTEL_METRICS_EXPORTER"); exporter != "" {
		return exporter != "none"
	}
	return lookup(environ, "OTEL_EXPORTER_OTLP_ENDPOINT") != "" || lookup(environ, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != ""
}
