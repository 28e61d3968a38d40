package evaluation

import "time"

// Department is one of the places a ticket can be sent to, as the model sees it.
type Department struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// UnknownPolicy says what becomes of an evaluation whose call may have been paid for without an answer.
type UnknownPolicy string

const (
	Resend UnknownPolicy = "resend" // send again, up to MaxUnknownCalls times
	Hold   UnknownPolicy = "hold"   // keep as a dead letter until an operator decides
)

// The values that [Version.WithDefaults] fills in. DefaultMaxUnknownCalls it cannot: there, zero means zero.
const (
	DefaultMaxAttempts     = 8
	DefaultUnknownPolicy   = Resend
	DefaultMaxUnknownCalls = 2
	DefaultMaxAge          = 24 * time.Hour
)

// Version is everything that decides an answer, what the answer costs, and how failures on the way are treated.
// It is immutable once registered. Only the fields that can change an answer are part of its [Version.Digest].
type Version struct {
	ID            string
	PromptVersion string
	Provider      string
	Model         string
	Effort        string // the provider's word for how hard to think; may be empty
	Prompt        string
	Departments   []Department

	MaxOutputTokens int
	AnswerSchema    int // the version of the answer's contract; see [AnswerSchema]

	Route  string
	Prices Prices

	MaxAttempts     int
	UnknownPolicy   UnknownPolicy
	MaxUnknownCalls int // calls with an unknown outcome that may be sent again; 0 is none
	MaxAge          time.Duration
}

// WithDefaults returns the version with its zero fields filled in, but for MaxUnknownCalls.
func (v Version) WithDefaults() Version {
	if v.AnswerSchema == 0 {
		v.AnswerSchema = AnswerSchema
	}
	if v.MaxAttempts == 0 {
		v.MaxAttempts = DefaultMaxAttempts
	}
	if v.UnknownPolicy == "" {
		v.UnknownPolicy = DefaultUnknownPolicy
	}
	if v.MaxAge == 0 {
		v.MaxAge = DefaultMaxAge
	}
	return v
}

// Validate returns every problem of the version at once, each as a [*FieldError], joined.
func (v Version) Validate() error { return nil }

// FieldError says what is wrong with one field.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + " " + e.Problem }

// Digest identifies what the version asks.
func (v Version) Digest() [32]byte { return [32]byte{} }
