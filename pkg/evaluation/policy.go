package evaluation

// Decision is what follows from an answer.
type Decision struct {
	PolicyVersion string
	Priority      string // "urgent", "high", "normal" or "low"
	Queue         string
}

// DefaultPolicy sends a ticket to the queue of its department, with a priority that never falls when either of the
// answer's numbers rises.
func DefaultPolicy(a Answer) Decision {
	urgent := a.IsUrgent >= 0.5
	priority := "low"
	switch {
	case urgent && a.UrgencyScore >= 0.5:
		priority = "urgent"
	case urgent || a.UrgencyScore >= 0.75:
		priority = "high"
	case a.UrgencyScore >= 0.25:
		priority = "normal"
	}
	return Decision{PolicyVersion: "builtin-1", Priority: priority, Queue: a.Department}
}
