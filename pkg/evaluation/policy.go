package evaluation

// Decision is what follows from an answer.
type Decision struct {
	PolicyVersion string
	Priority      string // "urgent", "high", "normal" or "low"
	Queue         string
}

// DefaultPolicy is the policy in force when no other is.
func DefaultPolicy(a Answer) Decision { return Decision{} }
