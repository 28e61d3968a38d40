package evaluate

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
)

const (
	// settlers is how many groups of settlements may be written at once.
	settlers   = 3
	settleMost = 500
	// While the database cannot be reached, settlements are kept and tried again.
	settleRetry     = 100 * time.Millisecond
	settleRetryMost = 2 * time.Second
)

// settleAll writes settlements in groups: whatever came while the group before was being written.
func (w *Worker) settleAll(ctx context.Context) {
	for first := range w.settled {
		group := []settlement{first}
	gather:
		for len(group) < settleMost {
			select {
			case s, ok := <-w.settled:
				if !ok {
					break gather
				}
				group = append(group, s)
			default:
				break gather
			}
		}
		down := w.report(ctx, group)
		crashpoint.Pass(crashpoint.SettleReported)
		w.settle(ctx, group, down)
		crashpoint.Pass(crashpoint.SettleCommitted)
		w.conclude(ctx, group)
	}
}

// settle writes a group until it is written. A group that the database refuses is taken apart, so that a row
// that cannot be saved does not hold up its neighbours.
func (w *Worker) settle(ctx context.Context, group []settlement, down map[string]bool) {
	pause := settleRetry
	for {
		err := w.write(ctx, group, down)
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			slog.ErrorContext(ctx, "stopped with settlements unsaved: their calls will count as unknown", slog.Int("settlements", len(group)), slog.Any("error", err))
			return
		case unreachable(err):
			slog.WarnContext(ctx, "cannot save settlements, trying again", slog.Int("settlements", len(group)), slog.Any("error", err))
			if !sleep(ctx, pause) {
				continue
			}
			pause = min(2*pause, settleRetryMost)
		case len(group) > 1:
			half := len(group) / 2
			w.settle(ctx, group[:half], down)
			w.settle(ctx, group[half:], down)
			return
		default:
			w.keepResponse(ctx, group[0], err)
			return
		}
	}
}

// keepResponse saves the response of an item whose result cannot be written, and puts the item back: a later
// claim judges the saved response again, without a call.
func (w *Worker) keepResponse(ctx context.Context, s settlement, cause error) {
	slog.ErrorContext(ctx, "cannot write a result", slog.Any("key", s.item.Key), slog.Any("error", cause))
	if s.closure == nil || s.closure.Response == nil {
		return // nothing to keep; the lease expires
	}
	crashpoint.Pass(crashpoint.KeepBegun)
	closure := *s.closure
	closure.Outcome, closure.Failure = ledger.Saved, nil
	kept := settlement{item: s.item, closure: &closure, saved: true}
	for pause := settleRetry; ; pause = min(2*pause, settleRetryMost) {
		err := w.write(ctx, []settlement{kept}, nil)
		if err == nil {
			crashpoint.Pass(crashpoint.KeepCommitted)
			return
		}
		slog.ErrorContext(ctx, "cannot save a response", slog.Any("key", s.item.Key), slog.Any("error", err))
		if !unreachable(err) || !sleep(ctx, pause) {
			return
		}
	}
}

// write writes a group in one transaction. Finishing comes first: it locks the work in key order, as everyone
// does who locks several rows against each other.
func (w *Worker) write(ctx context.Context, group []settlement, down map[string]bool) error {
	var (
		finished, released []outbox.Lease
		retries            []outbox.Retry
		burials            []outbox.Burial
		closures           []ledger.Closure
		results            []ledger.Result
	)
	for _, s := range group {
		if s.closure != nil {
			closures = append(closures, *s.closure)
		}
		if s.result != nil {
			results = append(results, *s.result)
		}
		lease := s.item.Lease
		switch {
		case s.release:
			released = append(released, lease)
		case s.saved:
			f := failure.New(failure.ResultUnsaved, "", nil)
			retries = append(retries, outbox.Retry{Lease: lease, Delay: backoff.Delay(s.item.Attempts, s.item.Key, 0), Failure: f})
		case s.failure == nil:
			finished = append(finished, lease)
		default:
			v := decide(s.failure, s.item.version, standing{
				key: s.item.Key, attempts: s.item.Attempts, unknownCalls: s.item.UnknownCalls, age: s.item.Age, routeDown: down[s.item.route],
			})
			if v.bury != nil {
				burials = append(burials, outbox.Burial{Lease: lease, Unknown: v.unknown, Failure: v.bury})
			} else {
				retries = append(retries, outbox.Retry{Lease: lease, Delay: v.delay, Refund: v.refund, Unknown: v.unknown, Failure: s.failure})
			}
		}
	}
	return postgres.InTx(ctx, w.Settles, func(ctx context.Context, tx pgx.Tx) error {
		crashpoint.Pass(crashpoint.SettleBegun)
		if _, err := outbox.Finish(ctx, tx, finished); err != nil {
			return err
		}
		crashpoint.PassIf(len(finished) > 0, crashpoint.SettleFinished)
		if _, err := outbox.PutBack(ctx, tx, retries); err != nil {
			return err
		}
		crashpoint.PassIf(len(retries) > 0, crashpoint.SettlePutBack)
		if _, err := outbox.Bury(ctx, tx, burials); err != nil {
			return err
		}
		crashpoint.PassIf(len(burials) > 0, crashpoint.SettleBuried)
		if _, err := outbox.Release(ctx, tx, released); err != nil {
			return err
		}
		crashpoint.PassIf(len(released) > 0, crashpoint.SettleReleased)
		if err := ledger.Close(ctx, tx, closures); err != nil {
			return err
		}
		crashpoint.PassIf(len(closures) > 0, crashpoint.SettleClosed)
		_, err := ledger.Save(ctx, tx, results)
		crashpoint.PassIf(len(results) > 0, crashpoint.SettleSaved)
		return err
	})
}

// conclude ends the worker's care for a group.
func (w *Worker) conclude(ctx context.Context, group []settlement) {
	w.mu.Lock()
	for _, s := range group {
		delete(w.held, s.item.ID)
	}
	w.mu.Unlock()
	w.endSpans(ctx, group)
}

// report tells the gates what the calls of a group say of their routes, and returns the routes that are shut.
// Routes come before items: an item's failure costs it an attempt only while its route is well.
func (w *Worker) report(ctx context.Context, group []settlement) map[string]bool {
	tallies := map[string]*tally{}
	for _, s := range group {
		if !s.called() {
			w.cancelProbe(ctx, s.item)
			continue
		}
		t, ok := tallies[s.item.route]
		if !ok {
			t = &tally{}
			tallies[s.item.route] = t
		}
		t.add(s)
	}
	down := map[string]bool{}
	for name, t := range tallies {
		state, err := w.reportRoute(ctx, name, t)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot record the state of a route", slog.String("route", name), slog.Any("error", err))
		}
		down[name] = state != route.Closed
	}
	return down
}

// called reports whether the settlement tells of a request that left for the provider, or tried to.
func (s settlement) called() bool {
	if s.closure == nil || s.closure.CallID != s.item.CallID {
		return false // the answer was known, or its response saved
	}
	// What this worker gave up by itself says nothing of the provider.
	return s.failure == nil || s.failure.Reason != failure.Canceled && s.failure.Reason != failure.NotSent
}

// cancelProbe gives back the probe of an item whose call was not made.
func (w *Worker) cancelProbe(ctx context.Context, it *item) {
	if it.probe == uuid.Nil {
		return
	}
	if err := w.gate.CancelProbe(ctx, it.route, it.probe); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "cannot give back a probe", slog.String("route", it.route), slog.Any("error", err))
	}
}

// tally is what the calls of one group say of one route.
type tally struct {
	probe    uuid.UUID
	alive    bool // the provider answered, be it with a refusal
	failures int
	failure  *failure.Failure // the one that weighs most
}

func (t *tally) add(s settlement) {
	if s.item.probe != uuid.Nil {
		t.probe = s.item.probe
	}
	f := s.failure
	switch {
	case f == nil, f.Class == failure.Permanent:
		t.alive = true
		return
	case f.Class.CountsTowardsBreaker():
		t.failures++
	}
	if t.failure == nil || weight(f) > weight(t.failure) || f.Class == t.failure.Class && f.RetryAfter > t.failure.RetryAfter {
		t.failure = f
	}
}

func weight(f *failure.Failure) int {
	switch f.Class {
	case failure.Operator:
		return 3
	case failure.Throttled:
		return 2
	}
	return 1
}

func (w *Worker) reportRoute(ctx context.Context, name string, t *tally) (route.State, error) {
	w.mu.Lock()
	l := w.lines[name]
	w.mu.Unlock()
	if t.alive && (l.dirty.Load() || t.probe != uuid.Nil) {
		if err := w.gate.Succeeded(ctx, name, t.probe); err != nil {
			return route.Closed, err
		}
		l.dirty.Store(false)
		if t.probe != uuid.Nil {
			slog.InfoContext(ctx, "a route is back", slog.String("route", name))
			if _, err := w.refresh(ctx); err != nil {
				return route.Closed, err
			}
		}
	}
	if t.failure == nil {
		return route.Closed, nil
	}
	l.dirty.Store(true)
	state, err := w.gate.Failed(ctx, name, t.probe, t.failures, t.failure)
	if err != nil {
		return route.Closed, err
	}
	if state != route.Closed {
		slog.WarnContext(ctx, "a route is shut", slog.String("route", name), slog.Any("state", state), slog.Any("class", t.failure.Class), slog.Any("reason", t.failure.Reason))
	}
	_, err = w.refresh(ctx)
	return state, err
}

// unreachable reports whether the database, and not a row, is the trouble.
func unreachable(err error) bool {
	if postgres.ConnectionLost(err) || postgres.Retryable(err) || errors.Is(err, postgres.ErrCommitUnknown) ||
		errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true // not the server's verdict
	}
	switch pg.Code[:2] {
	case "08", "53", "57", "58", "25", "55": // connection, resources, intervention, system, transaction state, lock not available
		return true
	}
	return false
}

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
