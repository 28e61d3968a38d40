// Package failure sorts what can go wrong with a model call into five classes.
package failure

import (
	"net/http"
	"time"
)

// Class says what follows from a failure.
type Class string

const (
	Transient Class = "transient"
	Throttled Class = "throttled"
	Unknown   Class = "unknown"
	Operator  Class = "operator"
	Permanent Class = "permanent"
)

// Reason is one word of a closed list; each belongs to one class.
type Reason string

// Failure is a classified failure.
type Failure struct {
	Class      Class
	Reason     Reason
	HTTPStatus int
	RetryAfter time.Duration
	Detail     string
	cause      error
}

func (f *Failure) Error() string { return string(f.Class) + ": " + string(f.Reason) }
func (f *Failure) Unwrap() error { return f.cause }

// Exchange is what became of one HTTP request to a provider.
type Exchange struct {
	Err    error
	Sent   bool // the whole request was written, or may have been
	Status int
	Header http.Header
	Body   []byte
	Now    time.Time // for HTTP dates
}

// Classify returns nil when the exchange is a usable 2xx.
func Classify(x Exchange) *Failure { return nil }
