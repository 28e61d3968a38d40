package evaluate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// Options sets a worker up.
type Options struct {
	// Claims and heartbeats take connections from different pools, so that neither waits for the other.
	Claims  *pgxpool.Pool
	Settles *pgxpool.Pool
	// Listen is the address of a direct connection for hints of new work; empty polls alone.
	Listen    string
	Providers map[string]Provider // by the version's provider
	Routes    []string            // to serve; empty serves all

	Name          string // unique among all workers that run
	Concurrency   int    // calls in flight for each route
	Lease         time.Duration
	PollInterval  time.Duration
	Grace         time.Duration // for running calls, once stopping
	Tracer        trace.Tracer
	LinkFollowers bool   // look up every ticket that an evaluation serves, to link its trace
	Told          func() // is called when webhooks have been written; nil when nobody wants to know
	Metrics       *metrics.Worker
}

// What a worker does unless it is told otherwise.
const (
	DefaultConcurrency  = 1000
	DefaultLease        = 90 * time.Second
	DefaultPollInterval = time.Second
)

// SaveMost bounds how long a stopping worker tries to save what it has, once its calls have ended.
const SaveMost = 10 * time.Second

const (
	claimMost        = 500 // rows of one claim
	refreshInterval  = time.Second
	reclaimInterval  = 3 * time.Second
	reclaimMost      = 500
	claimTimeout     = 30 * time.Second
	heartbeatsALease = 3
	// lingerMost is how long a claim waits for more calls to end when few have: one claim for each call that
	// ends would be as many transactions as calls.
	lingerMost = 10 * time.Millisecond
)

// Worker evaluates the work of its routes.
type Worker struct {
	Options
	providers map[string]Provider
	gate      *route.Gate
	tickets   *ticketdb.Store
	settled   chan settlement
	claims    *claims
	gathering sync.Mutex // one group is gathered at a time, so that it gets all that comes

	// refreshing is held while the routes are read: what was read first must not be kept last.
	refreshing sync.Mutex

	// claiming is held for reading from before a claim until its leases are in held.
	claiming sync.RWMutex

	mu       sync.Mutex
	held     map[uuid.UUID]content.Key // leases
	versions map[string]evaluation.Version
	lines    map[string]*line
	unserved []*line // of lines, those that nobody claims for yet
	strays   strays

	policy atomic.Pointer[policy.Compiled] // the active one, as of the last refresh
}

// New makes a worker.
func New(o Options) *Worker {
	return &Worker{
		Options: o, providers: o.Providers, gate: route.New(o.Settles), tickets: ticketdb.New(o.Settles),
		settled: make(chan settlement, claimMost), claims: newClaims(), held: map[uuid.UUID]content.Key{},
		versions: map[string]evaluation.Version{}, lines: map[string]*line{},
		strays: strays{left: map[uuid.UUID]struct{}{}},
	}
}

// Run evaluates until ctx ends. Then it claims no more, gives running calls their grace, saves what they bring,
// gives back what never started, and returns.
func (w *Worker) Run(ctx context.Context) error {
	calls, cutCalls := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutCalls(nil)
	upkeep, stopUpkeep := context.WithCancel(context.WithoutCancel(ctx)) // for what must outlive the calls
	defer stopUpkeep()

	var heartbeat, settling sync.WaitGroup
	heartbeat.Go(func() { w.heartbeats(upkeep) })
	for range settlers {
		settling.Go(func() { w.settleAll(upkeep) })
	}

	unobserve, err := w.Metrics.ObserveRunning(w.running)
	if err != nil {
		return fmt.Errorf("measure the calls under way: %w", err)
	}
	claiming, claimCtx := errgroup.WithContext(ctx)
	claiming.Go(func() error { return w.listen(claimCtx) })
	claiming.Go(func() error { return w.reclaims(claimCtx) })
	claiming.Go(func() error { return w.serveRoutes(claimCtx, calls, claiming) })
	err = claiming.Wait()

	grace := time.AfterFunc(w.Grace, func() { cutCalls(errStopping) })
	for _, l := range w.allLines() {
		l.running.Wait()
	}
	crashpoint.Pass(crashpoint.StopDrained)
	grace.Stop()
	close(w.settled)
	giveUp := time.AfterFunc(SaveMost, stopUpkeep)
	settling.Wait()
	w.endClaims(upkeep)
	giveUp.Stop()
	stopUpkeep()
	heartbeat.Wait()
	return errors.Join(err, unobserve())
}

// line is a route as this worker serves it.
type line struct {
	name    string
	live    *lane
	bulk    *lane
	slots   *slots
	running sync.WaitGroup

	state   atomic.Pointer[route.Route]
	stateAt atomic.Int64 // when state was read, in Unix nanoseconds of this process's clock
	dirty   atomic.Bool  // the row counts failures that a success must clear
	under   atomic.Int64 // evaluations under way
	suspect atomic.Int64 // failures that the route may be to blame for and that it has not been told of yet
}

// lane is one of the two lanes of a line. Each has a loop of its own, so that live work does not wait for a claim of bulk
// work to come back.
type lane struct {
	name outbox.Lane
	wake chan struct{}

	mu      sync.Mutex // is held for a claim: a probe claims for both lanes
	claimer *outbox.Claimer

	next    time.Time     // no hint has the lane looked at before
	pause   time.Duration // until the next claim is worth it, after one that limits have cut short
	crowded atomic.Bool   // a claim was cut short until calls of the route end
	short   atomic.Bool   // a claim was cut short by a limit
}

func (w *Worker) newLine(name string) *line {
	newLane := func(n outbox.Lane) *lane {
		return &lane{name: n, wake: make(chan struct{}, 1), claimer: outbox.NewClaimer(w.Claims, name, n, w.Name, w.Lease)}
	}
	return &line{name: name, slots: newSlots(w.Concurrency), live: newLane(outbox.Live), bulk: newLane(outbox.Bulk)}
}

func (l *line) lanes() [2]*lane { return [2]*lane{l.live, l.bulk} }

// ring wakes the line's claims.
func (l *line) ring() {
	for _, n := range l.lanes() {
		n.ring()
	}
}

func (n *lane) ring() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// wait is how much longer the gate stays shut, as far as is known.
func (l *line) wait(now time.Time) time.Duration {
	return l.state.Load().Wait - now.Sub(time.Unix(0, l.stateAt.Load()))
}

// serveRoutes keeps the gates' states fresh, and begins to serve routes as they appear.
func (w *Worker) serveRoutes(ctx, calls context.Context, g *errgroup.Group) error {
	ticker := time.NewTicker(refreshInterval)
	defer ticker.Stop()
	for {
		if err := w.refresh(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot read the policy and the routes", slog.Any("error", err))
		}
		for _, l := range w.takeUnserved() {
			slog.InfoContext(ctx, "serving a route", slog.String("route", l.name), slog.Int("concurrency", w.Concurrency))
			for _, n := range l.lanes() {
				g.Go(func() error { return w.serve(ctx, calls, l, n) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// refresh reads the active policy and the routes. It is called from many places: what is new to this worker waits in
// unserved.
func (w *Worker) refresh(ctx context.Context) error {
	w.refreshing.Lock()
	defer w.refreshing.Unlock()
	if err := w.refreshPolicy(ctx); err != nil {
		return err
	}
	routes, err := w.gate.List(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range routes {
		if !w.serves(r.Name) {
			continue
		}
		l, ok := w.lines[r.Name]
		if !ok {
			l = w.newLine(r.Name)
			w.lines[r.Name] = l
			w.unserved = append(w.unserved, l)
		}
		l.state.Store(&r)
		l.stateAt.Store(time.Now().UnixNano())
		if r.Failures > 0 {
			l.dirty.Store(true)
		}
	}
	return nil
}

func (w *Worker) takeUnserved() []*line {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.unserved
	w.unserved = nil
	return lines
}

func (w *Worker) serves(name string) bool {
	for _, r := range w.Routes {
		if r == name {
			return true
		}
	}
	return len(w.Routes) == 0
}

func (w *Worker) allLines() []*line {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := make([]*line, 0, len(w.lines))
	for _, l := range w.lines {
		lines = append(lines, l)
	}
	return lines
}

// serve claims the work of one lane of a route for as long as its gate is open and there are slots.
func (w *Worker) serve(ctx, calls context.Context, l *line, n *lane) error {
	for {
		slots := w.takeSlots(ctx, l, n)
		if slots == 0 {
			return nil
		}
		items, err := w.claim(ctx, l, n, slots)
		if err != nil {
			w.suspectStrays(err)
			slog.WarnContext(ctx, "cannot claim work", slog.String("route", l.name), slog.Any("error", err))
		}
		l.slots.claimed(n.name, slots, len(items))
		crashpoint.PassIf(len(items) > 0, crashpoint.ClaimBegun)
		if ctx.Err() != nil {
			w.giveBack(l, n, items)
			return nil
		}
		timeout := l.state.Load().CallTimeout
		for _, it := range items {
			l.running.Go(func() {
				l.under.Add(1)
				defer l.end(n)
				_ = roomy(0)
				s := w.evaluate(trace.ContextWithSpan(calls, it.span), it, timeout)
				if s.blamesRoute() {
					// The next claim waits until the gate knows, so that a fault meets the calls under way and no more.
					l.suspect.Add(1)
				}
				w.settled <- s
			})
		}
		if n.name == outbox.Bulk && len(items) < slots {
			n.next = time.Now().Add(bulkInterval)
			if len(items) > 0 {
				n.pause = bulkInterval
			}
		}
		if (len(items) == 0 || n.pause > 0) && !w.idle(ctx, l, n) {
			return nil
		}
	}
}

// roomy makes the stack of a new goroutine as large as a call needs while there is nothing on it. Growing it step by step
// under a call moves all that lies on it by then, again and again.
//
//go:noinline
func roomy(i int) byte {
	var room [12 << 10]byte
	return room[i]
}

// end gives an evaluation's slot back to the lane that took it.
func (l *line) end(n *lane) {
	l.under.Add(-1)
	l.slots.end(n.name)
}

// giveBack releases items that were claimed while the worker was told to stop.
func (w *Worker) giveBack(l *line, n *lane, items []*item) {
	for _, it := range items {
		crashpoint.Pass(crashpoint.StopGivingBack)
		w.settled <- settlement{item: it, release: true}
		l.slots.end(n.name)
	}
}

// idle waits for a hint, for the gate to open, or for the next poll. It reports false when ctx has ended.
func (w *Worker) idle(ctx context.Context, l *line, n *lane) bool {
	l.slots.rest(n.name)
	pause := w.PollInterval + rand.N(w.PollInterval/4+1) //nolint:gosec // jitter
	if wait := l.wait(time.Now()); wait > 0 {
		pause = min(pause, wait)
	}
	if n.pause > 0 {
		pause = min(pause, n.pause)
	}
	if unseen := n.unseen(); unseen > 0 {
		pause = min(pause, unseen)
	}
	least := time.Until(n.next)
	timer := time.NewTimer(max(pause, least))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-n.wake:
		if least > 0 {
			backoff.Sleep(ctx, time.Until(n.next))
		}
	}
	return ctx.Err() == nil
}

func (n *lane) unseen() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.claimer.Unseen()
}

// takeSlots takes the slots that a lane may have, at least one; none when ctx has ended. While there is more work than
// slots it lingers until half of them are free.
func (w *Worker) takeSlots(ctx context.Context, l *line, n *lane) int {
	least := 1
	if l.slots.busy(n.name) {
		least = max(1, min(l.slots.reach(n.name), claimMost)/2)
	}
	var linger <-chan time.Time
	for ctx.Err() == nil {
		taken, free := l.slots.take(n.name, least, claimMost)
		if taken > 0 {
			return taken
		}
		if free && linger == nil {
			timer := time.NewTimer(lingerMost)
			defer timer.Stop()
			linger = timer.C
		}
		select {
		case <-ctx.Done():
		case <-l.slots.freed[n.name]:
		case <-linger:
			least = 1
		}
	}
	return 0
}

// claim leases up to most rows of a lane, or the one row of its route's probe, be it of the other lane.
func (w *Worker) claim(ctx context.Context, l *line, n *lane, most int) (items []*item, err error) {
	// A claim that was committed must be known here, so stopping does not cut it short.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	w.giveBackStrays(ctx)
	w.claiming.RLock()
	defer w.claiming.RUnlock()
	state := *l.state.Load()
	n.pause = 0
	if state.Paused || l.wait(time.Now()) > 0 || l.suspect.Load() > 0 {
		return nil, nil
	}
	if state.State != route.Closed {
		if n.name == outbox.Bulk {
			return nil, nil
		}
		return w.claimProbe(ctx, l, state)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, span := w.startClaim(ctx, l)
	defer func() { endClaim(span, len(items), err) }()
	if state.Metered() {
		return w.claimMetered(ctx, l, n, most, uuid.Nil)
	}
	rows, err := n.claimer.Claim(ctx, most)
	items, versionErr := w.begin(ctx, l, rows, terms{})
	return items, errors.Join(err, versionErr)
}

// claimProbe leases the one row whose call shows whether a route is back: live work, if there is any.
func (w *Worker) claimProbe(ctx context.Context, l *line, state route.Route) (items []*item, err error) {
	ctx, span := w.startClaim(ctx, l)
	defer func() { endClaim(span, len(items), err) }()
	probe, ok, err := w.gate.BeginProbe(ctx, l.name, 2*state.CallTimeout)
	if err != nil || !ok {
		return nil, err
	}
	crashpoint.Pass(crashpoint.ProbeBegun)
	slog.InfoContext(ctx, "probing a route", slog.String("route", l.name), slog.String("reason", state.Reason))
	for _, n := range l.lanes() {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	if state.Metered() {
		items, err := w.claimMetered(ctx, l, l.live, 1, probe)
		if len(items) == 0 {
			err = errors.Join(err, w.gate.CancelProbe(ctx, l.name, probe))
		}
		return items, err
	}
	rows, err := l.live.claimer.Claim(ctx, 1)
	if err == nil && len(rows) == 0 {
		rows, err = l.bulk.claimer.Claim(ctx, 1)
	}
	if err != nil || len(rows) == 0 {
		return nil, errors.Join(err, w.gate.CancelProbe(ctx, l.name, probe))
	}
	return w.begin(ctx, l, rows, terms{probe: probe})
}

// bulkInterval is how often a bulk lane is looked at that had less than was asked of it.
const bulkInterval = 250 * time.Millisecond

// begin takes claimed rows into this worker's care.
func (w *Worker) begin(ctx context.Context, l *line, rows []outbox.Claimed, t terms) ([]*item, error) {
	crashpoint.PassIf(len(rows) > 0, crashpoint.ClaimCommitted)
	w.measureClaim(ctx, l, rows)
	items := make([]*item, 0, len(rows))
	now := time.Now()
	var problem error
	w.claims.begin(rows)
	w.mu.Lock()
	for _, r := range rows {
		w.held[r.ID] = r.Key
	}
	w.mu.Unlock()
	for _, r := range rows {
		it := &item{Claimed: r, route: l.name, terms: t, decide: w.decide, claimedAt: now}
		v, err := w.version(ctx, r.VersionID)
		if err != nil {
			problem = err
			w.settled <- settlement{item: it, release: true}
			continue
		}
		it.version = v
		w.startSpan(ctx, it)
		items = append(items, it)
	}
	return items, problem
}

// version returns a version; it never changes, so it is read once.
func (w *Worker) version(ctx context.Context, id string) (evaluation.Version, error) {
	w.mu.Lock()
	v, ok := w.versions[id]
	w.mu.Unlock()
	if ok {
		return v, nil
	}
	stored, err := versiondb.Get(ctx, w.Claims, id)
	if err != nil {
		return evaluation.Version{}, err
	}
	w.mu.Lock()
	w.versions[id] = stored.Version
	w.mu.Unlock()
	return stored.Version, nil
}

// heartbeats extends all leases, three times in the life of one.
func (w *Worker) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(w.Lease / heartbeatsALease)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w.mu.Lock()
		leases := make([]outbox.Lease, 0, len(w.held))
		for id, key := range w.held {
			leases = append(leases, outbox.Lease{Key: key, ID: id})
		}
		w.mu.Unlock()
		crashpoint.PassIf(len(leases) > 0, crashpoint.HeartbeatBegun)
		lost, err := outbox.Extend(ctx, w.Settles, w.Name, leases, w.Lease)
		if err != nil {
			if ctx.Err() == nil {
				slog.WarnContext(ctx, "cannot extend leases", slog.Int("leases", len(leases)), slog.Any("error", err))
			}
			continue
		}
		crashpoint.PassIf(len(leases) > 0, crashpoint.HeartbeatExtended)
		w.forget(ctx, lost)
	}
}

// forget stops extending leases that are lost. Their calls go on: the requests have left, the responses are paid
// for either way, and saving one needs no lease.
func (w *Worker) forget(ctx context.Context, lost []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, id := range lost {
		// One that was settled while the heartbeat was on its way is not lost.
		if _, held := w.held[id]; held {
			delete(w.held, id)
			n++
		}
	}
	if n > 0 {
		w.Metrics.LostLeases(ctx, n)
		slog.WarnContext(ctx, "lost leases: others may evaluate the same work by now", slog.Int("leases", n))
	}
}

// reclaims takes back expired leases, of any worker's.
func (w *Worker) reclaims(ctx context.Context) error {
	interval := min(reclaimInterval, w.Lease/2)
	for {
		timer := time.NewTimer(interval/2 + rand.N(interval)) //nolint:gosec // jitter
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		crashpoint.Pass(crashpoint.ReclaimBegun)
		r, err := w.reclaim(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			slog.WarnContext(ctx, "cannot reclaim expired leases", slog.Any("error", err))
		case r != outbox.Reclaimed{}:
			crashpoint.Pass(crashpoint.ReclaimCommitted)
			w.Metrics.Reclaimed(ctx, r.Pending, r.Dead, r.Unknown)
			slog.WarnContext(ctx, "reclaimed expired leases", slog.Int("pending", r.Pending), slog.Int("dead", r.Dead), slog.Int("unknown_calls", r.Unknown))
			w.wakeAll()
		}
	}
}

// reclaim takes back what one transaction may, and tells of what is a dead letter for it.
func (w *Worker) reclaim(ctx context.Context) (r outbox.Reclaimed, err error) {
	told := 0
	err = postgres.InTx(ctx, w.Settles, func(ctx context.Context, tx pgx.Tx) error {
		var dead []content.Key
		var err error
		if r, dead, err = outbox.Reclaim(ctx, tx, reclaimMost); err != nil {
			return err
		}
		told, err = webhook.Tell(ctx, tx, dead)
		return err
	})
	if err != nil {
		return outbox.Reclaimed{}, err
	}
	w.told(told)
	return r, nil
}

// told wakes whoever sends webhooks.
func (w *Worker) told(deliveries int) {
	if deliveries > 0 && w.Told != nil {
		w.Told()
	}
}

func (w *Worker) wakeAll() {
	for _, l := range w.allLines() {
		l.ring()
	}
}

// listen wakes the claims when a hint comes. While it cannot, polling finds all work.
func (w *Worker) listen(ctx context.Context) error {
	if w.Listen == "" {
		return nil
	}
	for {
		err := w.listenOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		slog.WarnContext(ctx, "cannot listen for hints of new work; polling", slog.Any("error", err))
		timer := time.NewTimer(refreshInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (w *Worker) listenOnce(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.Listen)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return outbox.Listen(ctx, conn, w.wakeAll)
}
