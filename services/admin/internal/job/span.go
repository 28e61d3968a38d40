package job

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

// startSpan begins the trace of a chunk, linked to the request that has started its job.
func (r *Runner) startSpan(ctx context.Context, j jobdb.Job) (context.Context, trace.Span) {
	return r.opts.Tracer.Start(ctx, telemetry.SpanJobChunk, trace.WithNewRoot(), trace.WithLinks(telemetry.LinksTo(j.TraceContext)...), trace.WithAttributes(
		telemetry.JobID.String(j.ID.String()), telemetry.JobKind.String(string(j.Kind))))
}

func endSpan(span trace.Span, err error) {
	if err != nil && !errors.Is(err, jobdb.ErrLost) {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
