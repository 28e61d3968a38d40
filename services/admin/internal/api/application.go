package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/policydb"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/redecide"
)

// maxChanges bounds the changes that a preview lists.
const maxChanges = 100

// ApplyPolicy begins a job that decides stored answers by the active policy, or foretells what it would change.
func (s *Policies) ApplyPolicy(ctx context.Context, r *adminv1.ApplyPolicyRequest) (*adminv1.PolicyApplication, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := append(checkExpected(r.GetExpectedActiveId()), checkChange(ctx, r)...)
	if asked := r.GetPolicyId(); asked != "" {
		violations = append(violations, checkID("policy_id", asked)...)
		if !r.GetDryRun() {
			violations = append(violations, rpc.Violation{
				Field: "policy_id", Reason: "NOT_SUPPORTED", Description: "may be asked about with dry_run; activate it to apply it",
			})
		}
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	begun, err := change(ctx, s.db, "PolicyService.ApplyPolicy", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.PolicyApplication, effect, error) {
		active, err := policydb.GetActive(ctx, tx)
		if err != nil {
			return nil, effect{}, err
		}
		if expected := r.GetExpectedActiveId(); expected != "" && expected != active.ID {
			return nil, effect{}, &policydb.ActiveChangedError{Expected: expected, Active: active.ID}
		}
		spec := redecide.Spec{PolicyID: cmp.Or(r.GetPolicyId(), active.ID)}
		j, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Policy, Spec: spec, CreatedBy: by})
		if err != nil {
			return nil, effect{}, err
		}
		shown, err := applicationOf(j)
		if err != nil {
			return nil, effect{}, err
		}
		if r.GetDryRun() {
			foretold, err := redecide.Preview(ctx, tx, spec.PolicyID)
			if err != nil {
				return nil, effect{}, err
			}
			shown.Id, shown.Preview = "", previewOf(foretold)
		}
		return shown, effect{target: "policyApplications/" + j.ID.String(), after: spec}, nil
	})
	if err != nil {
		return nil, err
	}
	s.jobs.Wake()
	return begun, nil
}

// GetPolicyApplication returns a job.
func (s *Policies) GetPolicyApplication(ctx context.Context, r *adminv1.GetPolicyApplicationRequest) (*adminv1.PolicyApplication, error) {
	id, violations := jobIDFrom(r.GetId())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	j, err := jobdb.Get(ctx, s.db, jobdb.Policy, id)
	if err != nil {
		return nil, err
	}
	return applicationOf(j)
}

// ListPolicyApplications returns jobs, the newest first.
func (s *Policies) ListPolicyApplications(
	ctx context.Context, r *adminv1.ListPolicyApplicationsRequest,
) (*adminv1.ListPolicyApplicationsResponse, error) {
	before, most, violations := identifiedPageOf(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	jobs, err := jobdb.List(ctx, s.db, jobdb.Policy, "", before, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListPolicyApplicationsResponse{}
	if len(jobs) > most {
		jobs = jobs[:most]
		response.NextPageToken = nextPage(r, jobs[most-1].ID.String())
	}
	for _, j := range jobs {
		shown, err := applicationOf(j)
		if err != nil {
			return nil, err
		}
		response.Applications = append(response.Applications, shown)
	}
	return response, nil
}

// PausePolicyApplication stops a job.
func (s *Policies) PausePolicyApplication(ctx context.Context, r *adminv1.PausePolicyApplicationRequest) (*adminv1.PolicyApplication, error) {
	return s.changeApplication(ctx, "PausePolicyApplication", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Pause(ctx, tx, jobdb.Policy, id, false)
	})
}

// ResumePolicyApplication lets a job go on.
func (s *Policies) ResumePolicyApplication(ctx context.Context, r *adminv1.ResumePolicyApplicationRequest) (*adminv1.PolicyApplication, error) {
	return s.changeApplication(ctx, "ResumePolicyApplication", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Resume(ctx, tx, jobdb.Policy, id)
	})
}

// CancelPolicyApplication ends a job.
func (s *Policies) CancelPolicyApplication(ctx context.Context, r *adminv1.CancelPolicyApplicationRequest) (*adminv1.PolicyApplication, error) {
	return s.changeApplication(ctx, "CancelPolicyApplication", r, func(ctx context.Context, tx pgx.Tx, id uuid.UUID) (jobdb.Job, bool, error) {
		return jobdb.Cancel(ctx, tx, jobdb.Policy, id, false)
	})
}

func (s *Policies) changeApplication(
	ctx context.Context, method string, r changingJob, to func(context.Context, pgx.Tx, uuid.UUID) (jobdb.Job, bool, error),
) (*adminv1.PolicyApplication, error) {
	return changeState(ctx, s.db, s.jobs, r, jobState[*adminv1.PolicyApplication]{
		method: "PolicyService." + method, kind: jobdb.Policy, collection: "policyApplications", to: to,
		show: func(_ context.Context, _ pgx.Tx, j jobdb.Job) (*adminv1.PolicyApplication, error) {
			return applicationOf(j)
		},
	})
}

func applicationOf(j jobdb.Job) (*adminv1.PolicyApplication, error) {
	var spec redecide.Spec
	if err := json.Unmarshal(j.Spec, &spec); err != nil {
		return nil, fmt.Errorf("decode the spec of job %s: %w", j.ID, err)
	}
	counts := redecide.CountsOf(j)
	shown := &adminv1.PolicyApplication{
		Id: j.ID.String(), PolicyId: spec.PolicyID, State: string(j.State), StateReason: j.Reason, Seen: counts.Seen, Changed: counts.Changed,
		CreatedBy: j.CreatedBy, CreateTime: timestamppb.New(j.CreatedAt), FinishTime: timestampOf(j.FinishedAt),
	}
	for _, c := range counts.Priorities {
		shown.PriorityChanges = append(shown.PriorityChanges, &adminv1.PriorityChange{OldPriority: c.Old, NewPriority: c.New, Answers: c.Answers})
	}
	return shown, nil
}

func previewOf(f redecide.Foretold) *adminv1.PolicyPreview {
	shown := &adminv1.PolicyPreview{Answers: f.Answers, Sampled: f.Sampled}
	changes := slices.SortedFunc(maps.Keys(f.Changes), func(a, b redecide.Change) int {
		return cmp.Or(
			cmp.Compare(f.Changes[b], f.Changes[a]), cmp.Compare(a.OldPriority, b.OldPriority), cmp.Compare(a.OldQueue, b.OldQueue),
			cmp.Compare(a.NewPriority, b.NewPriority), cmp.Compare(a.NewQueue, b.NewQueue),
		)
	})
	for i, c := range changes {
		n := f.Changes[c]
		shown.Changed += n
		if i >= maxChanges {
			shown.OtherChanges += n
			continue
		}
		shown.Changes = append(shown.Changes, &adminv1.PolicyChange{
			OldPriority: c.OldPriority, OldQueue: c.OldQueue, NewPriority: c.NewPriority, NewQueue: c.NewQueue, Answers: n,
		})
	}
	return shown
}
