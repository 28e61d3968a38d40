package evaluation

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Department is one of the places a ticket can be sent to, as the model sees it.
type Department struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// UnknownPolicy says what becomes of an evaluation whose call may have been paid for without an answer.
type UnknownPolicy string

// The policies of [Version.UnknownPolicy].
const (
	Resend UnknownPolicy = "resend" // send again, within the bound of MaxUnknownCalls
	Hold   UnknownPolicy = "hold"   // keep as a dead letter until an operator decides
	// Recover asks the provider for the lost response first, and then does as Resend. The provider keeps what it was
	// sent, and what it answered, to be able to tell.
	Recover UnknownPolicy = "recover"
)

// The values of fields that a version leaves out. [Version.WithDefaults] cannot fill in DefaultMaxUnknownCalls,
// since a version may well want none; whoever can tell "absent" from zero does.
const (
	DefaultMaxAttempts     = 8
	DefaultUnknownPolicy   = Resend
	DefaultMaxUnknownCalls = 2
	DefaultMaxAge          = 24 * time.Hour
)

// Version is everything that decides an answer, what the answer costs, and how failures on the way are treated.
// It is immutable once registered. The fields that can change an answer make its [Version.Digest].
type Version struct {
	ID            string
	PromptVersion string // the author's name for the prompt
	Provider      string // the wire protocol that its calls speak
	Model         string
	Effort        string // reasoning effort as the provider names it; empty sends none
	Prompt        string
	Departments   []Department

	MaxOutputTokens int
	AnswerSchema    int // which contract the answer is held to; see [AnswerSchema]

	Route  string // the provider account that its calls go through
	Prices Prices

	MaxAttempts     int // transient failures before a dead letter
	UnknownPolicy   UnknownPolicy
	MaxUnknownCalls int           // calls of unknown outcome before a dead letter
	MaxAge          time.Duration // age at which failing work becomes a dead letter
}

// WithDefaults returns the version with its zero fields filled in, where a default exists and zero means absent.
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

// Digest identifies what the version asks, in the format of the package comment. Versions are digested with their
// defaults filled in.
func (v Version) Digest() [32]byte {
	b := []byte("evalonce/version/1")
	number := func(n int) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	text := func(s string) { number(len(s)); b = append(b, s...) }

	text(v.Provider)
	text(v.Model)
	text(v.Effort)
	text(v.Prompt)
	number(len(v.Departments))
	for _, d := range v.Departments {
		text(d.Name)
		text(d.Description)
	}
	number(v.MaxOutputTokens)
	number(v.AnswerSchema)
	return sha256.Sum256(b)
}
