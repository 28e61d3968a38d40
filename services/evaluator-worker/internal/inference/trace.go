package inference

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

// startSpan opens the span of one call. No attribute of it holds a part of the prompt, the ticket or the answer.
func (c *Client) startSpan(ctx context.Context, v evaluation.Version) (context.Context, trace.Span) {
	attributes := append(telemetry.ChatAttributes(c.protocol.company, v.Model),
		telemetry.RequestMaxTokens.Int(v.MaxOutputTokens),
		telemetry.PromptVersion.String(v.PromptVersion),
		telemetry.ServerAddress.String(c.server.Hostname()),
	)
	if v.Effort != "" {
		attributes = append(attributes, telemetry.RequestEffort.String(v.Effort))
	}
	if port, err := strconv.Atoi(c.server.Port()); err == nil {
		attributes = append(attributes, telemetry.ServerPort.Int(port))
	}
	return c.tracer.Start(ctx, telemetry.ChatSpan(v.Model), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
}

func describe(span trace.Span, v evaluation.Version, response Response, r reading, f *failure.Failure) {
	if !span.IsRecording() {
		return
	}
	if response.HTTPStatus != 0 {
		span.SetAttributes(telemetry.HTTPResponseStatus.Int(response.HTTPStatus))
	}
	if r.id != "" {
		span.SetAttributes(telemetry.ResponseID.String(r.id))
	}
	if r.model != "" {
		span.SetAttributes(telemetry.ResponseModel.String(r.model))
	}
	if Substituted(v.Model, r.model) {
		span.SetAttributes(telemetry.ModelSubstituted.Bool(true))
	}
	if r.finish != "" {
		span.SetAttributes(telemetry.FinishReasons.StringSlice([]string{r.finish}))
	}
	if u := r.usage; u != (evaluation.Usage{}) {
		span.SetAttributes(
			telemetry.InputTokens.Int64(u.InputTokens),
			telemetry.CachedInputTokens.Int64(u.CachedInputTokens),
			telemetry.OutputTokens.Int64(u.OutputTokens),
			telemetry.ReasoningTokens.Int64(u.ReasoningTokens),
		)
	}
	if f != nil {
		span.SetAttributes(telemetry.ErrorType.String(string(f.Reason)), telemetry.FailureClass.String(string(f.Class)))
		span.SetStatus(codes.Error, string(f.Class))
	}
}

var snapshot = regexp.MustCompile(`^[-@](\d{8}|\d{4}|\d{4}-\d{2}-\d{2})$`)

// Substituted reports whether another model answered than the one that was asked. A snapshot of it, named by its date,
// is no other, and neither is one that does not say what it is.
func Substituted(asked, answered string) bool {
	date, ok := strings.CutPrefix(answered, strings.TrimSuffix(asked, "-latest"))
	return answered != "" && answered != asked && !(ok && snapshot.MatchString(date))
}
