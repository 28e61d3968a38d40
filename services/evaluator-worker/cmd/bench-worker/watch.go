package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// watch counts the statements of pools, and times how long their connections are held: a claim is one transaction.
type watch struct {
	statements atomic.Int64

	mu    sync.Mutex
	since map[*pgx.Conn]time.Time
	held  map[*pgxpool.Pool][]time.Duration
}

func newWatch() *watch {
	return &watch{since: map[*pgx.Conn]time.Time{}, held: map[*pgxpool.Pool][]time.Duration{}}
}

var (
	_ pgx.BatchTracer       = (*watch)(nil)
	_ pgxpool.AcquireTracer = (*watch)(nil)
	_ pgxpool.ReleaseTracer = (*watch)(nil)
)

func (w *watch) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	w.statements.Add(1)
	return ctx
}

func (w *watch) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (w *watch) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	w.statements.Add(int64(data.Batch.Len()))
	return ctx
}

func (w *watch) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (w *watch) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (w *watch) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return ctx
}

func (w *watch) TraceAcquireEnd(_ context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since[data.Conn] = time.Now()
}

func (w *watch) TraceRelease(pool *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[pool] = append(w.held[pool], time.Since(w.since[data.Conn]))
}

// latencies are how long the connections of a pool were held.
func (w *watch) latencies(pool *pgxpool.Pool) *latencies {
	w.mu.Lock()
	defer w.mu.Unlock()
	return latenciesOf(w.held[pool])
}
