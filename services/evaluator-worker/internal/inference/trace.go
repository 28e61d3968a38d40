package inference

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

// startSpan opens `chat <model>`. No attribute of it holds a part of the prompt, the ticket or the answer.
func (o *OpenAI) startSpan(ctx context.Context, v evaluation.Version) (context.Context, trace.Span) {
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "chat"),
		attribute.String("gen_ai.provider.name", openaiProvider),
		attribute.String("gen_ai.output.type", "json"),
		attribute.String("gen_ai.request.model", v.Model),
		attribute.Int("gen_ai.request.max_tokens", v.MaxOutputTokens),
		attribute.String("server.address", o.server.Hostname()),
	}
	if port, err := strconv.Atoi(o.server.Port()); err == nil {
		attributes = append(attributes, attribute.Int("server.port", port))
	}
	return o.tracer.Start(ctx, "chat "+v.Model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
}

func describe(span trace.Span, response Response, r reading, f *failure.Failure) {
	if !span.IsRecording() {
		return
	}
	if response.HTTPStatus != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", response.HTTPStatus))
	}
	if r.id != "" {
		span.SetAttributes(attribute.String("gen_ai.response.id", r.id))
	}
	if response.ServedModel != "" {
		span.SetAttributes(attribute.String("gen_ai.response.model", response.ServedModel))
	}
	if r.finish != "" {
		span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{r.finish}))
	}
	if u := response.Usage; u != (evaluation.Usage{}) {
		span.SetAttributes(
			attribute.Int64("gen_ai.usage.input_tokens", u.InputTokens),
			attribute.Int64("gen_ai.usage.cache_read.input_tokens", u.CachedInputTokens),
			attribute.Int64("gen_ai.usage.output_tokens", u.OutputTokens),
			attribute.Int64("gen_ai.usage.reasoning.output_tokens", u.ReasoningTokens),
		)
	}
	if f != nil {
		span.SetAttributes(attribute.String("error.type", string(f.Reason)))
		span.SetStatus(codes.Error, string(f.Class))
	}
}
