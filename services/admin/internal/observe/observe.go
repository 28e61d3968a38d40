// Package observe measures the tables, once for the whole fleet: whichever replica finds the stored snapshot too old takes
// it anew, in one short transaction that holds the snapshot's row, and every replica shows what is stored.
//
// What it reads is bounded whatever there is: counts stop at their bounds, and walk an index until then.
package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/observedb"
	"github.com/evalonce/evalonce/pkg/postgres"
)

const (
	// looksAnInterval is how often a replica looks within an interval: so much later than the interval's end the snapshot
	// is taken at the latest.
	looksAnInterval = 5
	// refreshMost bounds the transaction. What takes longer is given up, and shows as a snapshot that grows old.
	refreshMost = 10 * time.Second
	// ShownFor is how many intervals a snapshot is shown.
	ShownFor = 4
)

// Observer keeps what is known of the tables.
type Observer struct {
	db       *pgxpool.Pool
	interval time.Duration
	known    atomic.Pointer[known]
}

type known struct {
	samples []metrics.Sample
	age     time.Duration
	at      time.Time // when it was so old
}

// New makes an observer that keeps the snapshot as young as the interval.
func New(db *pgxpool.Pool, interval time.Duration) *Observer {
	return &Observer{db: db, interval: interval}
}

// Run keeps the snapshot young until ctx ends.
func (o *Observer) Run(ctx context.Context) error {
	pause := o.interval / looksAnInterval
	for {
		if _, err := o.Look(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cannot measure the tables", slog.Any("error", err))
		}
		timer := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // jitter
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// Look reads the stored snapshot, after taking it anew where it is too old and nobody else is at it. It reports whether it
// has taken it.
func (o *Observer) Look(ctx context.Context) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, refreshMost)
	defer cancel()
	data, age, err := observedb.Latest(ctx, o.db)
	if err != nil {
		return false, err
	}
	if data == nil || age >= o.interval {
		if taken, err = o.refresh(ctx); err != nil {
			return false, err
		}
		if data, age, err = observedb.Latest(ctx, o.db); err != nil {
			return taken, err
		}
	}
	if data == nil {
		return taken, nil // another replica is at the first one
	}
	k := known{age: age, at: time.Now()}
	if err := json.Unmarshal(data, &k.samples); err != nil {
		return taken, fmt.Errorf("read the snapshot: %w", err)
	}
	o.known.Store(&k)
	return taken, nil
}

func (o *Observer) refresh(ctx context.Context) (taken bool, err error) {
	err = postgres.InTx(ctx, o.db, func(ctx context.Context, tx pgx.Tx) error {
		taken = false
		stale, err := observedb.LockStale(ctx, tx, o.interval)
		if err != nil || !stale {
			return err
		}
		samples, err := sample(ctx, tx)
		if err != nil {
			return err
		}
		data, err := json.Marshal(samples)
		if err != nil {
			return fmt.Errorf("write a snapshot: %w", err)
		}
		taken = true
		return observedb.Save(ctx, tx, data)
	})
	return taken && err == nil, err
}

// Read is what this replica shows, for [metrics.Snapshot].
func (o *Observer) Read() (samples []metrics.Sample, age time.Duration, ok bool) {
	k := o.known.Load()
	if k == nil {
		return nil, 0, false
	}
	return k.samples, k.age + time.Since(k.at), true
}
