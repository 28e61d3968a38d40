package evaluate_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(outbox.Live, 0, 150)
	r.create(outbox.Live, 100, 250) // 50 of them again
	r.create(outbox.Bulk, 250, 300)
	r.start()
	r.start()
	r.until(300, "evaluation_result")
	r.until(0, "evaluation_outbox")
	if s := r.sim.Stats(); s.Billed != 300 || s.MaxBilledPerContent != 1 {
		t.Errorf("billed %d answers, %d for one content", s.Billed, s.MaxBilledPerContent)
	}
	explained := r.count(`evaluation_result r JOIN model_call m ON m.id = r.model_call_id
		WHERE m.outcome = 'answered' AND m.response IS NOT NULL AND m.input_tokens > 0 AND m.output_tokens > 0 AND m.served_model = r.model_version
			AND m.http_status = 200 AND m.provider_request_id <> '' AND m.cost_usd IS NOT NULL AND r.prompt_version = 'p1' AND r.policy_version <> ''`)
	if explained != 300 {
		t.Errorf("%d of 300 results explain themselves", explained)
	}
	r.check()
}

// New work is found by its hint, long before the next poll.
func TestHintWakesAnIdleWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(func(o *evaluate.Options) { o.PollInterval = time.Hour })
	for n := range 5 {
		r.create(outbox.Live, n, n+1)
		r.exec("SELECT pg_notify('evalonce_work', '')")
		r.until(n+1, "evaluation_result")
	}
	r.check()
}

func TestFailuresOfOneItem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action  providersim.Action
		status  string
		reason  string
		outcome string
		billed  int
	}{
		"contract violation": {providersim.Action{Content: `{"is_urgent":1,"department":"ROOT","urgency_score":0}`}, "dead", "contract_violation", "rejected", 1},
		"refusal":            {providersim.Action{Answer: providersim.AnswerRefusal}, "dead", "refusal", "rejected", 1},
		"truncated":          {providersim.Action{Answer: providersim.AnswerTruncated}, "dead", "truncated", "rejected", 1},
		"context too long":   {providersim.Action{Error: providersim.ContextLength}, "dead", "context_too_long", "failed", 0},
		"content filter":     {providersim.Action{Error: providersim.ContentFilter400}, "dead", "content_filter", "failed", 0},
		"server error":       {providersim.Action{Error: providersim.ServerError500}, "pending", "server_error", "failed", 0},
		"rate limit":         {providersim.Action{Error: providersim.RateLimit, RetryAfter: time.Minute}, "pending", "rate_limited", "failed", 0},
		"cut in its body":    {providersim.Action{CutAfterBytes: 20}, "pending", "connection_lost", "unknown", 1},
		"no response":        {providersim.Action{Close: providersim.CloseAfterAnswer}, "pending", "connection_lost", "unknown", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, providersim.Rule{Match: providersim.Match{Text: "<0>"}, Action: c.action})
			r.create(outbox.Live, 0, 1)
			stop := r.start()
			r.until(1, "model_call WHERE outcome = $1", c.outcome)
			stop()
			r.until(1, "evaluation_outbox WHERE status = $1 AND last_reason = $2", c.status, c.reason)
			if got := r.sim.Stats().Billed; got != c.billed {
				t.Errorf("billed %d, want %d", got, c.billed)
			}
			if kept := r.count("model_call WHERE response IS NOT NULL"); c.outcome == "rejected" && kept != 1 {
				t.Error("the response that was paid for is not kept")
			}
			r.check()
		})
	}
}

func TestTransientFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Action: providersim.Action{Error: providersim.Overloaded503}, Times: 2})
	r.create(outbox.Live, 0, 1)
	r.start()
	for failed := 1; failed <= 2; failed++ {
		r.until(1, "evaluation_outbox WHERE status = 'pending' AND attempts = $1", failed)
		r.due()
	}
	r.until(1, "evaluation_result")
	r.check()
}

// While a route cannot serve, nothing burns: no dead letters, no attempts, and no more calls than were under way
// plus one probe at a time. When it can, everything is answered without a hand.
func TestNothingBurnsWhileARouteIsDown(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]providersim.Action{
		"outage":          {Error: providersim.Overloaded503},
		"revoked key":     {Error: providersim.InvalidAPIKey},
		"exhausted quota": {Error: providersim.InsufficientQuota},
		"throttled":       {Error: providersim.RateLimit, RetryAfter: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if err := r.sim.StartOutage(action); err != nil {
				t.Fatal(err)
			}
			r.create(outbox.Live, 0, 300)
			r.start()
			r.until(1, "provider_route WHERE not_before > now() AND reason <> ''")
			r.until(0, "evaluation_outbox WHERE status = 'processing'")
			before := r.sim.Stats().Requests
			const probes = 3
			for n := range probes {
				r.due()
				if err := r.sim.WaitForRequests(t.Context(), before+n+1); err != nil {
					t.Fatal(err)
				}
				r.until(1, "provider_route WHERE state <> 'half_open' AND not_before > now()")
				r.until(0, "evaluation_outbox WHERE status = 'processing'")
			}
			if got := r.sim.Stats().Requests - before; action.Error != providersim.RateLimit && got > probes {
				t.Errorf("%d requests while the route was down, want %d probes", got, probes)
			}
			if dead := r.count("evaluation_outbox WHERE status = 'dead'"); dead != 0 {
				t.Errorf("%d dead letters", dead)
			}
			r.sim.EndOutage()
			r.due()
			r.until(300, "evaluation_result")
			r.check()
		})
	}
}

// A worker that has stopped leaves no claim to be looked at.
func TestSettledClaimsAreEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(outbox.Live, 0, 30)
	r.create(outbox.Bulk, 30, 60)
	stop := r.start()
	r.until(60, "evaluation_result")
	stop()
	r.until(0, "evaluation_claim")
	r.check()
}

// A result that the database refuses does not hold up its neighbours, and its response is not bought again.
func TestUnwritableResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := r.create(outbox.Live, 0, 100)
	r.exec(fmt.Sprintf(`ALTER TABLE evaluation_result ADD CONSTRAINT no_good CHECK (idempotency_key <> '%s')`, keys[42]))
	r.start(func(o *evaluate.Options) { o.Concurrency = 100 })
	r.until(99, "evaluation_result")
	r.until(1, "evaluation_outbox WHERE status = 'pending' AND last_reason = 'result_unsaved' AND idempotency_key = $1", string(keys[42]))
	if n := r.count("model_call WHERE outcome = 'saved' AND response IS NOT NULL"); n != 1 {
		t.Errorf("%d saved responses, want 1", n)
	}
	r.exec("ALTER TABLE evaluation_result DROP CONSTRAINT no_good")
	r.due()
	r.until(100, "evaluation_result")
	if got := r.sim.Stats().Requests; got != 100 {
		t.Errorf("%d requests for 100 contents", got)
	}
	r.check()
}

// What was answered while the database was down is saved once it is back.
func TestDatabaseCrashWhileCallsRun(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgtest.Options{})
	r := newRigOn(t, server)
	if err := r.sim.AddRules(providersim.Rule{Action: providersim.Action{Hang: providersim.HangAfterAnswer}}); err != nil {
		t.Fatal(err)
	}
	r.create(outbox.Live, 0, 10)
	r.start()
	if err := r.sim.WaitHanging(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context(), pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	r.sim.ClearRules()
	r.sim.Release()
	r.db.Reset()
	r.untilDespiteErrors(10, "evaluation_result")
	if got := r.sim.Stats().Requests; got != 10 {
		t.Errorf("%d requests for 10 contents", got)
	}
	r.check()
}

func TestStopSavesRunningCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangAfterAnswer}})
	r.create(outbox.Live, 0, 20)
	stop := r.start(func(o *evaluate.Options) { o.Concurrency = 4 })
	if err := r.sim.WaitHanging(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	r.sim.ClearRules()
	r.sim.Release()
	<-stopped
	answered := r.count("evaluation_result")
	if answered < 4 {
		t.Errorf("%d results, want those of the 4 calls that ran", answered)
	}
	if n := r.count("evaluation_outbox WHERE status = 'pending' AND attempts = 0"); n != 20-answered {
		t.Errorf("%d untouched rows, want %d", n, 20-answered)
	}
	r.check()
}

func TestStopCutsCallsWhenItsGraceIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangAfterAnswer}})
	r.create(outbox.Live, 0, 1)
	stop := r.start(func(o *evaluate.Options) { o.Grace = 50 * time.Millisecond })
	if err := r.sim.WaitHanging(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	stop()
	if n := r.count("evaluation_outbox WHERE status = 'pending' AND unknown_calls = 1 AND attempts = 1"); n != 1 {
		t.Error("the call that was cut is not counted as unknown")
	}
	r.sim.ClearRules()
	r.due()
	r.start()
	r.until(1, "evaluation_result")
	r.check()
}

// A route is served whoever sees it first, be it who reports a failure of another.
func TestEveryRouteIsServed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(outbox.Live, 0, 3)
	r.prepare = func(w *evaluate.Worker) {
		if err := w.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
	}
	r.start()
	r.until(3, "evaluation_result")
	r.check()
}

// Live work goes first, and bulk work is not starved by it.
func TestLanes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(outbox.Bulk, 0, 200)
	r.create(outbox.Live, 1000, 1200)
	stop := r.start(func(o *evaluate.Options) { o.Concurrency = 5 })
	r.until(0, "evaluation_outbox")
	stop()
	var bulk int
	err := r.db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE length(t.message) < length('ticket <1000>')) FROM (
		SELECT * FROM model_call ORDER BY id LIMIT 200) m JOIN evaluation_result r USING (idempotency_key) JOIN ticket t ON t.id = r.ticket_id`).Scan(&bulk)
	if err != nil {
		t.Fatal(err)
	}
	if bulk < 20 || bulk > 60 {
		t.Errorf("%d of the first 200 calls were bulk work, want about a fifth", bulk)
	}
	r.check()
}

// Bulk work leaves slots free, so that live work never waits for a call of it to end; and goes on when one does.
func TestLiveWorkFindsASlotBesideBulkWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangAfterAnswer}, Times: 10})
	r.create(outbox.Bulk, 0, 40)
	stop := r.start(func(o *evaluate.Options) { o.Concurrency = 10 })
	if err := r.sim.WaitHanging(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	live := r.create(outbox.Live, 1000, 1002)
	if err := r.sim.WaitHanging(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if n := r.count("evaluation_outbox WHERE status = 'processing' AND lane = 'live' AND idempotency_key = ANY ($1)", live); n != len(live) {
		t.Errorf("%d of %d live evaluations are under way", n, len(live))
	}
	r.sim.Release()
	r.until(0, "evaluation_outbox")
	stop()
	r.check()
}

// A claim of bulk work that takes long delays no live work.
func TestLiveWorkDoesNotWaitForAClaimOfBulkWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`)
	r.exec(`CREATE TRIGGER hold BEFORE UPDATE ON evaluation_outbox FOR EACH ROW WHEN (NEW.lane = 'bulk') EXECUTE FUNCTION hold()`)
	held, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)"); err != nil {
		t.Fatal(err)
	}
	r.create(outbox.Bulk, 0, 5)
	r.start()
	r.until(1, "(SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted LIMIT 1) waiting")
	r.create(outbox.Live, 1000, 1005)
	r.until(5, "evaluation_result")
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.until(10, "evaluation_result")
	r.check()
}

// Every ticket that an evaluation serves is linked to its trace, followers that came during the call included.
func TestFollowersAreLinked(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	r := newRig(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangAfterAnswer}})
	r.tracer = provider.Tracer("test")
	traceparent := func(n int) string { return fmt.Sprintf("00-%032x-%016x-01", n, n) }
	r.create(outbox.Live, 0, 1)
	r.exec("UPDATE ticket SET trace_context = $1", traceparent(1))
	r.exec("UPDATE evaluation_outbox SET trace_context = $1", traceparent(1))
	stop := r.start(func(o *evaluate.Options) { o.LinkFollowers = true })
	if err := r.sim.WaitHanging(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for n := 2; n <= 3; n++ {
		r.create(outbox.Live, 0, 1)
		r.exec("UPDATE ticket SET trace_context = $1 WHERE trace_context = ''", traceparent(n))
	}
	r.sim.Release()
	r.until(1, "evaluation_result")
	stop()
	if err := provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, span := range recorder.Ended() {
		if span.Name() != telemetry.SpanProcessEvaluation {
			continue
		}
		linked := map[string]bool{}
		for _, l := range span.Links() {
			linked[l.SpanContext.TraceID().String()] = true
		}
		for n := 1; n <= 3; n++ {
			if !linked[fmt.Sprintf("%032x", n)] {
				t.Errorf("ticket %d is not linked: %v", n, linked)
			}
		}
		if len(span.Links()) != 3 {
			t.Errorf("%d links, want 3", len(span.Links()))
		}
		for _, a := range span.Attributes() {
			if a.Key == telemetry.TicketsServed && a.Value != attribute.IntValue(3) {
				t.Errorf("%v tickets served, want 3", a.Value.AsInt64())
			}
		}
		if got := r.count("model_call WHERE trace_id = $1", span.SpanContext().TraceID().String()); got != 1 {
			t.Error("the call does not name its trace")
		}
		return
	}
	t.Error("no span of the evaluation")
}
