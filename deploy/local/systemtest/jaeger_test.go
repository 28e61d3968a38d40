package systemtest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/telemetry"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// jaegerVariable names a Jaeger; make test-traces builds one.
const jaegerVariable = "EVALONCE_TEST_JAEGER"

const jaegerConfig = `
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {receivers: [otlp], processors: [batch], exporters: [jaeger_storage_exporter]}
  telemetry:
    metrics: {level: none}
extensions:
  jaeger_storage: {backends: {memory: {memory: {max_traces: 1000}}}}
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: "%s"}
    grpc: {endpoint: "%s"}
receivers:
  otlp: {protocols: {grpc: {endpoint: "%s"}, http: {endpoint: "%s"}}}
processors:
  batch: {timeout: 50ms}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
`

// jaegerSpan is a span as Jaeger tells of it. References to other traces are links.
type jaegerSpan struct {
	TraceID, SpanID, OperationName string
	References                     []struct{ TraceID string }
}

// jaeger is one that runs.
type jaeger struct {
	t                *testing.T
	query, grpc, web string
}

func startJaeger(t *testing.T, s *system) jaeger {
	t.Helper()
	var addresses [4]string
	for i := range addresses {
		var err error
		if addresses[i], err = s.stack.FreeAddress(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(t.TempDir(), "jaeger.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, jaegerConfig, addresses[0], addresses[1], addresses[2], addresses[3]), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Getenv(jaegerVariable), "--config", config)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the test's context has ended, and Jaeger with it
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Jaeger: %s", log.String())
		}
	})
	// What is sent before it listens is lost.
	for _, address := range addresses {
		awaitListener(t, address)
	}
	return jaeger{t: t, query: "http://" + addresses[0], grpc: "http://" + addresses[2], web: "http://" + addresses[3]}
}

func awaitListener(t *testing.T, address string) {
	t.Helper()
	var d net.Dialer
	for deadline, tick := time.After(patience), time.Tick(50*time.Millisecond); ; {
		conn, err := d.DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-deadline:
			t.Fatalf("nobody listens at %s: %v", address, err)
		case <-tick:
		}
	}
}

// trace is what Jaeger has of a trace by now; nothing of one that it does not know, or while it starts.
func (j jaeger) trace(id string) []jaegerSpan {
	j.t.Helper()
	req, err := http.NewRequestWithContext(j.t.Context(), http.MethodGet, j.query+"/api/traces/"+id, http.NoBody)
	if err != nil {
		j.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var answer struct {
		Data []struct{ Spans []jaegerSpan }
	}
	if resp.StatusCode != http.StatusOK {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		j.t.Fatalf("Jaeger answers with status %d: %v", resp.StatusCode, err)
	}
	var spans []jaegerSpan
	for _, d := range answer.Data {
		spans = append(spans, d.Spans...)
	}
	return spans
}

// await waits for a span of a trace.
func (j jaeger) await(trace, operation string) jaegerSpan {
	j.t.Helper()
	for deadline, tick := time.After(patience), time.Tick(100*time.Millisecond); ; {
		spans := j.trace(trace)
		if i := slices.IndexFunc(spans, func(s jaegerSpan) bool { return s.OperationName == operation }); i >= 0 {
			return spans[i]
		}
		select {
		case <-deadline:
			j.t.Fatalf("Jaeger has no %q in %s, but %+v", operation, trace, spans)
		case <-tick:
		}
	}
}

// From a ticket to the call that was paid for it, with what support sees of the ticket and a back end that others have made.
func TestJaegerFindsTheCallOfATicket(t *testing.T) {
	t.Parallel()
	if os.Getenv(jaegerVariable) == "" {
		t.Skip("SKIPPED: there is no Jaeger; make test-traces builds one")
	}
	s := startSystem(t, options{version: func(v *evaluation.Version) { v.MaxAttempts = 5 }})
	j := startJaeger(t, s)
	const patient = "OTEL_BSP_SCHEDULE_DELAY=50"
	if err := s.server.Stop(); err != nil { // it is to start again, and to know of Jaeger
		t.Fatal(err)
	}
	spec := s.server.Spec
	spec.Env = append(slices.Clone(spec.Env), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+j.web+"/v1/traces", patient)
	s.server.Process = s.launch(spec)
	traces := []string{traceOf(11), traceOf(12)}
	var ids []string
	for n, trace := range map[int]string{11: traces[0], 12: traces[1]} {
		ctx := metadata.AppendToOutgoingContext(s.ctx, "traceparent", callersTrace(n, true))
		ticket, err := s.api.CreateTicket(ctx, &ticketv1.CreateTicketRequest{Subject: "Help", Message: "the same"})
		if err != nil {
			t.Fatal(err)
		}
		if ticket.GetTraceId() != trace {
			t.Errorf("the ticket names the trace %s, want %s", ticket.GetTraceId(), trace)
		}
		ids = append(ids, ticket.GetId())
	}
	s.worker("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+j.grpc, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", patient)
	s.until(1, "evaluation_result")
	call := s.get(ids[0]).GetEvaluation().GetAnswer().GetTraceId()
	for _, trace := range traces {
		j.await(trace, telemetry.SpanSendEvaluation)
	}
	process := j.await(call, telemetry.SpanProcessEvaluation)
	j.await(call, telemetry.ChatSpan(s.version.Model))
	for _, trace := range traces {
		if !slices.ContainsFunc(process.References, func(r struct{ TraceID string }) bool { return r.TraceID == trace }) {
			t.Errorf("the evaluation is linked to %+v, want %s", process.References, trace)
		}
	}
	s.check()
}
