package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/process"
)

func logLevel(name string) (slog.Level, error) {
	switch strings.ToLower(name) {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	default:
		return 0, fmt.Errorf("%w: %s=%.20q is none of debug, info, warn, error", process.ErrUsage, LogLevel, name)
	}
}

// newLogger returns a logger, and what it needs to have told everything in the end.
func newLogger(w io.Writer, level slog.Level, serviceName, version string) (logger *slog.Logger, flush func(context.Context) error) {
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}).
		WithAttrs([]slog.Attr{slog.String("service", serviceName), slog.String("version", version)})
	l := limit(traced{current: handler})
	return slog.New(l), l.flush
}

// traced adds the identifiers of the span in a record's context, outside of all groups, where whoever joins logs and
// traces looks for them.
type traced struct {
	current slog.Handler
	// outside is the handler before its first group, and since what was done to it from then on.
	outside slog.Handler
	since   []func(slog.Handler) slog.Handler
}

func (t traced) Enabled(ctx context.Context, level slog.Level) bool {
	return t.current.Enabled(ctx, level)
}

func (t traced) Handle(ctx context.Context, record slog.Record) error {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return t.current.Handle(ctx, record)
	}
	ids := []slog.Attr{slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String())}
	if t.outside == nil {
		record = record.Clone()
		record.AddAttrs(ids...)
		return t.current.Handle(ctx, record)
	}
	handler := t.outside.WithAttrs(ids)
	for _, step := range t.since {
		handler = step(handler)
	}
	return handler.Handle(ctx, record)
}

func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler {
	if t.outside == nil {
		return traced{current: t.current.WithAttrs(attrs)}
	}
	return t.then(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (t traced) WithGroup(name string) slog.Handler {
	if name == "" {
		return t
	}
	if t.outside == nil {
		t.outside = t.current
	}
	return t.then(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (t traced) then(step func(slog.Handler) slog.Handler) traced {
	since := append(t.since[:len(t.since):len(t.since)], step)
	return traced{current: step(t.current), outside: t.outside, since: since}
}
