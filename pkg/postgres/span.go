package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Spans makes a span of each statement within a span that is recorded. It has the statement's name, and neither its text
// nor its arguments nor what the server says of a failure beyond its code: tickets are in all of these.
type Spans struct{ tracer trace.Tracer }

// NewSpans makes spans with a tracer.
func NewSpans(tracer trace.Tracer) *Spans { return &Spans{tracer} }

var (
	_ pgx.QueryTracer = (*Spans)(nil)
	_ pgx.BatchTracer = (*Spans)(nil)
)

// TraceQueryStart implements [pgx.QueryTracer].
func (s *Spans) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return s.start(ctx, nameOf(data.SQL))
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (s *Spans) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	end(ctx, data.Err)
}

// TraceBatchStart implements [pgx.BatchTracer].
func (s *Spans) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	ctx = s.start(ctx, "batch")
	if span := trace.SpanFromContext(ctx); span.IsRecording() && data.Batch != nil {
		span.SetAttributes(semconv.DBOperationBatchSize(data.Batch.Len()))
	}
	return ctx
}

// TraceBatchQuery implements [pgx.BatchTracer]. The statements of a batch run together: they are events of its span.
func (s *Spans) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(nameOf(data.SQL))
	}
}

// TraceBatchEnd implements [pgx.BatchTracer].
func (s *Spans) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	end(ctx, data.Err)
}

// spanKey is where a statement's own span is found at its end: the context's may be its parent, which goes on.
type spanKey struct{}

func (s *Spans) start(ctx context.Context, name string) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	ctx, span := s.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.DBSystemNamePostgreSQL, semconv.DBQuerySummary(name)))
	return context.WithValue(ctx, spanKey{}, span)
}

func end(ctx context.Context, err error) {
	span, ok := ctx.Value(spanKey{}).(trace.Span)
	if !ok {
		return
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		kind := "connection"
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) {
			kind = pgErr.Code
			span.SetAttributes(semconv.DBResponseStatusCode(pgErr.Code))
		}
		span.SetAttributes(attribute.KeyValue{Key: semconv.ErrorTypeKey, Value: attribute.StringValue(kind)})
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// nameOf is the name that the statement's first line gives it, as sqlc has it: "-- name: X :many"; else its first word,
// where that is a command of SQL.
func nameOf(sql string) string {
	if named, ok := strings.CutPrefix(sql, "-- name: "); ok {
		if name, _, ok := strings.Cut(named, " :"); ok {
			return name
		}
	}
	for _, command := range [...]string{
		"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET", "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "LISTEN", "TABLE", "VALUES",
	} {
		if len(sql) >= len(command) && strings.EqualFold(sql[:len(command)], command) {
			return command
		}
	}
	return "statement"
}
