package observe

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/observedb"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// samples are what a snapshot has so far.
type samples []metrics.Sample

func (s *samples) add(metric string, value float64, labels ...string) {
	*s = append(*s, metrics.Sample{Metric: metric, Labels: labels, Value: value})
}

// sample measures everything. What keeps the planner to indexes for the rest of the transaction comes last.
func sample(ctx context.Context, tx pgx.Tx) (samples, error) {
	var s samples
	routes, err := route.Controls(ctx, tx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		s.addRoute(r)
	}
	for _, measure := range []func(context.Context, pgx.Tx) error{s.addMoney, s.addSavings, s.addJobs, s.addWebhooks, s.addDatabase, s.addSweep} {
		if err := measure(ctx, tx); err != nil {
			return nil, err
		}
	}
	return s, s.addQueue(ctx, tx, routes)
}

func (s *samples) addRoute(r route.Control) {
	is := func(state string, yes bool) {
		value := 0.0
		if yes {
			value = 1
		}
		s.add(metrics.RouteState, value, r.Name, state)
	}
	for _, state := range []route.State{route.Closed, route.Open, route.HalfOpen, route.Halted} {
		is(string(state), r.State == state)
	}
	is("paused", r.Paused)
	is("budget_exhausted", r.Parked() != "")
	limit := func(name string, value float64) {
		if value > 0 {
			s.add(metrics.RouteLimit, value, r.Name, name)
		}
	}
	limit("requests_per_minute", float64(r.Limits.RequestsPerMinute))
	limit("tokens_per_minute", float64(r.Limits.TokensPerMinute))
	limit("concurrent_calls", float64(r.Limits.ConcurrentCalls))
	if r.Limits.RequestsPerMinute > 0 {
		s.add(metrics.RoutePermits, float64(r.RequestsLeft), r.Name, "requests_per_minute")
	}
	if r.Limits.TokensPerMinute > 0 {
		s.add(metrics.RoutePermits, float64(r.TokensLeft), r.Name, "tokens_per_minute")
	}
}

func (s *samples) addMoney(ctx context.Context, tx pgx.Tx) error {
	spending, err := route.Spend(ctx, tx)
	if err != nil {
		return err
	}
	for _, b := range spending {
		s.add(metrics.Spend, b.UsedUSD.InexactFloat64(), b.Scope, string(b.Period))
		if b.LimitUSD != nil {
			s.add(metrics.SpendLimit, b.LimitUSD.InexactFloat64(), b.Scope, string(b.Period))
		}
	}
	return nil
}

// savingsMost is what looking for savings may take. It looks up thousands of results, each at a place of its own: on a disk
// that they have to be read from, the rest is not held up for it.
const savingsMost = 2 * time.Second

func (s *samples) addSavings(ctx context.Context, tx pgx.Tx) error {
	var savings []ledger.Saving
	err := pgx.BeginFunc(ctx, tx, func(part pgx.Tx) (err error) {
		if _, err = part.Exec(ctx, "SELECT set_config('statement_timeout', $1, true)", strconv.FormatInt(savingsMost.Milliseconds(), 10)); err != nil {
			return err
		}
		savings, err = ledger.Savings(ctx, part)
		return err
	})
	if postgres.TookTooLong(err) {
		slog.WarnContext(ctx, "cannot say what duplicates have saved: looking it up takes too long", slog.Duration("given_up_after", savingsMost))
		return nil
	}
	if err != nil {
		return err
	}
	for _, saving := range savings {
		s.add(metrics.Saved, saving.CallUSD.Mul(decimal.NewFromInt(saving.AnsweredWithoutCall)).InexactFloat64(), saving.Route)
	}
	return nil
}

func (s *samples) addJobs(ctx context.Context, tx pgx.Tx) error {
	counts, err := jobdb.Counts(ctx, tx)
	if err != nil {
		return err
	}
	for _, kind := range []jobdb.Kind{jobdb.Evaluate, jobdb.Replay, jobdb.Policy} {
		for _, state := range []jobdb.State{jobdb.Running, jobdb.Paused, jobdb.Failed} {
			jobs := int64(0)
			for _, c := range counts {
				if c.Kind == kind && c.State == state {
					jobs = c.Jobs
				}
			}
			s.add(metrics.Jobs, float64(jobs), string(kind), string(state))
		}
	}
	return nil
}

func (s *samples) addWebhooks(ctx context.Context, tx pgx.Tx) error {
	w, err := webhook.Stand(ctx, tx)
	if err != nil {
		return err
	}
	s.add(metrics.WebhookEndpoints, float64(w.Enabled), "enabled", metrics.None)
	for _, reason := range []string{"client", "gone", "failing"} {
		s.add(metrics.WebhookEndpoints, float64(w.Disabled[reason]), "disabled", reason)
	}
	s.add(metrics.WebhookOldestDue, w.OldestDue.Seconds())
	return nil
}

func (s *samples) addDatabase(ctx context.Context, tx pgx.Tx) error {
	age, err := observedb.OldestTransaction(ctx, tx)
	if err != nil {
		return err
	}
	s.add(metrics.OldestTransaction, age.Seconds())
	tables, err := observedb.Tables(ctx, tx, metrics.HotTables())
	if err != nil {
		return err
	}
	for _, t := range tables {
		s.add(metrics.TableTuples, float64(t.Live), t.Name, "live")
		s.add(metrics.TableTuples, float64(t.Dead), t.Name, "dead")
		s.add(metrics.TableSize, float64(t.Bytes), t.Name)
	}
	return nil
}

func (s *samples) addSweep(ctx context.Context, tx pgx.Tx) error {
	sweep, err := observedb.LastSweep(ctx, tx)
	if err != nil {
		return err
	}
	s.add(metrics.SweepAge, sweep.Age.Seconds())
	ok := 0.0
	if sweep.OK {
		ok = 1
	}
	s.add(metrics.SweepOK, ok)
	for _, name := range metrics.SweepCounts() {
		if n, counted := sweep.Counts[name]; counted {
			s.add(metrics.SweepCount, float64(n), name)
		}
	}
	return nil
}

func (s *samples) addQueue(ctx context.Context, tx pgx.Tx, routes []route.Control) error {
	names := make([]string, len(routes))
	for i, r := range routes {
		names[i] = r.Name
	}
	loads, err := outbox.Loads(ctx, tx, names)
	if err != nil {
		return err
	}
	for _, l := range loads {
		lane := string(l.Lane)
		s.add(metrics.QueueDepth, float64(l.Ready.Value), l.Route, lane, metrics.Ready)
		s.add(metrics.QueueDepth, float64(l.Running), l.Route, lane, metrics.Running)
		s.add(metrics.QueueDepth, float64(l.Scheduled.Value), l.Route, lane, metrics.Scheduled)
		s.add(metrics.QueueDepth, float64(l.Dead.Value), l.Route, lane, metrics.Dead)
		s.add(metrics.OldestReadyAge, l.OldestAge.Seconds(), l.Route, lane)
	}
	dead, err := outbox.DeadReasons(ctx, tx)
	if err != nil {
		return err
	}
	counts := map[failure.Reason]int64{}
	for _, d := range dead {
		counts[d.Reason] = d.Count
	}
	for _, reason := range failure.Reasons() { // each, so that one that is gone is seen to be gone
		s.add(metrics.DeadLetters, float64(counts[reason]), string(reason.Class()), string(reason))
	}
	return nil
}
