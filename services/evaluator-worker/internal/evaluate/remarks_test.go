package evaluate_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

// A worker whose route is halted, paused or out of budget goes on, and says so.
func TestRemarks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := pgtest.PoolAs(t, r.db, pgtest.EvaluatorWorker)
	w := evaluate.New(evaluate.Options{
		Claims: pool, Settles: pool, Name: uuid.NewString(), Concurrency: 1, Lease: time.Minute, PollInterval: time.Minute, Tracer: r.tracer,
	})
	if got := w.Remarks(); len(got) > 0 {
		t.Errorf("before it knows its routes it says %q", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	says := func(want ...string) {
		t.Helper()
		deadline := time.After(patience)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for !slices.Equal(w.Remarks(), want) {
			select {
			case <-deadline:
				t.Fatalf("it says %q, want %q", w.Remarks(), want)
			case <-tick.C:
			}
		}
	}
	r.exec("UPDATE provider_route SET state = 'halted', reason = 'unauthorized', not_before = now() + interval '1 hour'")
	says("route main is halted: unauthorized")
	r.exec("UPDATE provider_route SET paused_at = now(), paused_by = 'ops', pause_reason = 'why'")
	says("route main is paused")
	r.exec("UPDATE provider_route SET state = 'closed', reason = '', not_before = 'epoch', paused_at = NULL, paused_by = NULL, pause_reason = NULL")
	says()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
