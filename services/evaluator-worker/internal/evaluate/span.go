package evaluate

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

// followersMost is how far the tickets that an evaluation serves are counted for its span.
const followersMost = 10_000

// startClaim begins the trace of a claim. It is not exported when there is nothing to claim.
func (w *Worker) startClaim(ctx context.Context, l *line) (context.Context, trace.Span) {
	return w.Tracer.Start(ctx, telemetry.SpanClaimEvaluation, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(telemetry.ClaimAttributes(l.name)...))
}

func endClaim(span trace.Span, claimed int, err error) {
	if claimed > 0 {
		span.SetAttributes(telemetry.Claimed(claimed)...)
	}
	endSpan(span, err)
}

// startSettle begins the trace of a settlement, linked to the evaluations that it writes.
func (w *Worker) startSettle(ctx context.Context, group []settlement) (context.Context, trace.Span) {
	var links []trace.Link
	left := 0
	for _, s := range group {
		switch {
		case s.item.span == nil || !s.item.span.IsRecording():
		case len(links) < telemetry.LinksMost:
			links = append(links, trace.Link{SpanContext: s.item.span.SpanContext()})
		default:
			left++
		}
	}
	ctx, span := w.Tracer.Start(ctx, telemetry.SpanSettleEvaluation, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithLinks(links...), trace.WithAttributes(telemetry.SettleAttributes(len(group))...))
	if left > 0 {
		span.SetAttributes(telemetry.LinksLeftOut.Int(left))
	}
	return ctx, span
}

// endSpan tells of a failure without what the database says of it, which may be a ticket's text.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// startSpan begins an evaluation's own trace, linked to the create that asked for it first.
func (w *Worker) startSpan(ctx context.Context, it *item) {
	_, it.span = w.Tracer.Start(ctx, telemetry.SpanProcessEvaluation,
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(telemetry.LinksTo(it.TraceContext)...),
		trace.WithAttributes(telemetry.ProcessAttributes(string(it.Key))...),
		trace.WithAttributes(
			telemetry.VersionID.String(it.VersionID),
			telemetry.Route.String(it.route),
			telemetry.Attempt.Int(it.Attempts),
		))
}

// endSpans ends the spans of a group that is settled, linked to the creates of all tickets it serves by now.
func (w *Worker) endSpans(ctx context.Context, group []settlement) {
	served := w.served(ctx, group)
	for _, s := range group {
		if s.item.span == nil {
			continue
		}
		s.item.span.SetAttributes(telemetry.DedupHit.Bool(s.item.Answered))
		if of, ok := served[s.item.ContentHash]; ok {
			linkServed(s.item, of)
		}
		if s.failure != nil {
			s.item.span.SetAttributes(telemetry.ErrorType.String(string(s.failure.Reason)), telemetry.FailureClass.String(string(s.failure.Class)))
			s.item.span.SetStatus(codes.Error, string(s.failure.Class))
		}
		s.item.span.End()
	}
}

// followers are the tickets that an evaluation serves.
type followers struct {
	traces []string // of some of them
	count  int
}

// served looks the tickets up that a group's evaluations serve, or were to serve.
func (w *Worker) served(ctx context.Context, group []settlement) map[content.Hash]followers {
	if !w.LinkFollowers {
		return nil
	}
	var hashes []content.Hash
	for _, s := range group {
		if s.item.span != nil && s.item.span.IsRecording() && !s.release && !s.saved {
			hashes = append(hashes, s.item.ContentHash)
		}
	}
	if len(hashes) == 0 {
		return nil
	}
	traces, err := w.tickets.Followers(ctx, hashes, telemetry.LinksMost+1)
	served := make(map[content.Hash]followers, len(traces))
	var many []content.Hash
	for hash, of := range traces {
		served[hash] = followers{of, len(of)}
		if len(of) > telemetry.LinksMost {
			many = append(many, hash)
		}
	}
	var counts map[content.Hash]int
	if err == nil && len(many) > 0 {
		counts, err = w.tickets.CountFollowers(ctx, many, followersMost)
	}
	if err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "cannot link evaluations to their tickets", slog.Any("error", err))
	}
	for hash, n := range counts {
		served[hash] = followers{served[hash].traces, n}
	}
	return served
}

// linkServed links an evaluation to the tickets that it serves. The one that it began with is linked already.
func linkServed(it *item, served followers) {
	links, linked := len(telemetry.LinksTo(it.TraceContext)), 0
	for _, traceContext := range served.traces {
		if traceContext == it.TraceContext {
			linked++
			continue
		}
		for _, l := range telemetry.LinksTo(traceContext) {
			if links < telemetry.LinksMost {
				it.span.AddLink(l)
				links++
				linked++
			}
		}
	}
	it.span.SetAttributes(telemetry.TicketsServed.Int(served.count))
	if left := served.count - linked; left > 0 {
		it.span.SetAttributes(telemetry.LinksLeftOut.Int(left))
	}
}
