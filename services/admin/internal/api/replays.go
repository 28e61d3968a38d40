package api

import (
	"context"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/replay"
)

// A replay slower than one in a day, or faster than any database, is a slip.
const (
	minRate = 1.0 / 86400
	maxRate = 1e6
)

// ReplayDeadLetters begins a replay.
func (s *DeadLetters) ReplayDeadLetters(ctx context.Context, r *adminv1.ReplayDeadLettersRequest) (*adminv1.Replay, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	request, violations := replayFrom(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(append(violations, checkChange(ctx, r)...)...)
	}
	request.By = by
	shown, err := change(ctx, s.db, "DeadLetterService.ReplayDeadLetters", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Replay, effect, error) {
		j, err := replay.Start(ctx, tx, request)
		if err != nil {
			return nil, effect{}, err
		}
		shown, err := replayOf(j)
		if err != nil {
			return nil, effect{}, err
		}
		did := effect{target: "replays/" + j.ID.String(), after: map[string]any{
			"mode": request.Mode, "selected": shown.GetSelected(), "calls": shown.GetCalls(), "estimated_cost_usd": shown.GetEstimatedCostUsd(),
			"selection": selectionRecord(request.Keys, r.GetFilter()),
		}}
		if r.GetDryRun() {
			shown.Id = ""
		}
		return shown, did, nil
	})
	if err != nil {
		return nil, err
	}
	s.jobs.Wake()
	return shown, nil
}

func replayFrom(r *adminv1.ReplayDeadLettersRequest) (replay.Request, []rpc.Violation) {
	keys, filter, violations := selectionFrom(r.GetKeys(), r.GetFilter())
	if keys != nil {
		filter.Discarded = true // what is named is wanted
	}
	request := replay.Request{Keys: keys, Filter: filter, Limit: r.GetLimit(), Canary: r.GetCanary(), RatePerSecond: r.GetRatePerSecond()}
	refuse := func(field, reason, description string) {
		violations = append(violations, rpc.Violation{Field: field, Reason: reason, Description: description})
	}
	switch r.GetMode() {
	case adminv1.ReplayMode_REPLAY_MODE_REVALIDATE:
		request.Mode = replay.Revalidate
	case adminv1.ReplayMode_REPLAY_MODE_RECALL:
		request.Mode = replay.Recall
	default:
		refuse("mode", "REQUIRED", "must be REPLAY_MODE_REVALIDATE, which costs nothing, or REPLAY_MODE_RECALL, which pays")
	}
	if r.GetLimit() < 0 {
		refuse("limit", "OUT_OF_RANGE", "must not be negative")
	}
	if r.GetCanary() < 0 {
		refuse("canary", "OUT_OF_RANGE", "must not be negative")
	}
	if rate := r.GetRatePerSecond(); rate != 0 && !(rate >= minRate && rate <= maxRate) || math.IsNaN(rate) {
		refuse("rate_per_second", "OUT_OF_RANGE", "must be 0, or from 1 in a day to a million in a second")
	}
	return request, violations
}

// GetReplay returns a replay with what became of its work.
func (s *DeadLetters) GetReplay(ctx context.Context, r *adminv1.GetReplayRequest) (*adminv1.Replay, error) {
	id, violations := jobIDFrom(r.GetId())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var shown *adminv1.Replay
	err := postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) error {
		j, err := jobdb.Get(ctx, tx, jobdb.Replay, id)
		if err != nil {
			return err
		}
		if shown, err = replayOf(j); err != nil {
			return err
		}
		work, err := outbox.WorkOf(ctx, tx, id)
		if err != nil {
			return err
		}
		calls, err := ledger.CallsOf(ctx, tx, id)
		if err != nil {
			return err
		}
		shown.Waiting, shown.DeadAgain, shown.CostUsd = int64(work.Waiting+work.Processing), int64(work.Dead), calls.CostUSD.String()
		return nil
	})
	return shown, err
}

// ListReplays returns a page of replays.
func (s *DeadLetters) ListReplays(ctx context.Context, r *adminv1.ListReplaysRequest) (*adminv1.ListReplaysResponse, error) {
	before, most, violations := identifiedPageOf(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	jobs, err := jobdb.List(ctx, s.db, jobdb.Replay, "", before, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListReplaysResponse{}
	if len(jobs) > most {
		jobs = jobs[:most]
		response.NextPageToken = nextPage(r, jobs[most-1].ID.String())
	}
	for _, j := range jobs {
		shown, err := replayOf(j)
		if err != nil {
			return nil, err
		}
		response.Replays = append(response.Replays, shown)
	}
	return response, nil
}

// PauseReplay stops a replay.
func (s *DeadLetters) PauseReplay(ctx context.Context, r *adminv1.PauseReplayRequest) (*adminv1.Replay, error) {
	return s.changeReplay(ctx, "PauseReplay", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Pause(ctx, tx, jobdb.Replay, id, false)
	})
}

// ResumeReplay lets a replay go on.
func (s *DeadLetters) ResumeReplay(ctx context.Context, r *adminv1.ResumeReplayRequest) (*adminv1.Replay, error) {
	return s.changeReplay(ctx, "ResumeReplay", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Resume(ctx, tx, jobdb.Replay, id)
	})
}

// CancelReplay ends a replay.
func (s *DeadLetters) CancelReplay(ctx context.Context, r *adminv1.CancelReplayRequest) (*adminv1.Replay, error) {
	return s.changeReplay(ctx, "CancelReplay", r, replay.Cancel)
}

func (s *DeadLetters) changeReplay(
	ctx context.Context, method string, r changingJob, to func(context.Context, pgx.Tx, uuid.UUID) (jobdb.Job, bool, error),
) (*adminv1.Replay, error) {
	return changeState(ctx, s.db, s.jobs, r, jobState[*adminv1.Replay]{
		method: "DeadLetterService." + method, kind: jobdb.Replay, collection: "replays", to: to,
		show: func(_ context.Context, _ pgx.Tx, j jobdb.Job) (*adminv1.Replay, error) { return replayOf(j) },
	})
}

func replayOf(j jobdb.Job) (*adminv1.Replay, error) {
	st, err := replay.StandingOf(j)
	if err != nil {
		return nil, fmt.Errorf("read replay %s: %w", j.ID, err)
	}
	shown := &adminv1.Replay{
		Id: j.ID.String(), State: string(j.State), StateReason: j.Reason, Selected: st.Selected, Replayed: st.Replayed, Skipped: st.Skipped,
		Failed: st.Failed, Remaining: st.Remaining, SkippedFor: st.SkippedFor, WithResponse: st.WithResponse, Calls: st.Calls,
		CreatedBy: j.CreatedBy, CreateTime: timestamppb.New(j.CreatedAt), FinishTime: timestampOf(j.FinishedAt),
		Limit: st.Limit, Canary: st.Canary, RatePerSecond: st.RatePerSecond, Mode: adminv1.ReplayMode_REPLAY_MODE_REVALIDATE,
	}
	if st.Mode == replay.Recall {
		shown.Mode = adminv1.ReplayMode_REPLAY_MODE_RECALL
	}
	if st.EstimateUSD != nil {
		shown.EstimatedCostUsd = st.EstimateUSD.String()
	}
	return shown, nil
}
