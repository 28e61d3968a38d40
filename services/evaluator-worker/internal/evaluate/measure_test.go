package evaluate_test

import (
	"context"
	"math"
	"testing"

	"github.com/shopspring/decimal"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

// measured is what a worker has counted.
type measured struct {
	t      *testing.T
	reader sdkmetric.Reader
}

func newMeasured(t *testing.T) (*metrics.Worker, measured) {
	t.Helper()
	m := measured{t, sdkmetric.NewManualReader()}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(m.reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	w, err := metrics.NewWorker(provider.Meter("test"))
	if err != nil {
		t.Fatal(err)
	}
	return w, m
}

// sum adds the points of a metric that have these labels; of a histogram its values are counted.
func (m measured) sum(name string, labels ...attribute.KeyValue) float64 {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(m.t.Context(), &all); err != nil {
		m.t.Fatal(err)
	}
	var total float64
	add := func(set attribute.Set, value float64) {
		for _, l := range labels {
			if got, ok := set.Value(l.Key); !ok || got != l.Value {
				return
			}
		}
		total += value
	}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(p.Attributes, float64(p.Count))
				}
			}
		}
	}
	return total
}

// What is measured and what the ledger has are the same: calls, tokens and dollars, answers and dead letters.
func TestMetricsTellWhatTheLedgerHas(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, providersim.Options{Script: []providersim.Rule{
		{Match: providersim.Match{Text: "<0>"}, Action: providersim.Action{Answer: providersim.AnswerRefusal}},
		{Match: providersim.Match{Text: "<1>"}, Action: providersim.Action{Error: providersim.Overloaded503}, Times: 1},
		{Match: providersim.Match{Text: "<2>"}, Action: providersim.Action{Close: providersim.CloseAfterAnswer}, Times: 1},
	}}, func(v *evaluation.Version) {
		v.Prices = evaluation.Prices{InputUSDPerMTok: decimal.NewFromInt(2), OutputUSDPerMTok: decimal.NewFromInt(8)}
	})
	r.create(outbox.Live, 0, 40)
	r.create(outbox.Bulk, 40, 50)
	w, m := newMeasured(t)
	stop := r.start(func(o *evaluate.Options) { o.Metrics = w })
	r.until(2, "model_call WHERE outcome IN ('failed', 'unknown')")
	r.due()
	r.until(49, "evaluation_result")
	r.until(1, "evaluation_outbox WHERE status = 'dead'")
	stop()

	label := attribute.String
	for name, c := range map[string]struct{ got, want float64 }{
		"answers":         {m.sum("evalonce.evaluations", label("outcome", metrics.Answered)), 49},
		"bulk answers":    {m.sum("evalonce.evaluations", label("outcome", metrics.Answered), label("lane", "bulk")), 10},
		"dead letters":    {m.sum("evalonce.evaluations", label("outcome", metrics.Dead), label("class", "permanent")), 1},
		"retries":         {m.sum("evalonce.evaluations", label("outcome", metrics.Retried)), 2},
		"lost":            {m.sum("evalonce.unknown.outcomes"), 1},
		"answered calls":  {m.sum("evalonce.model.calls", label("outcome", "answered"), label("model", r.version.Model)), float64(r.count("model_call WHERE outcome = 'answered'"))},
		"all calls":       {m.sum("evalonce.model.calls"), float64(r.count("model_call WHERE outcome <> 'unsent'"))},
		"times of calls":  {m.sum("evalonce.model.call.duration"), float64(r.count("model_call WHERE outcome <> 'unsent'"))},
		"claims":          {m.sum("evalonce.claims"), float64(r.count("model_call"))},
		"pickups":         {m.sum("evalonce.pickup.latency"), 50},
		"latencies":       {m.sum("evalonce.evaluation.latency"), 49},
		"input tokens":    {m.sum("evalonce.model.tokens", label("type", "input")), r.total("input_tokens")},
		"output tokens":   {m.sum("evalonce.model.tokens", label("type", "output")), r.total("output_tokens")},
		"dollars":         {m.sum("evalonce.model.cost", label("version", "v1")), r.total("cost_usd")},
		"released":        {m.sum("evalonce.evaluations", label("outcome", metrics.Released)), float64(r.count("model_call WHERE outcome = 'unsent'"))},
		"mistaken labels": {m.sum("evalonce.evaluations", label("lane", metrics.Other)), 0},
	} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("%s: measured %v, want %v", name, c.got, c.want)
		}
	}
	if r.total("cost_usd") == 0 || r.total("input_tokens") == 0 {
		t.Error("the calls have cost nothing")
	}
	r.check()
}

func (r *rig) total(column string) float64 {
	r.t.Helper()
	var sum float64
	if err := r.db.QueryRow(r.t.Context(), "SELECT coalesce(sum("+column+"), 0)::float8 FROM model_call").Scan(&sum); err != nil {
		r.t.Fatal(err)
	}
	return sum
}
