package submit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

// counts are the values of a metric by its one label.
func counts(t *testing.T, reader sdkmetric.Reader, name, label string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					value, _ := p.Attributes.Value(attribute.Key(label))
					got[value.AsString()] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					value, _ := p.Attributes.Value(attribute.Key(label))
					got[value.AsString()] = int64(p.Count)
				}
			}
		}
	}
	return got
}

// What is counted is what the tables have in the end: of tickets with one text, one asks for the call.
func TestWhatIsMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	measured, err := metrics.NewTicketAPI(provider.Meter("test"))
	if err != nil {
		t.Fatal(err)
	}
	s := submit.New(pgtest.PoolAs(t, w.db, pgtest.TicketAPI), submit.Options{Retention: time.Hour, Metrics: measured})

	all := func(requests ...submit.Request) error {
		_, err := s.SubmitAll(t.Context(), requests)
		return err
	}
	if err := all(request("1", "hello"), request("2", "hello"), request("3", "another")); err != nil { // two calls, one follower
		t.Fatal(err)
	}
	if err := all(request("1", "hello"), request("4", "hello")); err != nil { // a replay, a follower
		t.Fatal(err)
	}
	if err := all(request("1", "not the same")); !errors.Is(err, submit.ErrKeyReused) {
		t.Fatal(err)
	}
	want := map[string]int64{metrics.Created: 4, metrics.Replayed: 1, metrics.Refused: 1}
	if got := counts(t, reader, "evalonce.tickets", "outcome"); got[metrics.Failed] != 0 || got[metrics.Created] != 4 || got[metrics.Replayed] != 1 || got[metrics.Refused] != 1 {
		t.Errorf("tickets: %v, want %v", got, want)
	}
	if got := counts(t, reader, "evalonce.dedup.hits", "state"); got[metrics.Answered] != 0 || got[metrics.Following] != 2 {
		t.Errorf("hits: %v, want 2 followers", got)
	}
	if got := w.count("ticket"); got != 4 {
		t.Errorf("%d tickets are stored", got)
	}
	if got := w.count("evaluation_outbox"); got != 2 {
		t.Errorf("%d evaluations wait, want as many as tickets without the hits", got)
	}
	if got := counts(t, reader, "evalonce.create.group.size", ""); got[""] != 2 {
		t.Errorf("%d groups are committed, want 2", got[""])
	}
	if got := counts(t, reader, "evalonce.create.duration", "outcome"); got[metrics.Created] != 2 || got[metrics.Refused] != 1 {
		t.Errorf("durations: %v", got)
	}

	// An answer makes hits of all that come later.
	if _, err := w.db.Exec(t.Context(), `WITH done AS (DELETE FROM evaluation_outbox RETURNING *)
		INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score, model_version, prompt_version,
		  policy_version, priority, queue, model_call_id)
		SELECT idempotency_key, content_hash, ticket_id, version_id, 0.5, 'billing', 0.5, 'm', 'p1', 'builtin-1', 'low', 'billing', gen_random_uuid() FROM done`); err != nil {
		t.Fatal(err)
	}
	if err := all(request("5", "hello"), request("6", "hello")); err != nil {
		t.Fatal(err)
	}
	if got := counts(t, reader, "evalonce.dedup.hits", "state"); got[metrics.Answered] != 2 || got[metrics.Following] != 2 {
		t.Errorf("hits: %v, want 2 answered and 2 followers", got)
	}
}
