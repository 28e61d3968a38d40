package compare

import (
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

func activePolicy() policy {
	id := evaluation.DefaultPolicy(evaluation.Answer{}).PolicyVersion
	return policy{id: id, urgentThreshold: builtinThreshold, decide: evaluation.DefaultPolicy}
}
