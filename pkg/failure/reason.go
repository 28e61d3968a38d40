package failure

const (
	ConnectFailed     Reason = "connect_failed"     // no connection: DNS, dial, TLS
	NotSent           Reason = "not_sent"           // given up by us before the request left
	ServerError       Reason = "server_error"       // the provider failed
	Overloaded        Reason = "overloaded"         // the provider has no capacity
	MalformedResponse Reason = "malformed_response" // not what the protocol promises
	AttemptsSpent     Reason = "attempts_spent"     // too many transient failures in a row
	TooOld            Reason = "too_old"            // past the version's max age

	RateLimited Reason = "rate_limited"

	Timeout        Reason = "timeout"         // no response in time
	ConnectionLost Reason = "connection_lost" // the connection broke before the response was whole
	Canceled       Reason = "canceled"        // given up by us after the request left
	Conflict       Reason = "conflict"        // 409
	UnknownOutcome Reason = "unknown_outcome" // too many calls with an unknown outcome

	Unauthorized   Reason = "unauthorized"
	Forbidden      Reason = "forbidden"
	ModelNotFound  Reason = "model_not_found"
	NotFound       Reason = "not_found" // no such path at the provider
	QuotaExhausted Reason = "quota_exhausted"
	BadRequest     Reason = "bad_request" // the version asks for what the provider does not offer

	ContextTooLong    Reason = "context_too_long"
	ContentFilter     Reason = "content_filter"
	Refusal           Reason = "refusal"
	Truncated         Reason = "truncated"
	ContractViolation Reason = "contract_violation"
	EmptyAnswer       Reason = "empty_answer"
)

// Class is the one class of this reason; "" for a word that is not on the list.
func (r Reason) Class() Class { return "" }

// New makes a failure of the reason's class.
func New(reason Reason, detail string, cause error) *Failure {
	return &Failure{Class: reason.Class(), Reason: reason, Detail: detail, cause: cause}
}

// Rearmable reports whether a dead letter of this class goes back to pending when the same text is asked for again.
func (c Class) Rearmable() bool { return c == Transient }

// RefundsAttempt reports whether a failure of this class leaves the item's attempts as they were.
func (c Class) RefundsAttempt() bool { return c == Throttled || c == Operator }

// CountsTowardsBreaker reports whether a failure of this class speaks against the health of its route.
func (c Class) CountsTowardsBreaker() bool { return c == Transient || c == Unknown }
