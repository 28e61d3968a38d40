// Package deliver sends webhooks: it claims deliveries that are due, makes one attempt at each, and writes what became of
// it. It shares nothing with the evaluations but the process: it has connections and room of its own, so that no receiver
// keeps an evaluation from being done, nor one endpoint another from being told.
//
// It also works off what follows from promotions (see pkg/webhook), and removes what was deleted.
package deliver

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// Sender makes one attempt; webhook.Client does.
type Sender interface {
	Send(ctx context.Context, m webhook.Message) webhook.Attempt
}

// Options sets a pool up.
type Options struct {
	DB     *pgxpool.Pool
	Sender Sender
	Keys   *webhook.Keyring

	Name         string // unique among all workers that run
	Concurrency  int    // requests under way
	PerEndpoint  int    // of them to one endpoint, by all workers together
	PollInterval time.Duration
	Lease        time.Duration
	Grace        time.Duration // for running requests, once stopping
	Metrics      *metrics.Webhooks
	Tracer       trace.Tracer // nil makes no spans
}

// SaveMost bounds how long a stopping pool tries to write what it has, once its requests have ended.
const SaveMost = 5 * time.Second

const (
	claimMost = 500
	// An endpoint may have no more under way than this part of what is free. However many are slow, room is left for others.
	shareOfFree      = 4
	settleMost       = 500
	heartbeatsALease = 3
	reclaimInterval  = 3 * time.Second
	reclaimMost      = 500
	// A chunk holds the rows of its tickets until it commits, and those who finish evaluations of theirs wait.
	supersedeMost     = 500
	supersedeInterval = time.Second
	tidyInterval      = time.Minute
	tidyMost          = 1000
	statementTimeout  = 30 * time.Second
	settleRetry       = 100 * time.Millisecond
	settleRetryMost   = 2 * time.Second
)

var errStopping = errors.New("the worker is stopping")

// Pool delivers.
type Pool struct {
	Options
	wake  chan struct{}
	slots chan struct{}
	made  chan webhook.Made
	sends sync.WaitGroup

	mu   sync.Mutex
	held map[uuid.UUID]struct{} // leases
}

// New makes a pool.
func New(o Options) *Pool {
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	return &Pool{
		Options: o, wake: make(chan struct{}, 1), slots: make(chan struct{}, o.Concurrency),
		made: make(chan webhook.Made, claimMost), held: map[uuid.UUID]struct{}{},
	}
}

// Wake has it look for deliveries at once.
func (p *Pool) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run delivers until ctx ends. Then it claims no more, gives running requests their grace, writes what became of them,
// and returns. Without keys nothing can be signed: then it sends nothing.
func (p *Pool) Run(ctx context.Context) error {
	sending, cutSends := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutSends(nil)
	upkeep, stopUpkeep := context.WithCancel(context.WithoutCancel(ctx)) // for what must outlive the requests
	defer stopUpkeep()
	var heartbeat, settling sync.WaitGroup
	heartbeat.Go(func() { p.heartbeats(upkeep) })
	settling.Go(func() { p.settleAll(upkeep) })

	g, ctx := errgroup.WithContext(ctx)
	if p.Keys.Usable() {
		g.Go(func() error { p.claims(ctx, sending); return nil })
	} else {
		slog.WarnContext(ctx, "no keys for webhook secrets: events are kept, and nothing is sent")
	}
	g.Go(func() error { p.every(ctx, reclaimInterval, p.reclaim); return nil })
	g.Go(func() error { p.every(ctx, supersedeInterval, p.supersede); return nil })
	g.Go(func() error { p.every(ctx, tidyInterval, p.tidy); return nil })
	err := g.Wait()

	grace := time.AfterFunc(p.Grace, func() { cutSends(errStopping) })
	p.sends.Wait()
	grace.Stop()
	close(p.made)
	giveUp := time.AfterFunc(SaveMost, stopUpkeep)
	settling.Wait()
	giveUp.Stop()
	stopUpkeep()
	heartbeat.Wait()
	return err
}

// claims takes due deliveries as long as there is room for them.
func (p *Pool) claims(ctx, sending context.Context) {
	for {
		room := p.takeSlots(ctx)
		if room == 0 {
			return
		}
		claimed, err := p.claim(ctx, room)
		if err != nil {
			slog.WarnContext(ctx, "cannot claim deliveries", slog.Any("error", err))
		}
		for range room - len(claimed) {
			<-p.slots
		}
		for _, c := range claimed {
			p.sends.Go(func() {
				defer func() { <-p.slots }()
				p.made <- p.attempt(sending, c)
			})
		}
		if len(claimed) == 0 && !p.idle(ctx) {
			return
		}
	}
}

// takeSlots takes all free slots, at least one; none when ctx has ended.
func (p *Pool) takeSlots(ctx context.Context) int {
	if ctx.Err() != nil {
		return 0
	}
	select {
	case <-ctx.Done():
		return 0
	case p.slots <- struct{}{}:
	}
	for taken := 1; taken < min(cap(p.slots), claimMost); taken++ {
		select {
		case p.slots <- struct{}{}:
		default:
			return taken
		}
	}
	return min(cap(p.slots), claimMost)
}

func (p *Pool) claim(ctx context.Context, most int) ([]webhook.Claimed, error) {
	// What is committed must be known here, so stopping does not cut it short.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	claimed, err := webhook.Claim(ctx, p.DB, p.Name, p.Lease, max(1, min(p.PerEndpoint, most/shareOfFree)), most)
	p.mu.Lock()
	for _, c := range claimed {
		p.held[c.Lease] = struct{}{}
	}
	p.mu.Unlock()
	crashpoint.PassIf(len(claimed) > 0, crashpoint.DeliverClaimCommitted)
	return claimed, err
}

// attempt sends a delivery once.
func (p *Pool) attempt(ctx context.Context, c webhook.Claimed) (made webhook.Made) {
	made = webhook.Made{Claimed: c}
	ctx, span := p.startSpan(ctx, c)
	defer func() { endSpan(span, made.Attempt) }()
	message, err := c.Message(p.Keys)
	switch {
	case err != nil:
		slog.ErrorContext(ctx, "cannot sign deliveries: a key is missing", slog.Any("error", err))
		made.Attempt.Reason = webhook.NoSecret
	case ctx.Err() != nil:
		made.Attempt.Reason = webhook.Stopped
	default:
		began := time.Now()
		made.Attempt = p.Sender.Send(ctx, message)
		p.Metrics.Attempted(ctx, string(made.Attempt.Reason), time.Since(began))
		crashpoint.Pass(crashpoint.DeliverReturned)
	}
	return made
}

// idle waits for the next poll, or for what this process has just written. It reports false when ctx has ended.
func (p *Pool) idle(ctx context.Context) bool {
	timer := time.NewTimer(p.PollInterval + rand.N(p.PollInterval/4+1)) //nolint:gosec // jitter
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// settleAll writes attempts in groups: whatever came while the group before was being written.
func (p *Pool) settleAll(ctx context.Context) {
	for first := range p.made {
		group := []webhook.Made{first}
	gather:
		for len(group) < settleMost {
			select {
			case m, ok := <-p.made:
				if !ok {
					break gather
				}
				group = append(group, m)
			default:
				break gather
			}
		}
		p.settle(ctx, group)
		p.mu.Lock()
		for _, m := range group {
			delete(p.held, m.Lease)
		}
		p.mu.Unlock()
		p.Wake() // an endpoint has room again
	}
}

// settle writes a group until it is written, or its leases are about to end: then it is sent again, under the same ids.
func (p *Pool) settle(ctx context.Context, group []webhook.Made) {
	deadline := time.Now().Add(p.Lease)
	for pause := settleRetry; ; pause = min(2*pause, settleRetryMost) {
		disabled, err := webhook.Settle(ctx, p.DB, group)
		if err == nil {
			crashpoint.Pass(crashpoint.DeliverSettleCommitted)
			for _, d := range disabled {
				p.Metrics.Disabled(ctx, d.Reason)
				slog.WarnContext(ctx, "a webhook endpoint is disabled",
					slog.Any("endpoint", d.EndpointID), slog.String("client", d.ClientID), slog.String("reason", d.Reason))
			}
			return
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			slog.ErrorContext(ctx, "deliveries unsaved: they will be sent again", slog.Int("deliveries", len(group)), slog.Any("error", err))
			return
		}
		slog.WarnContext(ctx, "cannot save deliveries, trying again", slog.Int("deliveries", len(group)), slog.Any("error", err))
		backoff.Sleep(ctx, pause)
	}
}

func (p *Pool) heartbeats(ctx context.Context) {
	p.every(ctx, p.Lease/heartbeatsALease, func(ctx context.Context) error {
		p.mu.Lock()
		leases := make([]uuid.UUID, 0, len(p.held))
		for id := range p.held {
			leases = append(leases, id)
		}
		p.mu.Unlock()
		lost, err := webhook.Extend(ctx, p.DB, p.Name, leases, p.Lease)
		if err != nil {
			return err
		}
		crashpoint.PassIf(len(leases) > 0, crashpoint.DeliverExtended)
		p.mu.Lock()
		for _, id := range lost {
			delete(p.held, id)
		}
		p.mu.Unlock()
		return nil
	})
}

func (p *Pool) reclaim(ctx context.Context) error {
	n, err := webhook.Reclaim(ctx, p.DB, reclaimMost)
	if err == nil && n > 0 {
		crashpoint.Pass(crashpoint.DeliverReclaimed)
		slog.WarnContext(ctx, "took deliveries back whose worker is gone", slog.Int("deliveries", n))
		p.Wake()
	}
	return err
}

// supersede works promotions off until there is nothing to do for now.
func (p *Pool) supersede(ctx context.Context) error {
	for {
		done, err := webhook.Supersede(ctx, p.DB, supersedeMost)
		if err != nil || !done.Worked {
			return err
		}
		crashpoint.Pass(crashpoint.DeliverSupersedeCommitted)
		if done.Told > 0 {
			p.Wake()
		}
	}
}

func (p *Pool) tidy(ctx context.Context) error {
	for n := tidyMost; n == tidyMost; {
		var err error
		if n, err = webhook.Purge(ctx, p.DB, tidyMost); err != nil {
			return err
		}
	}
	_, err := webhook.Reseal(ctx, p.DB, p.Keys, tidyMost)
	return err
}

// every does something in intervals until ctx ends.
func (p *Pool) every(ctx context.Context, interval time.Duration, do func(context.Context) error) {
	for backoff.Sleep(ctx, interval/2+rand.N(interval)) { //nolint:gosec // jitter
		if err := do(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "upkeep of webhooks failed", slog.Any("error", err))
		}
	}
}
