package failure

// Class says what follows from a failure.
type Class string

// The classes of the package comment. The schema knows the same five.
const (
	Transient Class = "transient"
	Throttled Class = "throttled"
	Unknown   Class = "unknown"
	Operator  Class = "operator"
	Permanent Class = "permanent"
)

// Rearmable reports whether a dead letter of this class goes back to pending when the same text is asked for again:
// what failed for reasons of the moment may succeed now, what failed for reasons of its own would fail again.
func (c Class) Rearmable() bool { return c == Transient }

// RefundsAttempt reports whether a failure of this class leaves the attempts of its item as they were.
func (c Class) RefundsAttempt() bool { return c == Throttled || c == Operator }

// CountsTowardsBreaker reports whether a failure of this class speaks against the health of its route.
func (c Class) CountsTowardsBreaker() bool { return c == Transient || c == Unknown }

// Reason is one word of a closed list, fit for a metric's label. Each belongs to one class.
type Reason string

// The reasons.
const (
	ConnectFailed     Reason = "connect_failed"     // no connection: DNS, dial, TLS
	NotSent           Reason = "not_sent"           // given up by us before the request left
	ServerError       Reason = "server_error"       // the provider failed
	Overloaded        Reason = "overloaded"         // the provider has no capacity
	MalformedResponse Reason = "malformed_response" // not what the protocol promises
	AttemptsSpent     Reason = "attempts_spent"     // the last of the attempts that transient failures have
	TooOld            Reason = "too_old"            // past the max age of its version
	ResultUnsaved     Reason = "result_unsaved"     // the response is saved, its result could not be written

	RateLimited Reason = "rate_limited"

	Timeout        Reason = "timeout"         // no response in time
	ConnectionLost Reason = "connection_lost" // the connection broke before the response was whole
	Canceled       Reason = "canceled"        // given up by us after the request left
	Conflict       Reason = "conflict"        // the provider says that another request is in the way
	UnknownOutcome Reason = "unknown_outcome" // the last of the unknown calls that the version allows
	LeaseExpired   Reason = "lease_expired"   // the worker was lost with the call under way

	Unauthorized   Reason = "unauthorized"
	Forbidden      Reason = "forbidden"
	ModelNotFound  Reason = "model_not_found"
	NotFound       Reason = "not_found"       // the provider has no such path
	QuotaExhausted Reason = "quota_exhausted" // nothing left to spend, or not allowed to
	BadRequest     Reason = "bad_request"     // the version asks for what the provider does not offer

	ContextTooLong    Reason = "context_too_long"
	ContentFilter     Reason = "content_filter"
	Refusal           Reason = "refusal"
	Truncated         Reason = "truncated"
	ContractViolation Reason = "contract_violation"
	EmptyAnswer       Reason = "empty_answer"
	BadContent        Reason = "bad_content" // the stored text has no canonical form
	Erased            Reason = "erased"      // the text was erased before it was answered
)

// Reasons are all reasons.
func Reasons() []Reason {
	return []Reason{
		ConnectFailed, NotSent, ServerError, Overloaded, MalformedResponse, AttemptsSpent, TooOld, ResultUnsaved,
		RateLimited,
		Timeout, ConnectionLost, Canceled, Conflict, UnknownOutcome, LeaseExpired,
		Unauthorized, Forbidden, ModelNotFound, NotFound, QuotaExhausted, BadRequest,
		ContextTooLong, ContentFilter, Refusal, Truncated, ContractViolation, EmptyAnswer, BadContent, Erased,
	}
}

// Class is the class of the reason, or empty for a word that is not on the list.
func (r Reason) Class() Class {
	switch r {
	case ConnectFailed, NotSent, ServerError, Overloaded, MalformedResponse, AttemptsSpent, TooOld, ResultUnsaved:
		return Transient
	case RateLimited:
		return Throttled
	case Timeout, ConnectionLost, Canceled, Conflict, UnknownOutcome, LeaseExpired:
		return Unknown
	case Unauthorized, Forbidden, ModelNotFound, NotFound, QuotaExhausted, BadRequest:
		return Operator
	case ContextTooLong, ContentFilter, Refusal, Truncated, ContractViolation, EmptyAnswer, BadContent, Erased:
		return Permanent
	}
	return ""
}
