package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
)

const (
	poll     = 20 * time.Millisecond
	patience = 5 * time.Minute // for what waits

	// In quiet time a machine does what it can, and no design piles up what it cannot.
	mostFlying  = 64   // creates at a time
	mostWaiting = 1000 // tickets
	lookEvery   = 100  // tickets
)

// player does what the schedule says. Around outages it does so to the moment: a ticket that is due is sent whatever the
// ones before it take. In quiet time, where only the order counts, it waits for a design that has too much to do, and moves
// everything that follows.
type player struct {
	*rig
	design   design
	client   *client
	progress *report.Progress

	sent    *sync.WaitGroup // tickets; replaced at the end of the long outage
	beside  sync.WaitGroup  // restarts, and the wait for the drain
	killing sync.Mutex      // one after another

	flying    chan struct{}   // as many creates as are sent in quiet time before one has come back
	latencies []time.Duration // by ticket
	gaveUp    atomic.Int64    // clients
	began     time.Time       // moved by what quiet times took too long
	behind    time.Duration   // the most that anything around an outage was done too late
	took      time.Duration
	kills     int
	drained   time.Duration // since the end of the long outage
}

func newPlayer(r *rig, d design, progress *report.Progress) *player {
	return &player{
		rig: r, design: d, client: newClient(d.target(), r.schedule.Options), progress: progress,
		sent: &sync.WaitGroup{}, flying: make(chan struct{}, mostFlying), latencies: make([]time.Duration, len(r.schedule.Tickets)),
	}
}

// act is one thing to do.
type act struct {
	at time.Duration // real
	do func(context.Context) error
}

// play returns when everything is done and nothing waits any more.
func (p *player) play(ctx context.Context) error {
	defer p.client.close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	began := time.Now()
	fail(p.follow(ctx, fail))
	p.took = time.Since(began)
	p.sent.Wait()
	p.beside.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errPlayed) {
		return err
	}
	return nil
}

// errPlayed is how a month ends that nothing has cut short.
var errPlayed = errors.New("played to the end")

// follow follows the schedule, and waits for what it leaves behind. It returns the reason to end, errPlayed at best.
func (p *player) follow(ctx context.Context, fail func(error)) error {
	p.began = time.Now()
	acts := p.acts(fail)
	for i, t := range p.schedule.Tickets {
		var err error
		if acts, err = p.perform(ctx, acts, t.Sent-1); err != nil {
			return err
		}
		landed := func() {}
		if t.Span == schedule.Quiet {
			if err := p.makeRoom(ctx, i); err != nil {
				return err
			}
			landed = func() { <-p.flying }
			p.began = p.began.Add(max(0, time.Since(p.began.Add(t.Sent))))
		}
		if acts, err = p.perform(ctx, acts, t.Sent); err != nil {
			return err
		}
		if err := p.await(ctx, t.Sent); err != nil {
			return err
		}
		due := time.Now()
		p.sent.Go(func() {
			defer landed()
			if err := p.send(ctx, i, due); err != nil {
				fail(err)
			}
		})
	}
	if _, err := p.perform(ctx, acts, math.MaxInt64); err != nil {
		return err
	}
	p.sent.Wait()
	p.beside.Wait()
	if err := p.drain(ctx, time.Now()); err != nil {
		return err
	}
	return errPlayed
}

// acts are what happens beside the tickets, in order.
func (p *player) acts(fail func(error)) []act {
	var acts []act
	for _, o := range p.schedule.Outages {
		acts = append(acts, act{o.Begin, p.beginOutage}, act{o.End, func(ctx context.Context) error {
			if err := p.endOutage(ctx); err != nil || !o.Long {
				return err
			}
			ended, before := time.Now(), p.sent
			p.sent = &sync.WaitGroup{}
			p.beside.Go(func() {
				before.Wait()
				if err := p.drain(ctx, ended); err != nil {
					fail(err)
				}
				p.drained = time.Since(ended)
			})
			return nil
		}})
	}
	for _, at := range p.schedule.Kills {
		acts = append(acts, act{at, func(ctx context.Context) error {
			p.beside.Go(func() {
				p.killing.Lock()
				defer p.killing.Unlock()
				p.kills++
				if err := p.design.restart(ctx); err != nil {
					fail(err)
				}
			})
			return nil
		}})
	}
	slices.SortStableFunc(acts, func(a, b act) int { return cmp.Compare(a.at, b.at) })
	return acts
}

// makeRoom returns when one more ticket is not too many, in quiet time.
func (p *player) makeRoom(ctx context.Context, i int) error {
	select {
	case p.flying <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if i%lookEvery != 0 {
		return nil
	}
	return p.until(ctx, time.Now(), mostWaiting)
}

// perform does what is to be done until then, and returns the rest.
func (p *player) perform(ctx context.Context, acts []act, until time.Duration) ([]act, error) {
	for ; len(acts) > 0 && acts[0].at <= until; acts = acts[1:] {
		if err := p.await(ctx, acts[0].at); err != nil {
			return nil, err
		}
		if err := acts[0].do(ctx); err != nil {
			return nil, err
		}
	}
	return acts, nil
}

// await waits until it is time.
func (p *player) await(ctx context.Context, at time.Duration) error {
	wait := time.Until(p.began.Add(at))
	if wait <= 0 {
		p.behind = max(p.behind, -wait)
		return context.Cause(ctx)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send is a client with one ticket.
func (p *player) send(ctx context.Context, i int, due time.Time) error {
	subject, message := p.schedule.Text(p.schedule.Tickets[i].Content)
	err := p.client.create(ctx, i, subject, message)
	p.latencies[i] = time.Since(due)
	p.progress.Add(1)
	if errors.Is(err, errGaveUp) {
		p.gaveUp.Add(1)
		return nil
	}
	return err
}

// drain returns when no ticket created until then waits any more.
func (p *player) drain(ctx context.Context, until time.Time) error { return p.until(ctx, until, 0) }

// until returns when at most so many of the tickets created until then wait.
func (p *player) until(ctx context.Context, created time.Time, most int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		n, err := p.design.waiting(ctx, created)
		if err != nil || n <= most {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d tickets still wait: %w", n, context.Cause(ctx))
		}
	}
}

// latenciesIn are those of the tickets that arrive in times of a kind.
func (p *player) latenciesIn(span schedule.Span) []time.Duration {
	var out []time.Duration
	for i, t := range p.schedule.Tickets {
		if t.Span == span {
			out = append(out, p.latencies[i])
		}
	}
	return out
}
