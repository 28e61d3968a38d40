package evaluation

// AnswerSchema is the version of the answer's contract that this package reads.
const AnswerSchema = 1

// Answer is what the model said of a ticket.
type Answer struct {
	IsUrgent     float64 // how likely the ticket is urgent, in [0, 1]
	UrgencyScore float64 // how urgent it is, in [0, 1]
	Department   string  // one of the version's departments, in the version's spelling
}

// ContractError says how a response broke the contract.
type ContractError struct{ Reason, Detail string }

func (e *ContractError) Error() string { return e.Reason + ": " + e.Detail }

// ParseAnswer reads a response.
func ParseAnswer(raw string, departments []Department) (Answer, error) { return Answer{}, nil }

// AnswerJSONSchema is the answer's contract as a strict JSON schema.
func AnswerJSONSchema(departments []Department) map[string]any { return nil }
