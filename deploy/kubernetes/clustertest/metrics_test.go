package clustertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// externalMetrics is what prometheus-adapter is in a cluster: behind an APIService, it answers with the age of the queue.
type externalMetrics struct {
	server *httptest.Server

	mu   sync.Mutex
	ages map[string]int64 // of the oldest ready work in seconds, by namespace
}

const externalMetricsAPI = "/apis/external.metrics.k8s.io/v1beta1"

const apiService = `apiVersion: v1
kind: Service
metadata: {name: external-metrics, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: external-metrics, namespace: kube-system, port: %s}
`

func serveExternalMetrics(ctx context.Context, p *plane) (*externalMetrics, error) {
	m := &externalMetrics{ages: map[string]int64{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+externalMetricsAPI, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "external.metrics.k8s.io/v1beta1",
			APIResources: []metav1.APIResource{{Name: "externalmetrics", Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}}},
		})
	})
	// Whoever asks for another metric, or another lane, finds nothing.
	mux.HandleFunc("GET "+externalMetricsAPI+"/namespaces/{namespace}/evalonce_queue_oldest_ready_age_seconds", func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		age, known := m.ages[r.PathValue("namespace")]
		m.mu.Unlock()
		if !known || r.URL.Query().Get("labelSelector") != "lane=live" {
			http.NotFound(w, r)
			return
		}
		answer(w, map[string]any{
			"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": map[string]any{},
			"items": []any{map[string]any{
				"metricName": "evalonce_queue_oldest_ready_age_seconds", "metricLabels": map[string]string{"lane": "live"},
				"timestamp": metav1.Now(), "value": resource.NewQuantity(age, resource.DecimalSI),
			}},
		})
	})
	m.server = httptest.NewTLSServer(mux)
	manifest := filepath.Join(p.dir, "external-metrics.yaml")
	if err := os.WriteFile(manifest, fmt.Appendf(nil, apiService, port(m.server.URL)), 0o600); err != nil {
		m.server.Close()
		return nil, err
	}
	for _, args := range [][]string{
		{"apply", "-f", manifest},
		{"wait", "--for=condition=Available", "apiservice/v1beta1.external.metrics.k8s.io", "--timeout=" + patience.String()},
	} {
		if _, err := p.kubectl(ctx, args...); err != nil {
			m.server.Close()
			return nil, fmt.Errorf("serve external metrics: %w", err)
		}
	}
	return m, nil
}

// say sets the age that the autoscaler of a namespace is told.
func (m *externalMetrics) say(namespace string, seconds int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ages[namespace] = seconds
}

func answer(w http.ResponseWriter, content any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(content)
}
