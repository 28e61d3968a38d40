package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/observedb"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/sweeper/internal/prune"
	"github.com/evalonce/evalonce/services/sweeper/internal/reclaim"
	"github.com/evalonce/evalonce/services/sweeper/internal/reconcile"
)

const monthsAhead = 3

// summary is what a sweep did, and the line it prints.
type summary struct {
	ReclaimedPending int      `json:"reclaimed_pending"`
	ReclaimedDead    int      `json:"reclaimed_dead"`
	UnknownCalls     int      `json:"unknown_calls"`
	PrunedRequests   int      `json:"pruned_requests"`
	PartitionsMade   int      `json:"partitions_made"`
	Reconciled       int      `json:"reconciled"` // tickets
	ErasedTickets    int64    `json:"erased_tickets"`
	ErasedResponses  int64    `json:"erased_responses"`
	ErasedDeliveries int64    `json:"erased_deliveries"`
	Violations       *int     `json:"violations,omitempty"` // absent when nobody looked
	DurationMS       int64    `json:"duration_ms"`
	Skipped          []string `json:"skipped"` // "step: reason"
	Failed           []string `json:"failed"`  // steps; the log says why
}

func (s summary) print(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return fmt.Errorf("print what the sweep did: %w", err)
	}
	return nil
}

// counts are what is recorded of the sweep, by the names that they are printed under.
func (s summary) counts() map[string]int64 {
	counts := map[string]int64{
		"reclaimed_pending": int64(s.ReclaimedPending), "reclaimed_dead": int64(s.ReclaimedDead), "unknown_calls": int64(s.UnknownCalls),
		"pruned_requests": int64(s.PrunedRequests), "partitions_made": int64(s.PartitionsMade), "reconciled": int64(s.Reconciled),
		"erased_tickets": s.ErasedTickets, "erased_responses": s.ErasedResponses,
		"erased_deliveries": s.ErasedDeliveries,
	}
	if s.Violations != nil {
		counts["violations"] = int64(*s.Violations)
	}
	return counts
}

func (s summary) err() error {
	var problems []error
	if len(s.Failed) > 0 {
		problems = append(problems, fmt.Errorf("steps failed: %s", strings.Join(s.Failed, ", ")))
	}
	if s.Violations != nil && *s.Violations > 0 {
		problems = append(problems, fmt.Errorf("fsck found %d violations", *s.Violations))
	}
	return errors.Join(problems...)
}

// skipped is the good reason of a step to do nothing, or not all.
type skipped string

func (s skipped) Error() string { return string(s) }

// sweep takes every step, whatever becomes of the others.
func sweep(ctx context.Context, db *pgxpool.Pool, cfg Config, tracer trace.Tracer) summary {
	ctx, span := tracer.Start(ctx, telemetry.SpanSweep)
	defer span.End()
	began := time.Now()
	s := summary{Skipped: []string{}, Failed: []string{}}
	take := func(step string, run func(context.Context) error) {
		ctx, span := tracer.Start(ctx, telemetry.SweepStepSpan(step))
		defer span.End()
		err := run(ctx)
		var reason skipped
		switch {
		case err == nil:
		case ctx.Err() != nil:
			s.Skipped = append(s.Skipped, step+": "+context.Cause(ctx).Error())
		case errors.As(err, &reason):
			s.Skipped = append(s.Skipped, step+": "+string(reason))
		default:
			s.Failed = append(s.Failed, step)
			span.SetStatus(codes.Error, "")
			slog.ErrorContext(ctx, "a step of the sweep failed", slog.String("step", step), slog.Any("error", err))
		}
	}
	take("reclaim", func(ctx context.Context) error {
		r, err := reclaim.Run(ctx, db)
		s.ReclaimedPending, s.ReclaimedDead, s.UnknownCalls = r.Pending, r.Dead, r.Unknown
		return err
	})
	take("prune", func(ctx context.Context) (err error) {
		s.PrunedRequests, err = prune.Run(ctx, db)
		return err
	})
	take("partitions", func(ctx context.Context) (err error) {
		s.PartitionsMade, err = ensurePartitions(ctx, db)
		return err
	})
	take("reconcile", func(ctx context.Context) (err error) {
		s.Reconciled, err = reconcile.Run(ctx, db, cfg.window())
		if errors.Is(err, versiondb.ErrNoActive) {
			return skipped("no version is active")
		}
		return err
	})
	take("retention", func(ctx context.Context) error { return s.retain(ctx, db, cfg) })
	if cfg.Fsck {
		take("fsck", func(ctx context.Context) error {
			report, err := fsck.Run(ctx, db, fsck.Options{StatementTimeout: cfg.FsckTimeout, Found: logFinding(ctx)})
			violations := 0
			for _, f := range report.Violations {
				violations += f.Count
			}
			if err == nil || violations > 0 {
				s.Violations = &violations
			}
			return err
		})
	}
	take("record", func(ctx context.Context) error {
		return observedb.RecordSweep(ctx, db, time.Since(began), s.err() == nil, s.counts())
	})
	s.DurationMS = time.Since(began).Milliseconds()
	if s.err() != nil {
		span.SetStatus(codes.Error, "")
	}
	return s
}

// retain erases what is older than it is to be kept, and what came late of what is erased already.
func (s *summary) retain(ctx context.Context, db *pgxpool.Pool, cfg Config) (err error) {
	if cfg.WebhookRetention > 0 {
		if s.ErasedDeliveries, err = webhook.EraseOldBodies(ctx, db, cfg.WebhookRetention); err != nil {
			return err
		}
	}
	if cfg.TicketRetention > 0 {
		if s.ErasedTickets, err = erasure.OldTexts(ctx, db, cfg.TicketRetention); err != nil {
			return err
		}
	}
	if s.ErasedResponses, err = erasure.Sweep(ctx, db); err != nil || cfg.ResponseRetention == 0 {
		return err
	}
	old, err := erasure.OldResponses(ctx, db, cfg.ResponseRetention)
	s.ErasedResponses += old
	return err
}

func logFinding(ctx context.Context) func(fsck.Finding) {
	return func(f fsck.Finding) {
		attrs := []slog.Attr{
			slog.String("check", f.Name), slog.String("promise", f.Promise), slog.Int("count", f.Count), slog.Any("examples", f.Examples),
		}
		if f.Note {
			slog.LogAttrs(ctx, slog.LevelInfo, "a state to look at if it stays", attrs...)
			return
		}
		slog.LogAttrs(ctx, slog.LevelError, "a promise is broken", attrs...)
	}
}

// partitionLockTimeout bounds how long a new partition waits for whoever reads the ledger: all claims wait behind it.
const partitionLockTimeout = "1s"

// ensurePartitions gives way to long transactions, such as a backup or an fsck. Months are made long before they
// are needed, so the next sweep is early enough.
func ensurePartitions(ctx context.Context, db postgres.Beginner) (made int, err error) {
	err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+partitionLockTimeout+"'"); err != nil {
			return fmt.Errorf("set the lock timeout: %w", err)
		}
		made, err = ledger.EnsurePartitions(ctx, tx, monthsAhead)
		crashpoint.PassIf(made > 0, crashpoint.SweepPartitioned)
		return err
	})
	if err == nil {
		crashpoint.PassIf(made > 0, crashpoint.SweepPartitionCommitted)
		return made, nil
	}
	if postgres.LockNotAvailable(err) {
		return 0, skipped("a long transaction reads the ledger")
	}
	return 0, err
}
