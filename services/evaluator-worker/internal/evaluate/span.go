package evaluate

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

// linksMost bounds the links of one span; the attribute says how many tickets there were.
const linksMost = 128

// startSpan begins an evaluation's own trace, linked to the create that asked for it first.
func (w *Worker) startSpan(ctx context.Context, it *item) {
	_, it.span = w.Tracer.Start(ctx, telemetry.SpanProcessEvaluation,
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(link(it.TraceContext)...),
		trace.WithAttributes(telemetry.ProcessAttributes(string(it.Key))...),
		trace.WithAttributes(
			telemetry.VersionID.String(it.VersionID),
			telemetry.Route.String(it.route),
			telemetry.Attempt.Int(it.Attempts),
		))
}

// endSpans ends the spans of a group that is settled, linked to the creates of all tickets it serves by now.
func (w *Worker) endSpans(ctx context.Context, group []settlement) {
	var followers map[content.Hash][]string
	if w.LinkFollowers {
		var hashes []content.Hash
		for _, s := range group {
			if s.failure == nil && !s.release && !s.saved {
				hashes = append(hashes, s.item.ContentHash)
			}
		}
		if len(hashes) > 0 {
			var err error
			if followers, err = w.tickets.Followers(ctx, hashes, linksMost+1); err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "cannot link evaluations to their tickets", slog.Any("error", err))
			}
		}
	}
	for _, s := range group {
		if s.item.span == nil {
			continue
		}
		served := followers[s.item.ContentHash]
		for i, traceContext := range served {
			if traceContext == s.item.TraceContext || i >= linksMost {
				continue
			}
			for _, l := range link(traceContext) {
				s.item.span.AddLink(l)
			}
		}
		s.item.span.SetAttributes(telemetry.DedupHit.Bool(s.item.Answered))
		if len(served) > 0 {
			s.item.span.SetAttributes(telemetry.TicketsServed.Int(len(served)))
		}
		if s.failure != nil {
			s.item.span.SetAttributes(telemetry.ErrorType.String(string(s.failure.Reason)), telemetry.FailureClass.String(string(s.failure.Class)))
			s.item.span.SetStatus(codes.Error, string(s.failure.Class))
		}
		s.item.span.End()
	}
}

func link(traceContext string) []trace.Link {
	sc := telemetry.Extract(traceContext)
	if !sc.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: sc}}
}
