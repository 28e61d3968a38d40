// Package fsck states the promises of EvalOnce as SQL over its tables, and finds what contradicts them.
//
// A run reads one snapshot and changes nothing, so it may be made at any time, beside any traffic: between two
// commits every check holds. A violation is therefore never a state that passes; somebody lost, bought twice or
// changed something. Notes are states that a healthy system passes through, or can live with, and that are worth a
// look when they stay.
//
// A run reads every table once or more. While it lasts it holds a snapshot, which keeps vacuum from what died since,
// and locks on all partitions of the ledger, which a new partition waits for.
package fsck

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/fsck/internal/fscksql"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// Options sets a run up. The zero value is usable.
type Options struct {
	// StatementTimeout bounds each check; zero leaves the session's.
	StatementTimeout time.Duration
	// Examples is how many ids are told of each check; zero stands for 10.
	Examples int
	// Found is called with each finding as soon as it is made; nil for nobody.
	Found func(Finding)
}

const defaultExamples = 10

// Finding is what one check found.
type Finding struct {
	Check
	Count int
	// Examples are the first of what was found: tickets, versions and calls by id, evaluations by key,
	// routes by name, sums of money by scope and period.
	Examples []string
}

func (f Finding) String() string {
	s := f.Name + ": " + strconv.Itoa(f.Count) + " (" + strings.Join(f.Examples, ", ")
	if f.Count > len(f.Examples) {
		s += ", …"
	}
	return s + "), where: " + f.Promise
}

// Report is what a run found. Checks that found nothing are not in it.
type Report struct {
	Violations []Finding
	Notes      []Finding
}

// Healthy reports whether every promise is kept.
func (r Report) Healthy() bool { return len(r.Violations) == 0 }

// Beginner is a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Run makes every check. The report of a run that failed has what was found until then.
func Run(ctx context.Context, db Beginner, opts Options) (Report, error) {
	if opts.Examples <= 0 {
		opts.Examples = defaultExamples
	}
	var report Report
	tx, err := postgres.BeginTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return report, fmt.Errorf("begin the snapshot of fsck: %w", err)
	}
	// There is nothing to commit.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	q := fscksql.New(tx)
	if opts.StatementTimeout > 0 {
		// Zero would turn the timeout off.
		ms := strconv.FormatInt(max(1, opts.StatementTimeout.Milliseconds()), 10)
		if err := q.SetStatementTimeout(ctx, ms); err != nil {
			return report, fmt.Errorf("set the statement timeout of fsck: %w", err)
		}
	}
	for _, c := range checks() {
		f, err := c.run(ctx, q, int32(opts.Examples))
		if err != nil {
			return report, fmt.Errorf("fsck, check %s: %w", c.Name, err)
		}
		if f.Count == 0 {
			continue
		}
		f.Check = c.Check
		if c.Note {
			report.Notes = append(report.Notes, f)
		} else {
			report.Violations = append(report.Violations, f)
		}
		if opts.Found != nil {
			opts.Found(f)
		}
	}
	return report, nil
}

const rollbackTimeout = 5 * time.Second
