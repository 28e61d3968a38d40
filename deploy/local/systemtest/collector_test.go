package systemtest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// collector takes spans and metrics over both of OTLP's protocols, and keeps them as they came.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	metrics metricsCollector
	http    *httptest.Server
	grpc    string // address

	mu    sync.Mutex
	raw   [][]byte
	spans []*tracev1.Span
}

// metricsCollector is apart: its service's method has the name of the other's.
type metricsCollector struct {
	metricsv1.UnimplementedMetricsServiceServer
	of *collector
}

func collect(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.metrics.of = c
	c.http = httptest.NewServer(c)
	t.Cleanup(c.http.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	metricsv1.RegisterMetricsServiceServer(server, &c.metrics)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Errorf("the collector: %v", err)
		}
	})
	c.grpc = listener.Addr().String()
	return c
}

// overHTTP and overGRPC are what a process is told of the collector.
func (c *collector) overHTTP(more ...string) []string {
	return append([]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.http.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_METRIC_EXPORT_INTERVAL=200", "EVALONCE_LOG_LEVEL=debug",
	}, more...)
}

func (c *collector) overGRPC(more ...string) []string {
	return append(c.overHTTP(), append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.grpc, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, more...)...)
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // its sender is dead
	}
	switch r.URL.Path {
	case "/v1/traces":
		var request collectorv1.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &request); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.keep(&request)
	case "/v1/metrics":
		c.mu.Lock()
		c.raw = append(c.raw, body)
		c.mu.Unlock()
	}
}

// Export takes spans over gRPC.
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.keep(r)
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// Export takes metrics over gRPC.
func (m *metricsCollector) Export(_ context.Context, r *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	body, err := proto.Marshal(r)
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.of.raw = append(m.of.raw, body)
	return &metricsv1.ExportMetricsServiceResponse{}, err
}

func (c *collector) keep(r *collectorv1.ExportTraceServiceRequest) {
	body, err := proto.Marshal(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.raw = append(c.raw, body)
	}
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

// await waits for a span, and returns it.
func (c *collector) await(t *testing.T, what string, is func(*tracev1.Span) bool) *tracev1.Span {
	t.Helper()
	for deadline, tick := time.After(patience), time.Tick(20*time.Millisecond); ; {
		c.mu.Lock()
		i := slices.IndexFunc(c.spans, is)
		if i >= 0 {
			defer c.mu.Unlock()
			return c.spans[i]
		}
		c.mu.Unlock()
		select {
		case <-deadline:
			t.Fatalf("no %s came in %s", what, patience)
		case <-tick:
		}
	}
}

// contains reports whether anything that came has a text in it; strings are in protobuf as they are.
func (c *collector) contains(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.raw, func(b []byte) bool { return bytes.Contains(b, []byte(text)) })
}
