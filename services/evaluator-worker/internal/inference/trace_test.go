package inference

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestSpan(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		want   map[attribute.Key]string
		end    sdktrace.Status
	}{
		"answer": {200, answered, map[attribute.Key]string{
			"http.response.status_code": "200", "gen_ai.response.id": "chatcmpl-1", "gen_ai.response.model": "gpt-test-2026-01-01",
			"gen_ai.response.finish_reasons": `["stop"]`, "gen_ai.usage.input_tokens": "120",
			"gen_ai.usage.cache_read.input_tokens": "100", "gen_ai.usage.output_tokens": "30",
			"gen_ai.usage.reasoning.output_tokens": "10",
		}, sdktrace.Status{}},
		"failure": {503, `{"error":{"message":"a message from outside"}}`, map[attribute.Key]string{
			"http.response.status_code": "503", "error.type": "overloaded", "evalonce.failure.class": "transient",
		}, sdktrace.Status{Code: codes.Error, Description: "transient"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := tracetest.NewSpanRecorder()
			tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			ctx, parent := tracing.Tracer("test").Start(within(t), "process evaluation")
			s := serve(t, reply(tt.status, tt.body))
			q := question(t)
			q.Version.Effort = "low"
			_, _ = provider(t, OpenAIConfig{BaseURL: s.URL, TracerProvider: tracing}).Call(ctx, q)

			if s.received()[0].header.Get("Traceparent") != "" {
				t.Error("the provider was told of the trace")
			}
			if len(spans.Ended()) != 1 {
				t.Fatalf("%d spans, want 1", len(spans.Ended()))
			}
			span := spans.Ended()[0]
			if span.Name() != "chat gpt-test" || span.SpanKind() != trace.SpanKindClient || span.Status() != tt.end {
				t.Errorf("span %q of kind %s is %v", span.Name(), span.SpanKind(), span.Status())
			}
			if span.Parent().SpanID() != parent.SpanContext().SpanID() {
				t.Error("the span is not the caller's child")
			}
			tt.want["gen_ai.operation.name"] = "chat"
			tt.want["gen_ai.provider.name"] = "openai"
			tt.want["gen_ai.output.type"] = "json"
			tt.want["gen_ai.request.model"] = "gpt-test"
			tt.want["gen_ai.request.max_tokens"] = "300"
			tt.want["gen_ai.prompt.version"] = "p1"
			tt.want["gen_ai.request.reasoning.level"] = "low"
			tt.want["server.address"] = "127.0.0.1"
			for _, a := range span.Attributes() {
				if a.Key == "server.port" {
					continue
				}
				if want, ok := tt.want[a.Key]; !ok || a.Value.String() != want {
					t.Errorf("%s is %s, want %q", a.Key, a.Value.String(), want)
				}
				delete(tt.want, a.Key)
			}
			if len(tt.want) != 0 {
				t.Errorf("attributes are missing: %v", tt.want)
			}
		})
	}
}
