package failure

import (
	"strconv"
	"time"
)

// Failure is a classified failure. It is an error whose text is made of closed words alone.
type Failure struct {
	Class      Class
	Reason     Reason
	HTTPStatus int           // 0 when no response came
	RetryAfter time.Duration // what the provider asked for, at most an hour; 0 when it asked for nothing
	Detail     string        // what the provider or the network said, cleaned by Excerpt
	cause      error
}

// New makes a failure that is found after a whole exchange, such as a refusal. The detail is cleaned; cause may be
// nil.
func New(reason Reason, detail string, cause error) *Failure {
	return &Failure{Class: reason.Class(), Reason: reason, Detail: Excerpt([]byte(detail)), cause: cause}
}

func (f *Failure) Error() string {
	s := string(f.Class) + " failure: " + string(f.Reason)
	if f.HTTPStatus != 0 {
		s += " (HTTP " + strconv.Itoa(f.HTTPStatus) + ")"
	}
	return s
}

// Unwrap returns the transport's error, or the cause given to [New]. Its text is not cleaned.
func (f *Failure) Unwrap() error { return f.cause }
