package evaluate

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/webhook"
)

const (
	// settlers is how many groups of settlements may be written at once.
	settlers   = 3
	settleMost = 500
	// gatherMost is how long the first of a group waits for others: a transaction for every call that ends would be as
	// many transactions as calls.
	gatherMost = 5 * time.Millisecond
	// While the database cannot be reached, settlements are kept and tried again.
	settleRetry     = 100 * time.Millisecond
	settleRetryMost = 2 * time.Second
)

// settleAll writes settlements in groups.
func (w *Worker) settleAll(ctx context.Context) {
	for group := w.gather(); len(group) > 0; group = w.gather() {
		w.report(ctx, group)
		crashpoint.Pass(crashpoint.SettleReported)
		w.settle(ctx, group)
		crashpoint.Pass(crashpoint.SettleCommitted)
		w.conclude(ctx, group)
	}
}

// gather returns the next group: what has come since the last one was gathered, and what comes within moments of its
// first. It is empty when no more will come.
func (w *Worker) gather() []settlement {
	w.gathering.Lock()
	defer w.gathering.Unlock()
	first, ok := <-w.settled
	if !ok {
		return nil
	}
	group := append(make([]settlement, 0, settleMost), first)
	timer := time.NewTimer(gatherMost)
	defer timer.Stop()
	for len(group) < settleMost {
		select {
		case s, ok := <-w.settled:
			if !ok {
				return group
			}
			group = append(group, s)
		case <-timer.C:
			return group
		}
	}
	return group
}

// settle writes a group until it is written. A group that the database refuses is taken apart, so that a row
// that cannot be saved does not hold up its neighbours.
func (w *Worker) settle(ctx context.Context, group []settlement) {
	pause := settleRetry
	for {
		err := w.write(ctx, group)
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			slog.ErrorContext(ctx, "stopped with settlements unsaved: their calls will count as unknown", slog.Int("settlements", len(group)), slog.Any("error", err))
			for _, s := range group {
				w.leave(s.item)
			}
			return
		case unreachable(err):
			slog.WarnContext(ctx, "cannot save settlements, trying again", slog.Int("settlements", len(group)), slog.Any("error", err))
			if !backoff.Sleep(ctx, pause) {
				continue
			}
			pause = min(2*pause, settleRetryMost)
		case len(group) > 1:
			half := len(group) / 2
			w.settle(ctx, group[:half])
			w.settle(ctx, group[half:])
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
		w.leave(s.item) // nothing to keep; the lease expires
		return
	}
	crashpoint.Pass(crashpoint.KeepBegun)
	closure := *s.closure
	closure.Outcome, closure.Failure = ledger.Saved, nil
	kept := settlement{item: s.item, closure: &closure, saved: true}
	for pause := settleRetry; ; pause = min(2*pause, settleRetryMost) {
		err := w.write(ctx, []settlement{kept})
		if err == nil {
			crashpoint.Pass(crashpoint.KeepCommitted)
			return
		}
		slog.ErrorContext(ctx, "cannot save a response", slog.Any("key", s.item.Key), slog.Any("error", err))
		if !unreachable(err) || !backoff.Sleep(ctx, pause) {
			w.leave(s.item)
			return
		}
	}
}

// write writes a group in one transaction. Finishing comes before all else that locks work: it locks it in key order,
// as everyone does who locks several rows against each other. Routes that may be to blame are held before it: a failure
// costs its item an attempt only while they are well, and an attempt that the breaker's opening is to give back is
// written before that, or not at all.
func (w *Worker) write(ctx context.Context, group []settlement) error {
	told := 0
	var done written
	over := w.claims.takeOver()
	ctx, span := w.startSettle(ctx, group)
	err := postgres.InTx(ctx, w.Settles, func(ctx context.Context, tx pgx.Tx) error {
		crashpoint.Pass(crashpoint.SettleBegun)
		if err := outbox.PlanKeys(ctx, tx); err != nil {
			return err
		}
		down, err := route.Hold(ctx, tx, blamed(group))
		if err != nil {
			return err
		}
		tried, err := ledger.TriedFor(ctx, tx, aged(group))
		if err != nil {
			return err
		}
		c := changesOf(group, down, tried)
		if done.finished, err = outbox.Finish(ctx, tx, c.finished); err != nil {
			return err
		}
		crashpoint.PassIf(len(c.finished) > 0, crashpoint.SettleFinished)
		if done.putBack, err = outbox.PutBack(ctx, tx, c.retries); err != nil {
			return err
		}
		crashpoint.PassIf(len(c.retries) > 0, crashpoint.SettlePutBack)
		if done.buried, err = outbox.Bury(ctx, tx, c.burials); err != nil {
			return err
		}
		crashpoint.PassIf(len(c.burials) > 0, crashpoint.SettleBuried)
		if done.released, err = outbox.Release(ctx, tx, c.released); err != nil {
			return err
		}
		crashpoint.PassIf(len(c.released) > 0, crashpoint.SettleReleased)
		if err := ledger.Close(ctx, tx, c.closures); err != nil {
			return err
		}
		crashpoint.PassIf(len(c.closures) > 0, crashpoint.SettleClosed)
		if _, err := ledger.Save(ctx, tx, c.results); err != nil {
			return err
		}
		crashpoint.PassIf(len(c.results) > 0, crashpoint.SettleSaved)
		if told, err = webhook.Tell(ctx, tx, c.ended()); err != nil {
			return err
		}
		crashpoint.PassIf(told > 0, crashpoint.SettleTold)
		deltas, err := ledger.SettleCharges(ctx, tx, c.charged)
		if err != nil {
			return err
		}
		err = route.Charge(ctx, tx, deltas)
		crashpoint.PassIf(len(deltas) > 0, crashpoint.SettleCharged)
		if err != nil {
			return err
		}
		return outbox.EndClaims(ctx, tx, over)
	})
	if err == nil {
		w.measure(ctx, group, done)
		w.told(told)
	} else {
		w.claims.putBack(over)
	}
	endSpan(span, err)
	return err
}

// blamed are the routes of failures that cost an attempt while the route is well.
func blamed(group []settlement) []string {
	var names []string
	for _, s := range group {
		if s.failure != nil && s.failure.Class == failure.Transient && !slices.Contains(names, s.item.route) {
			names = append(names, s.item.route)
		}
	}
	return names
}

// aged are the keys that a transient failure may end for their age. What counts is how long they have been tried: work
// that waited for a route to be mended, or for a budget, is not too old for that.
func aged(group []settlement) []content.Key {
	var keys []content.Key
	for _, s := range group {
		if s.failure != nil && s.failure.Class == failure.Transient && s.item.Age >= s.item.version.MaxAge {
			keys = append(keys, s.item.Key)
		}
	}
	return keys
}

// changes are what a group comes to in the database.
type changes struct {
	finished, released []outbox.Lease
	retries            []outbox.Retry
	burials            []outbox.Burial
	closures           []ledger.Closure
	results            []ledger.Result
	charged            []uuid.UUID // calls whose charges are to be settled
}

// ended are the keys that may have come to their end: what a lost lease keeps from it is not told of.
func (c changes) ended() []content.Key {
	var keys []content.Key
	for _, f := range c.finished {
		keys = append(keys, f.Key)
	}
	for _, b := range c.burials {
		keys = append(keys, b.Key)
	}
	return keys
}

func changesOf(group []settlement, down map[string]bool, tried map[content.Key]time.Duration) changes {
	var c changes
	for _, s := range group {
		age := s.item.Age
		if t, ok := tried[s.item.Key]; ok {
			age = min(age, t)
		}
		if s.closure != nil {
			c.closures = append(c.closures, *s.closure)
		}
		if s.unsent {
			c.closures = append(c.closures, ledger.Closure{CallID: s.item.CallID, Outcome: ledger.Unsent})
		}
		if s.result != nil {
			c.results = append(c.results, *s.result)
		}
		if s.item.Charged {
			c.charged = append(c.charged, s.item.CallID)
		}
		if s.closure != nil && s.closure.CallID != s.item.CallID { // whoever opened that call
			c.charged = append(c.charged, s.closure.CallID)
		}
		lease := s.item.Lease
		switch {
		case s.release:
			c.released = append(c.released, lease)
		case s.saved:
			f := failure.New(failure.ResultUnsaved, "", nil)
			c.retries = append(c.retries, outbox.Retry{Lease: lease, Delay: backoff.Delay(s.item.Attempts, s.item.Key, 0), Failure: f})
		case s.failure == nil:
			c.finished = append(c.finished, lease)
		default:
			v := decide(s.failure, s.item.version, standing{
				key: s.item.Key, attempts: s.item.Attempts, unknownCalls: s.item.UnknownCalls, age: age, routeDown: down[s.item.route],
			})
			if v.bury != nil {
				c.burials = append(c.burials, outbox.Burial{Lease: lease, Unknown: v.unknown, Failure: v.bury})
			} else {
				c.retries = append(c.retries, outbox.Retry{Lease: lease, Delay: v.delay, Refund: v.refund, Unknown: v.unknown, Failure: s.failure})
			}
		}
	}
	return c
}

// endClaims strikes off the last claims of a worker that stops. Those of one that works on go with what it writes next.
func (w *Worker) endClaims(ctx context.Context) {
	err := postgres.InTx(ctx, w.Settles, func(ctx context.Context, tx pgx.Tx) error {
		return outbox.EndClaims(ctx, tx, w.claims.takeOver())
	})
	if err != nil {
		slog.WarnContext(ctx, "cannot end the last claims: whoever reclaims leases does it", slog.Any("error", err))
	}
}

// conclude ends the worker's care for a group.
func (w *Worker) conclude(ctx context.Context, group []settlement) {
	w.claims.settle(group)
	w.mu.Lock()
	for _, s := range group {
		delete(w.held, s.item.ID)
		for _, n := range w.lines[s.item.route].lanes() {
			if n.crowded.Load() {
				n.ring()
			}
		}
	}
	w.mu.Unlock()
	w.endSpans(ctx, group)
}

// report tells the gates what the calls of a group say of their routes. Routes come before items: an item's failure
// costs it an attempt only while its route is well.
func (w *Worker) report(ctx context.Context, group []settlement) {
	tallies := map[string]*tally{}
	for _, s := range group {
		t, ok := tallies[s.item.route]
		if !ok {
			t = &tally{ramps: map[uuid.UUID]ramped{}}
			tallies[s.item.route] = t
		}
		t.meter(s)
		if !s.called() {
			w.cancelProbe(ctx, s.item)
			continue
		}
		t.add(s)
	}
	for name, t := range tallies {
		w.mu.Lock()
		l := w.lines[name]
		w.mu.Unlock()
		if err := errors.Join(w.reportRoute(ctx, l, t), w.reportMeter(ctx, l, t)); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot record the state of a route", slog.String("route", name), slog.Any("error", err))
		}
		if t.blames > 0 {
			l.suspect.Add(-t.blames)
			l.ring()
		}
	}
}

// called reports whether the settlement tells of a request that left for the provider, or tried to.
func (s settlement) called() bool {
	if s.closure == nil || s.closure.CallID != s.item.CallID {
		return false // the answer was known, or its response saved
	}
	// What this worker gave up by itself says nothing of the provider.
	return s.failure == nil || s.failure.Reason != failure.Canceled && s.failure.Reason != failure.NotSent
}

// blamesRoute reports whether the settlement tells of a failure that the route may be to blame for.
func (s settlement) blamesRoute() bool {
	return s.called() && s.failure != nil && s.failure.Class != failure.Permanent
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
	alive    bool             // the provider answered, be it with a refusal
	failures int              // that count towards the breaker
	counted  *failure.Failure // one of them
	fault    *failure.Failure // of those that shut the route by themselves, the one that weighs most
	blames   int64            // failures that the line waits to have reported
	ramps    map[uuid.UUID]ramped
	tokens   route.Tokens
}

func (t *tally) add(s settlement) {
	if s.item.probe != uuid.Nil {
		t.probe = s.item.probe
	}
	if s.blamesRoute() {
		t.blames++
	}
	f := s.failure
	switch {
	case f == nil, f.Class == failure.Permanent:
		t.alive = true
	case f.Class.CountsTowardsBreaker():
		t.failures++
		t.counted = f
	case t.fault == nil || weight(f) > weight(t.fault) || f.Class == t.fault.Class && f.RetryAfter > t.fault.RetryAfter:
		t.fault = f
	}
}

func weight(f *failure.Failure) int {
	if f.Class == failure.Operator {
		return 1
	}
	return 0
}

func (w *Worker) reportRoute(ctx context.Context, l *line, t *tally) error {
	if t.alive && (l.dirty.Load() || t.probe != uuid.Nil) {
		if err := w.gate.Succeeded(ctx, l.name, t.probe); err != nil {
			return err
		}
		l.dirty.Store(false)
		if t.probe != uuid.Nil {
			slog.InfoContext(ctx, "a route is back", slog.String("route", l.name))
			if err := w.refresh(ctx); err != nil {
				return err
			}
		}
	}
	if t.counted == nil && t.fault == nil {
		return nil
	}
	l.dirty.Store(true)
	err := w.reportFailures(ctx, l, t)
	if t.fault != nil && err == nil {
		var state route.State
		state, err = w.gate.Failed(ctx, l.name, t.probe, 0, t.fault)
		logShut(ctx, l.name, state, t.fault)
	}
	return errors.Join(err, w.refresh(ctx))
}

// reportFailures counts failures towards the breaker. Those that led to its opening cost their items nothing.
func (w *Worker) reportFailures(ctx context.Context, l *line, t *tally) error {
	if t.counted == nil {
		return nil
	}
	var state route.State
	err := postgres.InTx(ctx, w.Settles, func(ctx context.Context, tx pgx.Tx) (err error) {
		if state, err = route.New(tx).Failed(ctx, l.name, t.probe, t.failures, t.counted); err != nil {
			return err
		}
		if state == route.Open && t.probe == uuid.Nil {
			_, err = outbox.RefundTrip(ctx, tx, l.name)
			crashpoint.Pass(crashpoint.SettleTripped)
		}
		return err
	})
	logShut(ctx, l.name, state, t.counted)
	return err
}

func logShut(ctx context.Context, name string, state route.State, f *failure.Failure) {
	if state == route.Closed || state == "" {
		return
	}
	slog.WarnContext(ctx, "a route is shut", slog.String("route", name), slog.Any("state", state), slog.Any("class", f.Class), slog.Any("reason", f.Reason))
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
