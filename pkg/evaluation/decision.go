package evaluation

// Decision is what follows from an answer, by the policy that it names.
type Decision struct {
	PolicyVersion string
	Priority      string // "urgent", "high", "normal" or "low"
	Queue         string
}
