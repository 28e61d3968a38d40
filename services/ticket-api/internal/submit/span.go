package submit

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/telemetry"
)

// startStore begins the trace of a group's transaction, linked to the requests that share it.
func startStore(ctx context.Context, group []*pending) (context.Context, trace.Span) {
	var links []trace.Link
	left := 0
	for _, p := range group {
		switch span := trace.SpanFromContext(p.ctx); {
		case !span.IsRecording():
		case len(links) < telemetry.LinksMost:
			links = append(links, trace.Link{SpanContext: span.SpanContext()})
		default:
			left++
		}
	}
	ctx, span := otel.Tracer("github.com/evalonce/evalonce/services/ticket-api").Start(ctx, telemetry.SpanStoreTickets, trace.WithNewRoot(),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...), trace.WithAttributes(telemetry.StoreAttributes(len(group))...))
	if left > 0 {
		span.SetAttributes(telemetry.LinksLeftOut.Int(left))
	}
	return ctx, span
}
