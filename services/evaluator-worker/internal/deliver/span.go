package deliver

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// startSpan begins the trace of one attempt, linked to the creation of the ticket that it tells of. The endpoint is named
// by its id: its URL is a secret of the client's.
func (p *Pool) startSpan(ctx context.Context, c webhook.Claimed) (context.Context, trace.Span) {
	return p.Tracer.Start(ctx, telemetry.SpanDeliverWebhook, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(telemetry.LinksTo(c.TraceContext)...), trace.WithAttributes(
			telemetry.EventID.String(c.ID.String()), telemetry.EndpointID.String(c.EndpointID.String()), telemetry.Attempt.Int(c.Attempts)))
}

func endSpan(span trace.Span, a webhook.Attempt) {
	if a.Status != 0 {
		span.SetAttributes(telemetry.HTTPResponseStatus.Int(a.Status))
	}
	if a.Reason != "" {
		span.SetAttributes(telemetry.ErrorType.String(string(a.Reason)))
		span.SetStatus(codes.Error, string(a.Reason))
	}
	span.End()
}
