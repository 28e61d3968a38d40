// Package telemetry sets up a service's logs and traces, carries trace contexts through rows of the database, and
// pins the names of spans and attributes.
//
// Every process has a tracer that makes real identifiers, whether anything records its spans or not: the trace
// context that is stored beside a piece of work is there on the day on which somebody turns recording on, and the
// logs can be joined by it in the meantime.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/evalonce/evalonce/migrations/release"
	"github.com/evalonce/evalonce/pkg/process"
)

// LogLevel is the variable with the lowest level that is logged: debug, info (the default), warn or error.
const LogLevel = "EVALONCE_LOG_LEVEL"

// flushTimeout bounds the shutdown of a caller who does not: a collector that hangs must not keep a process alive.
const flushTimeout = 10 * time.Second

// Telemetry is what Setup has installed.
type Telemetry struct {
	// Metrics serves what the process measures, in Prometheus' format.
	Metrics http.Handler

	shutdowns []func(context.Context) error
}

// Flush sends what is still held back, and ends with its context or after 10 s. Nothing is recorded from then on.
func (t *Telemetry) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, flushTimeout, errors.New("the time to send telemetry is over"))
	defer cancel()
	var problems []error
	for _, shutdown := range t.shutdowns {
		problems = append(problems, shutdown(ctx))
	}
	return errors.Join(problems...)
}

// Setup makes a JSON logger on standard error the default of slog, which leaves lines out of a storm of warnings, and installs
// OpenTelemetry's tracer and meter providers, propagator and error handler. The first line says which build has started.
//
// Spans are exported when environ asks for it (see [Exporting]). OTEL_TRACES_SAMPLER decides which; whatever it says, but
// for always_off, those are exported too that end in an error or are linked to a sampled trace. What else OTEL_* variables
// say about the exporter and the resource, OpenTelemetry's libraries read from the environment of the process, whatever
// environ is.
func Setup(ctx context.Context, serviceName string, environ []string) (*Telemetry, error) {
	build := release.Current()
	level, err := logLevel(lookup(environ, LogLevel))
	if err != nil {
		return nil, err
	}
	logger, endLog := newLogger(os.Stderr, level, serviceName, build.Version)
	slog.SetDefault(logger)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		slog.WarnContext(context.WithoutCancel(ctx), "telemetry failed", slog.Any("error", err))
	}))
	// What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes last, and wins.
	res, err := resource.New(ctx,
		resource.WithSchemaURL(semconv.SchemaURL),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName(serviceName), semconv.ServiceVersion(build.Version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe this process to OpenTelemetry: %w", err)
	}
	endTraces, err := setupTraces(ctx, res, environ)
	if err != nil {
		return nil, err
	}
	metrics, endMetrics, err := setupMetrics(ctx, res, environ)
	if err != nil {
		return nil, errors.Join(err, endTraces(ctx))
	}
	slog.InfoContext(ctx, "started", slog.String("commit", build.Commit), slog.String("go", build.Go))
	return &Telemetry{Metrics: metrics, shutdowns: []func(context.Context) error{endTraces, endMetrics, endLog}}, nil
}

func setupTraces(ctx context.Context, res *resource.Resource, environ []string) (shutdown func(context.Context) error, err error) {
	if disabled(environ) {
		otel.SetTracerProvider(noop.NewTracerProvider())
		return func(context.Context) error { return nil }, nil
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(res)}
	if Exporting(environ) {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nil, fmt.Errorf("make the span exporter that OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_* ask for: %w: %w", process.ErrUsage, err)
		}
		sampler, err := newSampler(environ)
		if err != nil {
			return nil, errors.Join(err, exporter.Shutdown(ctx))
		}
		options = append(options, sdktrace.WithSampler(sampler), sdktrace.WithSpanProcessor(newKeeper(sdktrace.NewBatchSpanProcessor(exporter))))
	} else {
		// Identifiers, and nothing that costs more. A parent that somebody else samples stays sampled.
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	}
	provider := sdktrace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	return func(ctx context.Context) error {
		if err := provider.Shutdown(ctx); err != nil {
			return fmt.Errorf("send the last spans: %w", err)
		}
		return nil
	}, nil
}

// Exporting reports whether environ asks for spans to be exported: by OTEL_TRACES_EXPORTER (otlp, console), or by the
// address of a collector in OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. The exporter "none" and
// OTEL_SDK_DISABLED=true turn it off.
func Exporting(environ []string) bool {
	if disabled(environ) {
		return false
	}
	if exporter := lookup(environ, "OTEL_TRACES_EXPORTER"); exporter != "" {
		return exporter != "none"
	}
	return lookup(environ, "OTEL_EXPORTER_OTLP_ENDPOINT") != "" || lookup(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

func disabled(environ []string) bool {
	return strings.EqualFold(lookup(environ, "OTEL_SDK_DISABLED"), "true")
}

func lookup(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

const traceparent = "traceparent"

// Inject returns the W3C traceparent of ctx's span, "" when there is none: what a row keeps of the trace in which it
// was written. Tracestate and baggage are not kept: they are up to half a kilobyte of whatever a caller chose to send, and
// a link is found by its identifiers.
func Inject(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// LinksTo are a span's links to what Inject told of: one, or none where that is no span.
func LinksTo(s string) []trace.Link {
	sc := Extract(s)
	if !sc.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: sc}}
}

// Extract reads what Inject returned, as the remote span that it was. Anything else, such as "", is an invalid one.
func Extract(s string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: s})
	return trace.SpanContextFromContext(ctx)
}
