// Package rows is what is measured: one file for each part of the table.
//
// Sizes are those of the full run. Scale makes them smaller, for a look or for a test, and then the figures say nothing.
package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/local/stack"
)

// Bench is what the measurements share.
type Bench struct {
	Bed   *bed.Bed
	Scale float64
	// Rounds, when not 0, is how often everything is run.
	Rounds int
}

// All are the groups of the table, in its order, by the names they are chosen by.
func (b *Bench) All() []harness.Group {
	return []harness.Group{b.drain(), b.create(), b.duplicates(), b.snapshot(), b.riversSnapshot(), b.backlog(), b.claims(), b.pickup(), b.enqueue(), b.beside(), b.memory()}
}

// sized scales a number of things, of which there are some at least.
func (b *Bench) sized(full, least int) int { return max(least, int(math.Round(float64(full)*b.Scale))) }

func (b *Bench) rounds(full int) int {
	if b.Rounds > 0 {
		return b.Rounds
	}
	return full
}

// The figures that more than one row has.
const (
	rate     = "per second"
	perSec   = "/s"
	evalonce = "EvalOnce"
)

// measured is what bench-worker prints.
type measured struct {
	Evaluations int         `json:"evaluations"`
	Seconds     float64     `json:"seconds"`
	PerSecond   float64     `json:"per_second"`
	Claims      percentiles `json:"claims"`
	Pickup      percentiles `json:"pickup"`
	Statements  float64     `json:"statements_per_second"`
	Held        memory      `json:"held"`
	After       memory      `json:"after"`
}

type percentiles struct {
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
}

type memory struct {
	Goroutines    int     `json:"goroutines"`
	HeapBytes     float64 `json:"heap_bytes"`
	ResidentBytes float64 `json:"resident_bytes"`
}

// worker runs the product's worker on a database, in a process of its own and with a provider that answers at once.
func (b *Bench) worker(ctx context.Context, db *bed.Database, mode string, flags ...string) (m measured, err error) {
	db.Use()
	out, err := b.Bed.Run(ctx, stack.Spec{
		Name: "bench-worker", Binary: "bench-worker", Args: append(flags, mode), Env: []string{"EVALONCE_DATABASE_URL=" + db.URL},
	})
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(out, &m); err != nil {
		return m, fmt.Errorf("read what bench-worker printed: %w", err)
	}
	return m, nil
}

// drainWith drains so many evaluations of a database's.
func (b *Bench) drainWith(ctx context.Context, db *bed.Database, n int) (measured, error) {
	return b.worker(ctx, db, "drain", fmt.Sprintf("-n=%d", n), "-timeout=15m")
}

// onFresh runs on a database of its own, which ends with the run.
func (b *Bench) onFresh(run func(ctx context.Context, db *bed.Database) (harness.Figures, error)) func(context.Context) (harness.Figures, error) {
	return func(ctx context.Context) (f harness.Figures, err error) {
		db, err := b.Bed.NewDatabase(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, db.Drop(ctx)) }()
		return run(ctx, db)
	}
}

// onKept runs every time on the one database that fill has filled.
func (b *Bench) onKept(name string, fill func(ctx context.Context, db *bed.Database) error, run func(ctx context.Context, db *bed.Database) (harness.Figures, error)) *harness.Subject {
	var db *bed.Database
	return &harness.Subject{
		Name: name,
		Prepare: func(ctx context.Context) (err error) {
			if db, err = b.Bed.NewDatabase(ctx); err != nil {
				return err
			}
			return fill(ctx, db)
		},
		Run: func(ctx context.Context) (harness.Figures, error) { return run(ctx, db) },
		Close: func(ctx context.Context) error {
			if db == nil {
				return nil
			}
			return db.Drop(ctx)
		},
	}
}
