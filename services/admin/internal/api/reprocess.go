package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/reprocess"
)

// Waker is told when a job was made or changed, after the commit.
type Waker interface {
	Wake()
}

// Reprocess is the ReprocessService.
type Reprocess struct {
	adminv1.UnimplementedReprocessServiceServer
	db   *pgxpool.Pool
	jobs Waker
}

// NewReprocess makes the service.
func NewReprocess(db *pgxpool.Pool, jobs Waker) *Reprocess { return &Reprocess{db: db, jobs: jobs} }

// StartReprocess begins a job, unless it is estimated to cost more than it may.
func (s *Reprocess) StartReprocess(ctx context.Context, r *adminv1.StartReprocessRequest) (*adminv1.Reprocess, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	spec, violations := specFrom(r.GetSelection(), r.GetSpread())
	maximum, wrong := maximumFrom(r.GetMaxCostUsd())
	if violations = append(violations, wrong...); len(violations) > 0 {
		return nil, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	started, err := change(ctx, s.db, "ReprocessService.StartReprocess", r,
		func(ctx context.Context, tx pgx.Tx) (*adminv1.Reprocess, effect, error) {
			spec := spec
			spec.MaxCostUSD = maximum
			if err := settleSpec(ctx, tx, &spec); err != nil {
				return nil, effect{}, err
			}
			var estimate *adminv1.ReprocessEstimate
			if maximum != nil || r.GetDryRun() {
				e, err := reprocess.Preview(ctx, tx, spec)
				if err != nil {
					return nil, effect{}, err
				}
				if maximum != nil && e.CostUSD.GreaterThan(*maximum) {
					return nil, effect{}, &reprocess.CostError{Estimate: e, Max: *maximum}
				}
				estimate = estimateOf(e)
			}
			j, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Evaluate, Spec: spec, CreatedBy: by})
			if err != nil {
				return nil, effect{}, err
			}
			shown, err := s.show(ctx, tx, j)
			if err != nil {
				return nil, effect{}, err
			}
			shown.Estimate = estimate
			if r.GetDryRun() {
				shown.Id = ""
			}
			return shown, effect{target: "reprocesses/" + j.ID.String(), after: spec}, nil
		})
	if err != nil {
		return nil, err
	}
	s.jobs.Wake()
	return started, nil
}

// PreviewReprocess estimates a job.
func (s *Reprocess) PreviewReprocess(ctx context.Context, r *adminv1.PreviewReprocessRequest) (*adminv1.ReprocessEstimate, error) {
	spec, violations := specFrom(r.GetSelection(), r.GetSpread())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var estimate reprocess.Estimate
	err := postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (err error) {
		spec := spec
		if err := settleSpec(ctx, tx, &spec); err != nil {
			return err
		}
		estimate, err = reprocess.Preview(ctx, tx, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	return estimateOf(estimate), nil
}

// settleSpec fills in what the database knows, and refuses what it contradicts.
func settleSpec(ctx context.Context, tx pgx.Tx, spec *reprocess.Spec) error {
	if _, err := versiondb.Get(ctx, tx, spec.Version); err != nil {
		return err
	}
	active, err := versiondb.GetActive(ctx, tx)
	if err != nil && !errors.Is(err, versiondb.ErrNoActive) {
		return err
	}
	spec.FilterVersion = active.ID
	var now time.Time
	if err := tx.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	now = now.UTC()
	if spec.Within > 0 {
		spec.From = now.Add(-spec.Within)
	}
	switch {
	case spec.To.IsZero():
		spec.To = now
	case spec.To.After(now):
		return rpc.InvalidFields(rpc.Violation{
			Field: "selection.created_to", Reason: "OUT_OF_RANGE",
			Description: fmt.Sprintf("must not be in the future: it is %s", now.Format(time.RFC3339)),
		})
	}
	if !spec.From.Before(spec.To) {
		return rpc.InvalidFields(rpc.Violation{
			Field: "selection.created_from", Reason: "OUT_OF_RANGE", Description: "must be before created_to",
		})
	}
	return nil
}

// GetReprocess returns a job with all that has become of its work.
func (s *Reprocess) GetReprocess(ctx context.Context, r *adminv1.GetReprocessRequest) (*adminv1.Reprocess, error) {
	id, violations := jobIDFrom(r.GetId())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	tx, err := postgres.BeginTx(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin to read job %s: %w", id, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	j, err := jobdb.Get(ctx, tx, jobdb.Evaluate, id)
	if err != nil {
		return nil, err
	}
	return s.show(ctx, tx, j)
}

// ListReprocesses returns a page of jobs.
func (s *Reprocess) ListReprocesses(ctx context.Context, r *adminv1.ListReprocessesRequest) (*adminv1.ListReprocessesResponse, error) {
	before, most, violations := identifiedPageOf(r, r.GetState())
	switch jobdb.State(r.GetState()) {
	case "", jobdb.Running, jobdb.Paused, jobdb.Canceled, jobdb.Done, jobdb.Failed:
	default:
		violations = append(violations, rpc.Violation{
			Field: "state", Reason: "UNKNOWN", Description: "must be running, paused, canceled, done or failed",
		})
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	jobs, err := jobdb.List(ctx, s.db, jobdb.Evaluate, jobdb.State(r.GetState()), before, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListReprocessesResponse{}
	if len(jobs) > most {
		jobs = jobs[:most]
		response.NextPageToken = nextPage(r, jobs[most-1].ID.String(), r.GetState())
	}
	for _, j := range jobs {
		p, err := reprocess.Counted(j)
		if err != nil {
			return nil, err
		}
		shown, err := reprocessOf(j, p)
		if err != nil {
			return nil, err
		}
		response.Reprocesses = append(response.Reprocesses, shown)
	}
	return response, nil
}

// PauseReprocess stops a job.
func (s *Reprocess) PauseReprocess(ctx context.Context, r *adminv1.PauseReprocessRequest) (*adminv1.Reprocess, error) {
	return s.changeState(ctx, "PauseReprocess", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Pause(ctx, tx, jobdb.Evaluate, id, true)
	})
}

// ResumeReprocess lets a job go on.
func (s *Reprocess) ResumeReprocess(ctx context.Context, r *adminv1.ResumeReprocessRequest) (*adminv1.Reprocess, error) {
	return s.changeState(ctx, "ResumeReprocess", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Resume(ctx, tx, jobdb.Evaluate, id)
	})
}

// CancelReprocess ends a job.
func (s *Reprocess) CancelReprocess(ctx context.Context, r *adminv1.CancelReprocessRequest) (*adminv1.Reprocess, error) {
	return s.changeState(ctx, "CancelReprocess", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Cancel(ctx, tx, jobdb.Evaluate, id, true)
	})
}

func (s *Reprocess) changeState(
	ctx context.Context, method string, r changingJob, to func(context.Context, pgx.Tx, uuid.UUID) (jobdb.Job, bool, error),
) (*adminv1.Reprocess, error) {
	return changeState(ctx, s.db, s.jobs, r, jobState[*adminv1.Reprocess]{
		method: "ReprocessService." + method, kind: jobdb.Evaluate, collection: "reprocesses", to: to, show: s.show,
	})
}

// show reads what has become of a job's work, too.
func (s *Reprocess) show(ctx context.Context, tx pgx.Tx, j jobdb.Job) (*adminv1.Reprocess, error) {
	p, err := reprocess.Look(ctx, tx, j, time.Now())
	if err != nil {
		return nil, err
	}
	return reprocessOf(j, p)
}
