package route_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
)

func (w *world) change(do func(ctx context.Context, tx pgx.Tx) (bool, error)) (changed bool) {
	w.t.Helper()
	if err := postgres.InTx(w.t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) (err error) {
		changed, err = do(ctx, tx)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return changed
}

func (w *world) pause() bool {
	w.t.Helper()
	return w.change(func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return route.Pause(ctx, tx, "r", "ana", "moving house")
	})
}

func (w *world) resume() bool {
	w.t.Helper()
	return w.change(func(ctx context.Context, tx pgx.Tx) (bool, error) { return route.Resume(ctx, tx, "r") })
}

func (w *world) control() route.Control {
	w.t.Helper()
	controls, err := route.Controls(w.t.Context(), w.db, "r")
	if err != nil || len(controls) != 1 {
		w.t.Fatalf("read %v, %v", controls, err)
	}
	return controls[0]
}

// Whatever the breaker comes to, the pause stays until it is ended.
func TestNothingButAnOperatorEndsAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work()
	w.fail(uuid.Nil, 5, outage)
	w.due()
	probe, ok := w.probe()
	if !ok {
		t.Fatal("there is no probe")
	}
	if !w.pause() || w.pause() {
		t.Fatal("the first pause has an effect, and the second has none")
	}
	w.succeed(probe) // it was under way
	if r := w.route(); r.State != route.Closed || r.Flowing() || !r.Paused {
		t.Errorf("after the probe's success: %+v", r)
	}
	if n := w.permitted(); n != 0 {
		t.Errorf("%d calls are permitted", n)
	}
	w.fail(uuid.Nil, 5, outage)
	w.due()
	if _, ok := w.probe(); ok || w.route().ProbeDue() {
		t.Error("a probe has begun")
	}
	if c := w.control(); c.PausedBy != "ana" || c.PauseReason != "moving house" || c.PausedAt.IsZero() || c.State != route.Open {
		t.Errorf("the route is %+v", c)
	}
	if !w.resume() || w.resume() {
		t.Error("the first resumption has an effect, and the second has none")
	}
	if r := w.route(); r.State != route.Open || !r.ProbeDue() {
		t.Errorf("resumed: %+v", r)
	}
}

func TestResetClosesTheBreaker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work()
	reset := func() bool {
		t.Helper()
		return w.change(func(ctx context.Context, tx pgx.Tx) (bool, error) { return route.Reset(ctx, tx, "r") })
	}
	if reset() {
		t.Error("a route that is well was reset")
	}
	w.fail(uuid.Nil, 5, outage)
	w.due()
	probe, _ := w.probe()
	if !reset() {
		t.Error("the reset had no effect")
	}
	if r := w.route(); r.State != route.Closed || r.Reason != "" || r.Failures != 0 || !r.Flowing() || r.Ramp != 2 {
		t.Errorf("reset, the route is %+v", r)
	}
	// The probe of before is one call among others by now.
	if got := w.fail(probe, 1, outage); got != route.Closed {
		t.Errorf("its failure made the route %s", got)
	}
}

func TestCallTimeoutAndUnknownRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, want := range []bool{true, false} {
		if got := w.change(func(ctx context.Context, tx pgx.Tx) (bool, error) {
			return route.SetCallTimeout(ctx, tx, "r", 45*time.Second)
		}); got != want {
			t.Errorf("time %d: changed %t", i, got)
		}
	}
	if got := w.control().CallTimeout; got != 45*time.Second {
		t.Errorf("the call timeout is %s", got)
	}
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error { return route.Lock(ctx, tx, "nowhere") })
	if !errors.Is(err, route.ErrUnknownRoute) {
		t.Errorf("an unknown route: %v", err)
	}
}

func TestControlsTellWhatIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(route.Limits{RequestsPerMinute: 600, TokensPerMinute: 6000})
	w.refill()
	if c := w.control(); c.RequestsLeft != 31 || c.TokensLeft != 301 { // a twentieth, and one
		t.Errorf("left are %d requests and %d tokens", c.RequestsLeft, c.TokensLeft)
	}
}
