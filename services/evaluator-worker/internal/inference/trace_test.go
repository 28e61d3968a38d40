package inference

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func TestSpan(t *testing.T) { eachDialect(t, spanOfACall) }

func spanOfACall(t *testing.T, d dialect) {
	company, _, _ := strings.Cut(d.provider, "_")
	for name, tt := range map[string]struct {
		status int
		body   string
		want   map[attribute.Key]string
		end    sdktrace.Status
	}{
		"answer": {200, d.answered, map[attribute.Key]string{
			"http.response.status_code": "200", "gen_ai.response.id": d.id, "gen_ai.response.model": d.model,
			"gen_ai.response.finish_reasons": `["stop"]`, "gen_ai.usage.input_tokens": "120",
			"gen_ai.usage.cache_read.input_tokens": "100", "gen_ai.usage.output_tokens": "30",
			"gen_ai.usage.reasoning.output_tokens": "10",
		}, sdktrace.Status{}},
		"another model": {200, strings.Replace(d.answered, d.model, "other-model", 1), map[attribute.Key]string{
			"http.response.status_code": "200", "gen_ai.response.id": d.id, "gen_ai.response.model": "other-model",
			"evalonce.model.substituted": "true", "gen_ai.response.finish_reasons": `["stop"]`, "gen_ai.usage.input_tokens": "120",
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
			q := d.question(t)
			q.Version.Effort = "low"
			_, _ = d.client(t, Config{BaseURL: s.URL, TracerProvider: tracing}).Call(ctx, q)

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
			tt.want["gen_ai.provider.name"] = company
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

func TestSubstituted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		asked, answered string
		want            bool
	}{
		{"gpt-5-mini", "gpt-5-mini", false},
		{"gpt-5-mini", "", false},
		{"gpt-5-mini", "gpt-5-mini-2025-08-07", false},
		{"gpt-4", "gpt-4-0613", false},
		{"claude-haiku-5-5", "claude-haiku-5-5-20260901", false},
		{"claude-haiku-5-5", "claude-haiku-5-5@20260901", false},
		{"claude-haiku-5-5-latest", "claude-haiku-5-5-20260901", false},
		{"gpt-5", "gpt-5-mini", true},
		{"gpt-5", "gpt-5-mini-2025-08-07", true},
		{"gpt-5-mini-2025-08-07", "gpt-5-mini-2025-09-01", true},
		{"claude-haiku-5", "claude-haiku-5-5", true},
		{"claude-haiku-5-5", "claude-sonnet-5-5", true},
		{"my-deployment", "gpt-5-mini", true},
	} {
		if got := Substituted(tt.asked, tt.answered); got != tt.want {
			t.Errorf("%s by %s: %t", tt.asked, tt.answered, got)
		}
	}
}
