package api

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// Policies is the PolicyService.
type Policies struct {
	adminv1.UnimplementedPolicyServiceServer
	db   *pgxpool.Pool
	jobs Waker
}

// NewPolicies makes the service.
func NewPolicies(db *pgxpool.Pool, jobs Waker) *Policies { return &Policies{db: db, jobs: jobs} }

// RegisterPolicy stores a policy. The answer to a policy that was stored before is marked as replayed.
func (s *Policies) RegisterPolicy(ctx context.Context, r *adminv1.RegisterPolicyRequest) (*adminv1.Policy, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	p, violations := policyFrom("policy", r.GetPolicy())
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	known := false
	shown, err := change(ctx, s.db, "PolicyService.RegisterPolicy", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Policy, effect, error) {
		created, err := policydb.Register(ctx, tx, p, by)
		if err != nil {
			return nil, effect{}, err
		}
		stored, err := policydb.Get(ctx, tx, p.ID)
		if err != nil {
			return nil, effect{}, err
		}
		known = !created
		did := effect{target: "policies/" + p.ID}
		if created {
			did.after = map[string]string{"digest": hex.EncodeToString(stored.Digest[:])}
		}
		return policyOf(stored), did, nil
	})
	if err != nil {
		return nil, err
	}
	if known {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark policy %s as replayed: %w", p.ID, err)
		}
	}
	return shown, nil
}

// GetPolicy returns one policy.
func (s *Policies) GetPolicy(ctx context.Context, r *adminv1.GetPolicyRequest) (*adminv1.Policy, error) {
	if violations := checkID("id", r.GetId()); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	stored, err := policydb.Get(ctx, s.db, r.GetId())
	if err != nil {
		return nil, err
	}
	return policyOf(stored), nil
}

// ListPolicies returns policies, the newest first.
func (s *Policies) ListPolicies(ctx context.Context, r *adminv1.ListPoliciesRequest) (*adminv1.ListPoliciesResponse, error) {
	after, most, violations := pageOf(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	policies, err := policydb.List(ctx, s.db, after, most+1)
	if err != nil {
		return nil, err
	}
	active, err := policydb.GetActive(ctx, s.db)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListPoliciesResponse{ActiveId: active.ID}
	if len(policies) > most {
		policies = policies[:most]
		response.NextPageToken = nextPage(r, policies[most-1].ID)
	}
	for _, stored := range policies {
		response.Policies = append(response.Policies, policyOf(stored))
	}
	return response, nil
}

// ActivatePolicy makes a policy the active one, if the one that the caller expects is active until then.
func (s *Policies) ActivatePolicy(ctx context.Context, r *adminv1.ActivatePolicyRequest) (*adminv1.ActivatePolicyResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := checkID("id", r.GetId())
	violations = append(violations, checkExpected(r.GetExpectedActiveId())...)
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "PolicyService.ActivatePolicy", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.ActivatePolicyResponse, effect, error) {
		before, err := policydb.Activate(ctx, tx, r.GetId(), r.GetExpectedActiveId(), by)
		if err != nil {
			return nil, effect{}, err
		}
		stored, err := policydb.Get(ctx, tx, r.GetId())
		if err != nil {
			return nil, effect{}, err
		}
		type active struct {
			PolicyID string `json:"policy_id"`
		}
		response := &adminv1.ActivatePolicyResponse{Policy: policyOf(stored)}
		if before != stored.ID {
			response.ReplacedId = before
		}
		return response, effect{target: "activePolicy", before: active{before}, after: active{stored.ID}}, nil
	})
}

// ListPolicyActivations returns the history of the active policy, the newest activation first.
func (s *Policies) ListPolicyActivations(
	ctx context.Context, r *adminv1.ListPolicyActivationsRequest,
) (*adminv1.ListPolicyActivationsResponse, error) {
	below, most, violations := numberedPageOf(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	activations, err := policydb.Activations(ctx, s.db, below, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListPolicyActivationsResponse{}
	if len(activations) > most {
		activations = activations[:most]
		response.NextPageToken = nextPage(r, strconv.FormatInt(activations[most-1].ID, 10))
	}
	for _, a := range activations {
		response.Activations = append(response.Activations, &adminv1.PolicyActivation{
			PolicyId: a.PolicyID, ReplacedId: a.Replaced, Principal: a.By, Time: timestamppb.New(a.At),
		})
	}
	return response, nil
}

// policyFrom is a policy, or all that is wrong with it, by field below path. Fields that only the server sets are ignored.
func policyFrom(path string, m *adminv1.Policy) (policy.Policy, []rpc.Violation) {
	if m == nil {
		return policy.Policy{}, []rpc.Violation{{Field: path, Reason: "REQUIRED", Description: "must be given"}}
	}
	p := policy.Policy{ID: m.GetId(), Description: m.GetDescription(), UrgentThreshold: m.GetUrgentThreshold()}
	for _, rule := range m.GetRules() {
		p.Rules = append(p.Rules, policy.Rule{Name: rule.GetName(), When: rule.GetWhen(), Priority: rule.GetPriority(), Queue: rule.GetQueue()})
	}
	_, err := policy.Compile(p)
	return p, violationsOf(path, err)
}

func policyOf(p policydb.Stored) *adminv1.Policy {
	shown := &adminv1.Policy{
		Id: p.ID, Description: p.Description, UrgentThreshold: p.UrgentThreshold,
		Digest: hex.EncodeToString(p.Digest[:]), Active: p.Active, CreateTime: timestamppb.New(p.CreatedAt), CreatedBy: p.CreatedBy,
	}
	for _, rule := range p.Rules {
		shown.Rules = append(shown.Rules, &adminv1.PolicyRule{Name: rule.Name, When: rule.When, Priority: rule.Priority, Queue: rule.Queue})
	}
	return shown
}
