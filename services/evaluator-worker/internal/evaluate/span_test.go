package evaluate_test

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

// An evaluation of very many tickets is linked to as many as a span has links, and tells how many there are more; so does
// one that fails.
func TestLinksAreBoundedAndCounted(t *testing.T) {
	t.Parallel()
	const tickets = telemetry.LinksMost + 72
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	r := newRig(t, providersim.Rule{Action: providersim.Action{Answer: providersim.AnswerRefusal}})
	r.tracer = provider.Tracer("test")
	for range tickets {
		r.create(outbox.Live, 0, 1)
	}
	r.exec("UPDATE ticket SET trace_context = '00-' || replace(gen_random_uuid()::text, '-', '') || '-b7ad6b7169203331-01'")
	r.exec("UPDATE evaluation_outbox o SET trace_context = (SELECT t.trace_context FROM ticket t WHERE t.id = o.ticket_id)")
	stop := r.start(func(o *evaluate.Options) { o.LinkFollowers = true })
	r.until(1, "evaluation_outbox WHERE status = 'dead'")
	stop()
	if err := provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	spans := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		if s.Name() != telemetry.SpanClaimEvaluation || !attributesOf(s)[telemetry.Idle].AsBool() {
			spans[s.Name()] = s
		}
	}
	process, settle, claim := spans[telemetry.SpanProcessEvaluation], spans[telemetry.SpanSettleEvaluation], spans[telemetry.SpanClaimEvaluation]
	if process == nil || settle == nil || claim == nil {
		t.Fatalf("spans: %v", spans)
	}
	linked := map[string]bool{}
	for _, l := range process.Links() {
		linked[l.SpanContext.TraceID().String()] = true
	}
	attributes := attributesOf(process)
	if len(linked) != telemetry.LinksMost || process.DroppedLinks() != 0 || process.Status().Code != codes.Error {
		t.Errorf("%d links, %d dropped, %v", len(linked), process.DroppedLinks(), process.Status())
	}
	if served, left := attributes[telemetry.TicketsServed].AsInt64(), attributes[telemetry.LinksLeftOut].AsInt64(); served != tickets || left != tickets-telemetry.LinksMost {
		t.Errorf("%d tickets served, %d links left out", served, left)
	}
	if r.count(fmt.Sprintf("evaluation_outbox WHERE '%v' LIKE '%%' || split_part(trace_context, '-', 2) || '%%'", linked)) != 1 {
		t.Error("the ticket that asked first is not linked")
	}
	if len(settle.Links()) != 1 || settle.Links()[0].SpanContext.SpanID() != process.SpanContext().SpanID() {
		t.Errorf("the settlement is linked to %v", settle.Links())
	}
	if claim.SpanContext().TraceID() == process.SpanContext().TraceID() {
		t.Error("the evaluation has no trace of its own")
	}
}

func attributesOf(s sdktrace.ReadOnlySpan) map[attribute.Key]attribute.Value {
	m := map[attribute.Key]attribute.Value{}
	for _, a := range s.Attributes() {
		m[a.Key] = a.Value
	}
	return m
}
