package compare

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/evaluation"
	rules "github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb"
)

// policy is what follows from an answer.
type policy struct {
	id              string
	urgentThreshold float64
	decide          func(evaluation.Answer) evaluation.Decision
}

func activePolicy(ctx context.Context, tx pgx.Tx) (policy, error) {
	active, err := policydb.GetActive(ctx, tx)
	if err != nil {
		return policy{}, err
	}
	compiled, err := rules.Compile(active.Policy)
	if err != nil {
		return policy{}, err
	}
	return policy{id: active.ID, urgentThreshold: active.UrgentThreshold, decide: compiled.Decide}, nil
}
