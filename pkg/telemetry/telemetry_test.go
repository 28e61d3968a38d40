package telemetry_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/migrations/release"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

// scenarioVariable turns the test binary into a service: Setup is for a process, and so are the variables that the
// exporter reads.
const scenarioVariable = "EVALONCE_TELEMETRY_SCENARIO"

func TestMain(m *testing.M) {
	if os.Getenv(scenarioVariable) != "" {
		process.Main(service)
	}
	goleak.VerifyTestMain(m)
}

// service makes one span in the trace of a caller, one of its own, and a log line in each.
func service(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	observed, err := telemetry.Setup(ctx, "ticket-api", environ)
	if err != nil {
		return err
	}
	tracer := otel.Tracer("test")
	for i, parent := range append([]string{""}, args...) {
		ctx := otel.GetTextMapPropagator().Extract(ctx, propagation.MapCarrier{"traceparent": parent})
		ctx, span := tracer.Start(ctx, telemetry.SpanSendEvaluation, trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(telemetry.SendAttributes(2)...))
		if err := json.NewEncoder(stdout).Encode(map[string]string{"parent": parent, "traceparent": telemetry.Inject(ctx)}); err != nil {
			return err
		}
		slog.DebugContext(ctx, "detail")
		slog.InfoContext(ctx, "stored", slog.Int("n", i))
		span.End()
	}
	if err := measure(ctx, observed, stdout); err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("enough"))
	defer cancel()
	err = observed.Flush(ctx)
	slog.InfoContext(context.WithoutCancel(ctx), "flushed", slog.Int64("took_ms", time.Since(start).Milliseconds()))
	return err
}

// measure counts something and puts out what Prometheus would fetch.
func measure(ctx context.Context, observed *telemetry.Telemetry, stdout io.Writer) error {
	counter, err := otel.Meter("test").Int64Counter("evalonce_test_things")
	if err != nil {
		return err
	}
	counter.Add(ctx, 3)
	fetched := httptest.NewRecorder()
	observed.Metrics.ServeHTTP(fetched, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody))
	return json.NewEncoder(stdout).Encode(map[string]string{"metrics": fetched.Body.String()})
}

type result struct {
	code         int
	traceparents []string
	metrics      string
	logs         []map[string]any
	stderr       string
}

func runService(t *testing.T, environ []string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(environ, scenarioVariable+"=1")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	r := result{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()}
	for line := range strings.Lines(stdout.String()) {
		var out struct{ Traceparent, Metrics *string }
		if err := json.Unmarshal([]byte(line), &out); err != nil {
			continue
		}
		if out.Metrics != nil {
			r.metrics = *out.Metrics
		}
		if out.Traceparent != nil {
			r.traceparents = append(r.traceparents, *out.Traceparent)
		}
	}
	for scanner := bufio.NewScanner(strings.NewReader(r.stderr)); scanner.Scan(); {
		var record map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &record); err == nil {
			r.logs = append(r.logs, record)
		}
	}
	return r
}

const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestSpansHaveIdentifiersThoughNobodyRecordsThem(t *testing.T) {
	t.Parallel()
	for name, environ := range map[string][]string{
		"nothing set": nil, "none": {"OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
	} {
		r := runService(t, environ, caller)
		if r.code != 0 || len(r.traceparents) != 2 {
			t.Fatalf("%s: exit code %d, %v, %s", name, r.code, r.traceparents, r.stderr)
		}
		own, continued := telemetry.Extract(r.traceparents[0]), telemetry.Extract(r.traceparents[1])
		if !own.IsValid() || own.IsSampled() {
			t.Errorf("%s: own trace %q, want an identifier that asks nobody to record", name, r.traceparents[0])
		}
		if continued.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || continued.SpanID().String() == "b7ad6b7169203331" ||
			!continued.IsSampled() {
			t.Errorf("%s: continued trace %q, want a span in that of %s, sampled as there", name, r.traceparents[1], caller)
		}
	}
}

func TestLogsAreJSONAndNameTheirSpan(t *testing.T) {
	t.Parallel()
	r := runService(t, nil)
	if r.code != 0 || len(r.logs) != 3 {
		t.Fatalf("exit code %d, %s", r.code, r.stderr)
	}
	build := release.Current()
	for key, want := range map[string]any{"msg": "started", "version": build.Version, "commit": build.Commit, "go": build.Go} {
		if got := r.logs[0][key]; got != want {
			t.Errorf("at the start %s = %v, want %v", key, got, want)
		}
	}
	span := telemetry.Extract(r.traceparents[0])
	for key, want := range map[string]any{
		"level": "INFO", "msg": "stored", "service": "ticket-api", "version": build.Version, "n": 0.0,
		"trace_id": span.TraceID().String(), "span_id": span.SpanID().String(),
	} {
		if got := r.logs[1][key]; got != want {
			t.Errorf("%s = %v, want %v", key, got, want)
		}
	}
	if _, named := r.logs[2]["trace_id"]; named {
		t.Error("a log line outside of every span names one")
	}
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	for level, lines := range map[string]int{"debug": 4, "DEBUG": 4, "info": 3, "": 3, "warn": 0, "error": 0} {
		if r := runService(t, []string{"EVALONCE_LOG_LEVEL=" + level}); r.code != 0 || len(r.logs) != lines {
			t.Errorf("%q: exit code %d and %d lines, want %d: %s", level, r.code, len(r.logs), lines, r.stderr)
		}
	}
	r := runService(t, []string{"EVALONCE_LOG_LEVEL=loud"})
	if r.code != 2 || !strings.Contains(r.stderr, `EVALONCE_LOG_LEVEL="loud" is none of debug, info, warn, error`) {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
}

func TestMetricsAreServedAndExported(t *testing.T) {
	t.Parallel()
	exported := make(chan []byte, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/metrics" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		exported <- body
	}))
	t.Cleanup(collector.Close)
	r := runService(t, []string{"OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL})
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	for _, want := range []string{"evalonce_test_things_total 3\n", `service_name="ticket-api"`, "go_goroutines ", "process_resident_memory_bytes "} {
		if !strings.Contains(r.metrics, want) {
			t.Errorf("%q is not served:\n%s", want, r.metrics)
		}
	}
	if !bytes.Contains(<-exported, []byte("evalonce_test_things")) {
		t.Error("the counter is not exported")
	}
}

func TestSpansAreExported(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var requests []*collectorv1.ExportTraceServiceRequest
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collectorv1.ExportTraceServiceRequest)
		if err = errors.Join(err, proto.Unmarshal(body, request)); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, request)
	}))
	t.Cleanup(collector.Close)

	r := runService(t, []string{"OTEL_METRICS_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"}, caller)
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(requests) != 1 || len(requests[0].GetResourceSpans()) != 1 {
		t.Fatalf("%d requests, want one with one resource", len(requests))
	}
	exported := requests[0].GetResourceSpans()[0]
	resource := values(exported.GetResource().GetAttributes())
	for key, want := range map[string]string{
		"service.name": "ticket-api", "service.version": release.Current().Version, "telemetry.sdk.language": "go", "deployment.environment.name": "test",
	} {
		if resource[key] != want {
			t.Errorf("resource attribute %s = %q, want %q", key, resource[key], want)
		}
	}
	spans := exported.GetScopeSpans()[0].GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	for i, span := range spans {
		id := trace.SpanID(span.GetSpanId())
		if want := telemetry.Extract(r.traceparents[i]).SpanID(); id != want {
			t.Errorf("span %d is %s, want %s", i, id, want)
		}
		attributes := values(span.GetAttributes())
		for key, want := range map[string]string{
			"messaging.system": "evalonce", "messaging.destination.name": "evaluation",
			"messaging.operation.name": "send", "messaging.operation.type": "send",
		} {
			if attributes[key] != want {
				t.Errorf("%s = %q, want %q", key, attributes[key], want)
			}
		}
		if span.GetName() != "send evaluation" {
			t.Errorf("name %q", span.GetName())
		}
	}
}

func TestShutdownDoesNotWaitForACollectorThatHangs(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // connections are taken by the kernel and never answered
	r := runService(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + listener.Addr().String()})
	if r.code != 1 || !strings.Contains(r.stderr, "send the last spans: ") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	last := r.logs[len(r.logs)-1]
	if took, _ := last["took_ms"].(float64); last["msg"] != "flushed" || took < 1000 || took > 8000 {
		t.Errorf("flushing took %v ms, want the 2 s of its context", last["took_ms"])
	}
}

func TestSDKCanBeDisabled(t *testing.T) {
	t.Parallel()
	r := runService(t, []string{"OTEL_SDK_DISABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, caller)
	if r.code != 0 || len(r.traceparents) != 2 {
		t.Fatalf("exit code %d, %v, %s", r.code, r.traceparents, r.stderr)
	}
	if r.traceparents[0] != "" || r.traceparents[1] != caller {
		t.Errorf("%q, want no trace of its own and the caller's as it was", r.traceparents)
	}
}

func TestAnUnknownExporterIsAnErrorOfUsage(t *testing.T) {
	t.Parallel()
	if r := runService(t, []string{"OTEL_TRACES_EXPORTER=carrier-pigeon"}); r.code != 2 || !strings.Contains(r.stderr, "OTEL_TRACES_EXPORTER") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
}

func TestExporting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		environ []string
		want    bool
	}{
		"nothing":       {nil, false},
		"empty":         {[]string{"OTEL_TRACES_EXPORTER=", "OTEL_EXPORTER_OTLP_ENDPOINT="}, false},
		"endpoint":      {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c"}, true},
		"its own":       {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c"}, true},
		"metrics only":  {[]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://c"}, false},
		"exporter":      {[]string{"OTEL_TRACES_EXPORTER=console"}, true},
		"none wins":     {[]string{"OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c"}, false},
		"disabled wins": {[]string{"OTEL_SDK_DISABLED=TRUE", "OTEL_TRACES_EXPORTER=otlp"}, false},
	} {
		if got := telemetry.Exporting(test.environ); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func values(attributes []*commonv1.KeyValue) map[string]string {
	m := make(map[string]string, len(attributes))
	for _, a := range attributes {
		m[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return m
}
