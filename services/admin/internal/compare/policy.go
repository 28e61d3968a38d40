package compare

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

// policy is what follows from an answer.
type policy struct {
	id              string
	urgentThreshold float64
	decide          func(evaluation.Answer) evaluation.Decision
}

// builtinThreshold is the one by which the built-in policy takes a ticket for urgent.
const builtinThreshold = 0.5

func activePolicy(context.Context, pgx.Tx) (policy, error) {
	id := evaluation.DefaultPolicy(evaluation.Answer{}).PolicyVersion
	return policy{id: id, urgentThreshold: builtinThreshold, decide: evaluation.DefaultPolicy}, nil
}
