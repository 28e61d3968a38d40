package systemtest

import (
	"context"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/evalonce/evalonce/pkg/metrics"
)

// fetch returns what a process measures; nothing of one that has ended.
func (s *system) fetch(health string) map[string]*dto.MetricFamily {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, health+"/metrics", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s tells what it measures with status %d: %v", health, resp.StatusCode, err)
	}
	return families
}

// ofLibraries are the metrics of the process, of Go's runtime, of the fetching and of the exporter itself.
var ofLibraries = regexp.MustCompile(`^(go|process|promhttp|otel)_|^target_info$`)

// measured compares what the processes that still run measure with the catalogue, and returns the names of what they show.
// There is nothing beside the catalogue, and no label that it does not know has a value; what bounds the others is in the
// tables.
func (s *system) measured() []string {
	s.t.Helper()
	known := map[string]metrics.Metric{}
	for _, m := range metrics.Catalogue() {
		known[m.Prometheus()] = m
	}
	healths := append(slices.Clone(s.workers), s.server.Health)
	if s.admin != nil {
		healths = append(healths, s.admin.Health)
	}
	shown := map[string]bool{}
	for _, health := range healths {
		for name, family := range s.fetch(health) {
			if ofLibraries.MatchString(name) {
				continue
			}
			m, ok := known[name]
			if !ok {
				s.t.Errorf("%s is measured, and not in the catalogue", name)
				continue
			}
			shown[name] = true
			for _, series := range family.GetMetric() {
				for _, l := range series.GetLabel() {
					s.label(m, l.GetName(), l.GetValue())
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(shown))
}

// label judges a value of a label.
func (s *system) label(m metrics.Metric, name, value string) {
	s.t.Helper()
	l, ok := m.Label(name)
	if !ok || !l.Has(value) {
		s.t.Errorf("%s has %s=%q, which the catalogue does not know", m.Prometheus(), name, value)
		return
	}
	bounds := map[string]string{
		"route": "provider_route WHERE name = $1", "version": "evaluator_version WHERE id = $1", "model": "evaluator_version WHERE model = $1 LIMIT 1",
		"scope": "(SELECT name FROM provider_route UNION SELECT '*') s WHERE s.name = $1",
	}
	switch {
	case l.Bound == "":
	case bounds[name] != "":
		if s.count(bounds[name], value) == 0 {
			s.t.Errorf("%s has %s=%q, which the tables do not know", m.Prometheus(), name, value)
		}
	case name == "rpc_method":
		full := protoreflect.FullName(strings.ReplaceAll(value, "/", "."))
		if _, err := protoregistry.GlobalFiles.FindDescriptorByName(full); err != nil {
			s.t.Errorf("%s has a method that there is not, %q", m.Prometheus(), value)
		}
	case name == "rpc_response_status_code" || name == "error_type":
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(`"` + value + `"`)); err != nil {
			s.t.Errorf("%s has %s=%q, which is no code", m.Prometheus(), name, value)
		}
	default:
		s.t.Errorf("%s: nobody has checked what bounds %s", m.Prometheus(), name)
	}
}

// callNothing calls methods that there are not, over both protocols.
func (s *system) callNothing() {
	s.t.Helper()
	conn, err := grpc.NewClient(s.server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range []string{"/of.my.own/Making", "/evalonce.ticket.v1.TicketService/OfMyOwnMaking"} {
		if err := conn.Invoke(s.ctx, method, &dto.Metric{}, &dto.Metric{}); status.Code(err) != codes.Unimplemented {
			s.t.Errorf("%s: %v", method, err)
		}
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(s.t.Context()), http.MethodGet, s.server.HTTP+"/v1/of-my-own-making", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body.Close()
}

// byFaults are the metrics that show only once something goes wrong, or is set: limits, webhooks, other models, duplicates.
func byFaults() []string {
	return []string{
		"evalonce_model_substitutions_total", "evalonce_webhook_attempts_total", "evalonce_webhook_attempt_duration_seconds",
		"evalonce_route_limit", "evalonce_route_permits", "evalonce_spend_USD", "evalonce_spend_limit_USD", "evalonce_saved_USD", "evalonce_sweep_count",
	}
}

// everythingIsMeasured wants all of the catalogue that a run without faults shows, once admin has looked at the tables.
func (s *system) everythingIsMeasured() {
	s.t.Helper()
	s.callNothing()
	for deadline := time.Now().Add(patience); s.fetch(s.admin.Health)["evalonce_snapshot_age_seconds"] == nil; {
		if time.Now().After(deadline) {
			s.t.Fatal("admin has not measured the tables")
		}
		s.until(1, "queue_snapshot WHERE taken_at > 'epoch'")
	}
	shown := s.measured()
	for _, m := range metrics.Catalogue() {
		if name := m.Prometheus(); !slices.Contains(shown, name) && !slices.Contains(byFaults(), name) {
			s.t.Errorf("%s is in the catalogue, and nobody measures it", name)
		}
	}
}
