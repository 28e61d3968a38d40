package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

func drain(ctx context.Context, o options) (report, error) {
	enough := make(chan struct{})
	p := &provider{latency: o.latency, called: func(nth int64, _ inference.Request) {
		if nth == int64(o.n) {
			close(enough)
		}
	}}
	w, err := start(ctx, o, p)
	if err != nil {
		return report{}, err
	}
	defer func() { _ = w.end() }()
	if err := wait(ctx, o, enough); err != nil {
		return report{}, fmt.Errorf("drain, after %d evaluations: %w", p.calls.Load(), err)
	}
	if err := w.end(); err != nil {
		return report{}, err
	}
	r := reportOf("drain", int(p.calls.Load()), time.Since(w.began))
	r.Claims = w.latencies(w.claims)
	return r, nil
}

// hold keeps calls in flight until all are.
func hold(ctx context.Context, o options) (report, error) {
	all, release := make(chan struct{}), make(chan struct{})
	p := &provider{called: func(nth int64, _ inference.Request) {
		if nth == int64(o.n) {
			close(all)
		}
		<-release
	}}
	w, err := start(ctx, o, p)
	if err != nil {
		return report{}, err
	}
	letGo := sync.OnceFunc(func() { close(release) })
	defer func() {
		letGo()
		_ = w.end()
	}()
	if err := wait(ctx, o, all); err != nil {
		return report{}, fmt.Errorf("hold, at %d calls in flight: %w", p.calls.Load(), err)
	}
	held := memoryNow()
	w.stop()
	letGo()
	if err := w.end(); err != nil {
		return report{}, err
	}
	r := reportOf("hold", int(p.calls.Load()), time.Since(w.began))
	r.Held, r.After = held, memoryNow()
	return r, nil
}

func idle(ctx context.Context, o options) (report, error) {
	w, err := start(ctx, o, &provider{})
	if err != nil {
		return report{}, err
	}
	defer func() { _ = w.end() }()
	if err := pause(ctx, time.Second); err != nil { // what a start takes is no part of it
		return report{}, err
	}
	before := w.statements.Load()
	if err := pause(ctx, o.idle); err != nil {
		return report{}, err
	}
	rate := float64(w.statements.Load()-before) / o.idle.Seconds()
	r := reportOf("idle", 0, time.Since(w.began))
	r.Statements = &rate
	return r, w.end()
}

// pickup times tickets from their commits to their calls.
func pickup(ctx context.Context, o options) (report, error) {
	calls := newCalls()
	w, err := start(ctx, o, &provider{latency: o.latency, called: calls.note})
	if err != nil {
		return report{}, err
	}
	defer func() { _ = w.end() }()
	pool, err := postgres.Open(ctx, postgres.Config{URL: o.url, AppName: "bench-worker creates"})
	if err != nil {
		return report{}, err
	}
	defer pool.Close()
	notifier := outbox.NewNotifier(pool)
	notifying, stopNotifying := context.WithCancel(ctx)
	var notifies sync.WaitGroup
	notifies.Go(func() { _ = notifier.Run(notifying) })
	defer notifies.Wait()
	defer stopNotifying()

	var took []time.Duration
	for range o.n {
		if err := pause(ctx, o.gap); err != nil {
			return report{}, err
		}
		message := rand.Text()
		called := calls.expect(message)
		if err := create(ctx, pool, message); err != nil {
			return report{}, err
		}
		committed := time.Now()
		notifier.Ring()
		select {
		case at := <-called:
			took = append(took, max(0, at.Sub(committed)))
		case <-ctx.Done():
			return report{}, context.Cause(ctx)
		}
	}
	r := reportOf("pickup", o.n, time.Since(w.began))
	r.Pickup = latenciesOf(took)
	return r, w.end()
}

// calls tells when the calls for certain messages were made.
type calls struct {
	mu       sync.Mutex
	expected map[string]chan time.Time
}

func newCalls() *calls { return &calls{expected: map[string]chan time.Time{}} }

func (c *calls) expect(message string) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	called := make(chan time.Time, 1)
	c.expected[message] = called
	return called
}

func (c *calls) note(_ int64, r inference.Request) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if called, ok := c.expected[r.Text.Message]; ok {
		delete(c.expected, r.Text.Message)
		called <- now
	}
}

func create(ctx context.Context, pool *pgxpool.Pool, message string) error {
	text, err := content.Canonical("bench", message)
	if err != nil {
		return err
	}
	return postgres.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		active, err := versiondb.GetActive(ctx, tx)
		if err != nil {
			return err
		}
		id := uuid.Must(uuid.NewV7())
		ticket := ticketdb.NewTicket{ID: id, ClientID: "bench", Subject: text.Subject, Message: text.Message, ContentHash: text.Hash()}
		if _, err := ticketdb.Insert(ctx, tx, []ticketdb.NewTicket{ticket}); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: active.ID, Route: active.Route, Lane: outbox.Live},
			[]outbox.Job{{Key: content.KeyOf(text.Hash(), active.Digest), ContentHash: text.Hash(), TicketID: id}})
	})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
