package metrics_test

import (
	"context"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/evalonce/evalonce/pkg/metrics"
)

var update = flag.Bool("update", false, "write the catalogue's table anew")

func TestCatalogueIsClosed(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^evalonce\.[a-z_.]+$`)
	seen := map[string]bool{}
	for _, m := range metrics.Catalogue() {
		if !m.Library && !name.MatchString(m.Name) || m.Help == "" || m.Service == "" || seen[m.Prometheus()] {
			t.Errorf("%s: no name, no help, no service, or twice", m.Name)
		}
		seen[m.Prometheus()] = true
		if (m.Kind == metrics.Histogram) != (len(m.Buckets) > 0) && !m.Library || !slices.IsSorted(m.Buckets) {
			t.Errorf("%s: buckets %v", m.Name, m.Buckets)
		}
		for _, l := range m.Labels {
			if (len(l.Values) == 0) == (l.Bound == "") {
				t.Errorf("%s: label %s needs either its values or what bounds them", m.Name, l.Name)
			}
			if l.Has(metrics.Other) && l.Bound == "" {
				t.Errorf("%s: label %s has the value of mistakes", m.Name, l.Name)
			}
		}
	}
}

// everything makes every instrument and gives every label a value, and returns what Prometheus is shown.
func everything(t *testing.T) map[string][]map[string]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	meter, ctx := provider.Meter("test"), t.Context()

	api, err := metrics.NewTicketAPI(meter)
	if err != nil {
		t.Fatal(err)
	}
	api.Answered(ctx, metrics.Created, 3, time.Second)
	api.Committed(ctx, 3, 1, 1)
	worker, err := metrics.NewWorker(meter)
	if err != nil {
		t.Fatal(err)
	}
	worker.Claimed(ctx, "main", "live", 3, 2, 1)
	worker.Settled(ctx, map[metrics.Alike]*metrics.Settled{
		{Route: "main", Lane: "live", Outcome: metrics.Retried, Class: "unknown", Call: metrics.Call{
			Provider: "openai", Model: "m", Version: "v", Outcome: "unknown", Class: "unknown",
		}}: {
			Evaluations: 1, Calls: 1, Input: 4, CachedInput: 3, Output: 2, Reasoning: 1, CostUSD: 0.5, Substituted: 1,
			CallSeconds: []float64{1}, PickupSeconds: []float64{1}, Seconds: []float64{2},
		},
	})
	worker.LostLeases(ctx, 1)
	worker.Reclaimed(ctx, 1, 1, 1)
	if _, err := worker.ObserveRunning(func(observe func(string, int)) { observe("main", 7) }); err != nil {
		t.Fatal(err)
	}
	webhooks, err := metrics.NewWebhooks(meter)
	if err != nil {
		t.Fatal(err)
	}
	webhooks.Attempted(ctx, "", time.Second)
	webhooks.Attempted(ctx, "timeout", time.Second)
	webhooks.Disabled(ctx, "gone")
	pool, err := pgxpool.New(ctx, "postgres://nobody@127.0.0.1:1/nowhere") // connects when it is asked to
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := metrics.Pools(meter, map[string]*pgxpool.Pool{"claims": pool}); err != nil {
		t.Fatal(err)
	}
	var samples []metrics.Sample
	for _, m := range metrics.Catalogue() {
		if !m.Snapshot || m.Name == metrics.SnapshotAge {
			continue
		}
		s := metrics.Sample{Metric: m.Name, Value: 1}
		for _, l := range m.Labels {
			s.Labels = append(s.Labels, append(l.Values, "bounded")[0])
		}
		samples = append(samples, s)
	}
	samples = append(samples, metrics.Sample{Metric: "evalonce.of.tomorrow", Value: 1})
	if _, err := metrics.Snapshot(meter, time.Minute, func() ([]metrics.Sample, time.Duration, bool) { return samples, time.Second, true }); err != nil {
		t.Fatal(err)
	}
	return gathered(t, registry)
}

func gathered(t *testing.T, registry *prometheus.Registry) map[string][]map[string]string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string][]map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			shown[f.GetName()] = append(shown[f.GetName()], labels)
		}
	}
	delete(shown, "target_info")
	return shown
}

// The catalogue's names are those that Prometheus is shown, and what is measured and what is described are the same.
func TestInstrumentsAreThoseOfTheCatalogue(t *testing.T) {
	t.Parallel()
	shown := everything(t)
	for _, m := range metrics.Catalogue() {
		if m.Library {
			continue
		}
		series, ok := shown[m.Prometheus()]
		if !ok {
			t.Errorf("%s is in the catalogue, and nothing measures it", m.Prometheus())
		}
		delete(shown, m.Prometheus())
		for _, labels := range series {
			if len(labels) != len(m.Labels) {
				t.Errorf("%s has labels %v", m.Prometheus(), labels)
			}
			for name, value := range labels {
				if l, ok := m.Label(name); !ok || !l.Has(value) {
					t.Errorf("%s has label %s=%q, which the catalogue does not know", m.Prometheus(), name, value)
				}
			}
		}
	}
	if len(shown) > 0 {
		t.Errorf("not in the catalogue: %v", slices.Sorted(maps.Keys(shown)))
	}
}

// A value that no closed set has is one series more, however many there are.
func TestAnUnknownValueIsOther(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	webhooks, err := metrics.NewWebhooks(provider.Meter("test"))
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"https://a.example/", "https://b.example/"} {
		webhooks.Disabled(t.Context(), reason)
	}
	got := gathered(t, registry)["evalonce_webhook_endpoints_disabled_total"]
	others := 0
	for _, labels := range got {
		if labels["reason"] == metrics.Other {
			others++
		}
	}
	if len(got) != 3 || others != 1 { // those of the catalogue, from the beginning, and one more
		t.Errorf("got %v", got)
	}
}

// What is too old is not shown as if it were of now.
func TestAnOldSnapshotShowsItsAgeAlone(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	samples := []metrics.Sample{{Metric: metrics.SweepOK, Value: 1}}
	stop, err := metrics.Snapshot(provider.Meter("test"), time.Minute, func() ([]metrics.Sample, time.Duration, bool) { return samples, time.Hour, true })
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(maps.Keys(gathered(t, registry))); !slices.Equal(got, []string{"evalonce_snapshot_age_seconds"}) {
		t.Errorf("shown: %v", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := gathered(t, registry); len(got) > 0 {
		t.Errorf("shown after the stop: %v", got)
	}
}

func TestNothingIsMeasuredByNil(t *testing.T) {
	t.Parallel()
	var (
		api      *metrics.TicketAPI
		worker   *metrics.Worker
		webhooks *metrics.Webhooks
	)
	api.Answered(t.Context(), metrics.Created, 1, 0)
	api.Committed(t.Context(), 1, 1, 1)
	worker.Claimed(t.Context(), "main", "live", 1, 0, 0)
	worker.Settled(t.Context(), nil)
	worker.LostLeases(t.Context(), 1)
	worker.Reclaimed(t.Context(), 1, 1, 1)
	webhooks.Attempted(t.Context(), "", 0)
	webhooks.Disabled(t.Context(), "gone")
	if stop, err := worker.ObserveRunning(nil); err != nil || stop() != nil {
		t.Error(err)
	}
}

// README.md has the table: go test ./pkg/metrics -update.
func TestTheTableIsTold(t *testing.T) {
	t.Parallel()
	const path = "README.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const mark = "<!-- The table is made from the catalogue: go test ./pkg/metrics -update -->\n"
	head, _, ok := strings.Cut(string(text), mark)
	if !ok {
		t.Fatal("README.md has no place for the table")
	}
	want := head + mark + "\n" + metrics.Table()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Error("the table is not the catalogue's: go test ./pkg/metrics -update")
	}
}
