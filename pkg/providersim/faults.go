package providersim

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Rule is one scripted fault. Rules are tried in the order they were added, and the first whose Match holds
// decides the request's fate; without one the request is answered normally.
type Rule struct {
	Name   string // shown in the ledger; made from the action and the rule's position when empty
	Match  Match
	Action Action
	Times  int // the rule expires after as many requests; 0: never
}

// Match holds when every field that is set holds. The zero Match holds for every request.
type Match struct {
	Nth         int           // the n-th request of all, counted from 1 as they arrive
	From, To    int           // a window of the same count, both ends included; either may stay 0
	Attempt     int           // the n-th request for its content
	Text        string        // the ticket's text contains it
	Content     string        // the content's fingerprint, 64 hex digits
	Model       string        // as requested
	Probability float64       // in (0,1]; 0 stands for 1. Drawn from seed, rule, content and attempt, so it does not depend on arrival
	After       time.Duration // since the server was made
	Before      time.Duration // since the server was made; 0: no end
}

// Action is what happens to a request. Its parts apply in the order: Hang, Latency, then Close, Error or
// Status, or else the answer, which Answer, Content, FinishReason and ServedModel shape.
type Action struct {
	Latency time.Duration // added to the server's own

	Hang  Hang
	Close Close

	// CutAfterBytes announces the whole response, sends that many bytes of its body and closes the connection.
	// The answer is billed. With HangMidBody the rest of the body waits instead.
	CutAfterBytes int

	Error      Error             // a named error of the provider
	Status     int               // a raw error: this status with Body as it is
	Body       string            // replaces the body of Error too
	Headers    map[string]string // of an error response; an empty value removes a header
	RetryAfter time.Duration     // of an error response, in whole seconds, rounded up

	Answer       Answer
	Content      string // the message's content, instead of the classifier's
	FinishReason string // or the reason why a response is incomplete, or a message's stop_reason
	ServedModel  string
}

// Hang stops a request until Release, until its client goes away, or until the server closes.
type Hang string

// The places in a request's life where it can hang.
const (
	HangBeforeAnswer Hang = "before_answer" // not billed unless it is released
	HangAfterAnswer  Hang = "after_answer"  // billed
	HangMidBody      Hang = "mid_body"      // billed; the headers and CutAfterBytes bytes of the body are sent
)

// Close ends the connection without a byte of response.
type Close string

// The moments at which a connection can be closed.
const (
	// CloseOnAccept closes before the request's body is read. Such a rule is tried before all others, and knows
	// neither text, content, attempt nor model.
	CloseOnAccept     Close = "on_accept"
	CloseAfterRequest Close = "after_request" // not billed
	CloseAfterAnswer  Close = "after_answer"  // billed
)

// Error names an error response of the provider. What it looks like is the protocol's business.
type Error string

// The errors by name. Numbers in names are statuses; rate_limit and insufficient_quota are 429, slow_down is 503 at
// OpenAI and 429 at Anthropic, spend_limit and context_length 400, invalid_api_key 401, forbidden 403,
// model_not_found 404.
const (
	RateLimit          Error = "rate_limit"
	SlowDown           Error = "slow_down"
	InsufficientQuota  Error = "insufficient_quota"
	SpendLimit         Error = "spend_limit"
	InvalidAPIKey      Error = "invalid_api_key"
	Forbidden          Error = "forbidden"
	ModelNotFound      Error = "model_not_found"
	Overloaded503      Error = "overloaded_503"
	ServerError500     Error = "server_error_500"
	BadGateway502      Error = "bad_gateway_502"
	GatewayTimeout504  Error = "gateway_timeout_504"
	Overloaded529      Error = "overloaded_529"
	ContextLength      Error = "context_length"
	ContentFilter400   Error = "content_filter_400"
	BadSchema400       Error = "bad_schema_400"
	Conflict409        Error = "conflict_409"
	RequestTimeout408  Error = "request_timeout_408"
	RequestTooLarge413 Error = "request_too_large_413"
)

// Answer names an odd response with status 200, in the words of chat completions; the other protocols have their own
// for the same. Each is billed.
type Answer string

// The odd answers by name.
const (
	AnswerBadJSON       Answer = "bad_json"       // the body of the response is no JSON
	AnswerEmptyBody     Answer = "empty_body"     // no body at all
	AnswerErrorBody     Answer = "error_body"     // an error object under status 200
	AnswerEmptyChoices  Answer = "empty_choices"  // nothing was chosen: no choices, output or content
	AnswerNullContent   Answer = "null_content"   // content null without a refusal
	AnswerEmptyContent  Answer = "empty_content"  // content ""
	AnswerRefusal       Answer = "refusal"        // content null with a refusal
	AnswerTruncated     Answer = "truncated"      // the content's JSON is cut; finish_reason length
	AnswerLength        Answer = "length"         // the content is whole; finish_reason length
	AnswerContentFilter Answer = "content_filter" // finish_reason content_filter
	AnswerNoUsage       Answer = "no_usage"       // a good answer whose usage is null
)

// wireRule is Rule in JSON: snake_case, with durations as strings ("1.5s").
type wireRule struct {
	Name   string     `json:"name,omitempty"`
	Match  wireMatch  `json:"match,omitzero"`
	Action wireAction `json:"action"`
	Times  int        `json:"times,omitempty"`
}

type wireMatch struct {
	Nth         int          `json:"nth,omitempty"`
	From        int          `json:"from,omitempty"`
	To          int          `json:"to,omitempty"`
	Attempt     int          `json:"attempt,omitempty"`
	Text        string       `json:"text,omitempty"`
	Content     string       `json:"content,omitempty"`
	Model       string       `json:"model,omitempty"`
	Probability float64      `json:"probability,omitempty"`
	After       wireDuration `json:"after,omitzero"`
	Before      wireDuration `json:"before,omitzero"`
}

type wireAction struct {
	Latency       wireDuration      `json:"latency,omitzero"`
	Hang          Hang              `json:"hang,omitempty"`
	Close         Close             `json:"close,omitempty"`
	CutAfterBytes int               `json:"cut_after_bytes,omitempty"`
	Error         Error             `json:"error,omitempty"`
	Status        int               `json:"status,omitempty"`
	Body          string            `json:"body,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	RetryAfter    wireDuration      `json:"retry_after,omitzero"`
	Answer        Answer            `json:"answer,omitempty"`
	Content       string            `json:"content,omitempty"`
	FinishReason  string            `json:"finish_reason,omitempty"`
	ServedModel   string            `json:"served_model,omitempty"`
}

type wireDuration time.Duration

func (d wireDuration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *wireDuration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("parse duration %q: %w", text, err)
	}
	*d = wireDuration(parsed)
	return nil
}

// MarshalJSON writes the rule as the control interface reads it.
func (r Rule) MarshalJSON() ([]byte, error) {
	m := r.Match
	return json.Marshal(wireRule{
		Name: r.Name,
		Match: wireMatch{
			Nth: m.Nth, From: m.From, To: m.To, Attempt: m.Attempt, Text: m.Text, Content: m.Content, Model: m.Model,
			Probability: m.Probability, After: wireDuration(m.After), Before: wireDuration(m.Before),
		},
		Action: r.Action.wire(),
		Times:  r.Times,
	})
}

// UnmarshalJSON reads a rule; an unknown field is an error, so that a misspelt fault cannot pass for a provider
// without faults.
func (r *Rule) UnmarshalJSON(data []byte) error {
	var w wireRule
	if err := decodeStrictly(data, &w); err != nil {
		return err
	}
	m := w.Match
	*r = Rule{
		Name: w.Name,
		Match: Match{
			Nth: m.Nth, From: m.From, To: m.To, Attempt: m.Attempt, Text: m.Text, Content: m.Content, Model: m.Model,
			Probability: m.Probability, After: time.Duration(m.After), Before: time.Duration(m.Before),
		},
		Action: w.Action.action(),
		Times:  w.Times,
	}
	return nil
}

// MarshalJSON writes the action as the control interface reads it.
func (a Action) MarshalJSON() ([]byte, error) { return json.Marshal(a.wire()) }

// UnmarshalJSON reads an action; an unknown field is an error.
func (a *Action) UnmarshalJSON(data []byte) error {
	var w wireAction
	if err := decodeStrictly(data, &w); err != nil {
		return err
	}
	*a = w.action()
	return nil
}

func (a Action) wire() wireAction {
	return wireAction{
		Latency: wireDuration(a.Latency), Hang: a.Hang, Close: a.Close, CutAfterBytes: a.CutAfterBytes, Error: a.Error,
		Status: a.Status, Body: a.Body, Headers: a.Headers, RetryAfter: wireDuration(a.RetryAfter), Answer: a.Answer,
		Content: a.Content, FinishReason: a.FinishReason, ServedModel: a.ServedModel,
	}
}

func (w wireAction) action() Action {
	return Action{
		Latency: time.Duration(w.Latency), Hang: w.Hang, Close: w.Close, CutAfterBytes: w.CutAfterBytes, Error: w.Error,
		Status: w.Status, Body: w.Body, Headers: w.Headers, RetryAfter: time.Duration(w.RetryAfter), Answer: w.Answer,
		Content: w.Content, FinishReason: w.FinishReason, ServedModel: w.ServedModel,
	}
}

// ParseRules reads one rule or a list of them and checks them.
func ParseRules(data []byte) ([]Rule, error) {
	rules := make([]Rule, 1)
	var target any = &rules[0]
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		target = &rules
	}
	if err := decodeStrictly(data, target); err != nil {
		return nil, fmt.Errorf("decode rules: %w", err)
	}
	return rules, validateRules(rules)
}

// decodeStrictly takes exactly one JSON value without unknown fields.
func decodeStrictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

func validateRules(rules []Rule) error {
	var problems []error
	for i, r := range rules {
		if err := errors.Join(r.Match.validate(), r.Action.validate(), r.validate()); err != nil {
			problems = append(problems, fmt.Errorf("rule %d %q: %w", i+1, r.Name, err))
		}
	}
	return errors.Join(problems...)
}

func (r Rule) validate() error {
	if r.Times < 0 {
		return errors.New("times is negative")
	}
	m := r.Match
	if r.Action.Close == CloseOnAccept && (m.Attempt != 0 || m.Text != "" || m.Content != "" || m.Model != "") {
		return errors.New("close on_accept happens before the body is read: it cannot match attempt, text, content or model")
	}
	return nil
}

func (m Match) validate() error {
	var problems []error
	if m.Nth < 0 || m.From < 0 || m.To < 0 || m.Attempt < 0 || (m.To != 0 && m.To < m.From) {
		problems = append(problems, errors.New("counts must be positive, and to not below from"))
	}
	if m.Probability < 0 || m.Probability > 1 {
		problems = append(problems, fmt.Errorf("probability %v is not between 0 and 1", m.Probability))
	}
	if m.Content != "" && (len(m.Content) != 2*len(Fingerprint{}) || !isHex(m.Content)) {
		problems = append(problems, errors.New("content is not 64 lower-case hex digits"))
	}
	if m.After < 0 || m.Before < 0 || (m.Before != 0 && m.Before <= m.After) {
		problems = append(problems, errors.New("before must lie behind after"))
	}
	return errors.Join(problems...)
}

func (a Action) validate() error {
	var problems []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	refuse(a.Hang != "" && !slices.Contains([]Hang{HangBeforeAnswer, HangAfterAnswer, HangMidBody}, a.Hang), "hang %q is unknown", a.Hang)
	refuse(a.Close != "" && !slices.Contains([]Close{CloseOnAccept, CloseAfterRequest, CloseAfterAnswer}, a.Close), "close %q is unknown", a.Close)
	refuse(a.Error != "" && !slices.Contains(allErrors(), a.Error), "error %q is unknown", a.Error)
	refuse(a.Answer != "" && !slices.Contains(allAnswers(), a.Answer), "answer %q is unknown", a.Answer)
	refuse(a.Status != 0 && (a.Status < 200 || a.Status > 599), "status %d is not a final one", a.Status)
	refuse(a.Error != "" && a.Status != 0, "error and status are both set")
	refuse(a.Latency < 0 || a.RetryAfter < 0, "a duration is negative")
	refuse(a.CutAfterBytes < 0, "cut_after_bytes is negative")

	ends := 0
	for _, set := range []bool{a.Close != "", a.fails(), a.answers()} {
		if set {
			ends++
		}
	}
	refuse(ends > 1, "an action can close, fail or shape the answer, not several of these")
	refuse(a.Hang == HangAfterAnswer && a.fails(), "hang after_answer has an answer, not an error")
	refuse(a.Hang == HangMidBody && (a.fails() || a.Close != ""), "hang mid_body has an answer to send")
	refuse((a.Body != "" || len(a.Headers) > 0 || a.RetryAfter != 0) && !a.fails(), "body, headers and retry_after belong to an error or a status")
	return errors.Join(problems...)
}

// fails reports whether the action ends in an error response.
func (a Action) fails() bool { return a.Error != "" || a.Status != 0 }

// answers reports whether the action shapes an answer.
func (a Action) answers() bool {
	return a.CutAfterBytes != 0 || a.Answer != "" || a.Content != "" || a.FinishReason != "" || a.ServedModel != ""
}

func allErrors() []Error {
	return []Error{
		RateLimit, SlowDown, InsufficientQuota, SpendLimit, InvalidAPIKey, Forbidden, ModelNotFound, Overloaded503, ServerError500,
		BadGateway502, GatewayTimeout504, Overloaded529, ContextLength, ContentFilter400, BadSchema400, Conflict409,
		RequestTimeout408, RequestTooLarge413,
	}
}

func allAnswers() []Answer {
	return []Answer{
		AnswerBadJSON, AnswerEmptyBody, AnswerErrorBody, AnswerEmptyChoices, AnswerNullContent, AnswerEmptyContent, AnswerRefusal,
		AnswerTruncated, AnswerLength, AnswerContentFilter, AnswerNoUsage,
	}
}

func (a Action) label() string {
	for _, word := range []string{string(a.Error), string(a.Hang), string(a.Close), string(a.Answer)} {
		if word != "" {
			return word
		}
	}
	switch {
	case a.CutAfterBytes > 0:
		return "cut"
	case a.Status != 0:
		return fmt.Sprintf("status_%d", a.Status)
	case a.Content != "":
		return "content"
	case a.Latency != 0:
		return "latency"
	}
	return "plain"
}

// facts are what a rule is matched against.
type facts struct {
	number  int // of the request among all, from 1
	attempt int // of the request among those of its content, from 1
	content Fingerprint
	text    string
	model   string
	age     time.Duration // of the server
}

// armedRule is a rule in force.
type armedRule struct {
	Rule
	id   uint64
	left atomic.Int64 // when Times is set
	hits atomic.Int64
}

// fire reports whether the rule takes the request, and counts it.
func (r *armedRule) fire(seed uint64, f facts) bool {
	if !r.matches(seed, f) {
		return false
	}
	if r.Times > 0 && r.left.Add(-1) < 0 {
		return false
	}
	r.hits.Add(1)
	return true
}

func (r *armedRule) matches(seed uint64, f facts) bool {
	m := r.Match
	switch {
	case m.Nth != 0 && f.number != m.Nth,
		f.number < m.From,
		m.To != 0 && f.number > m.To,
		m.Attempt != 0 && f.attempt != m.Attempt,
		f.age < m.After,
		m.Before != 0 && f.age >= m.Before,
		m.Model != "" && f.model != m.Model,
		m.Content != "" && f.content.String() != m.Content,
		m.Text != "" && !strings.Contains(f.text, m.Text):
		return false
	}
	return m.Probability == 0 || draw(seed+r.id, f) < m.Probability
}

// draw returns the number in [0,1) that belongs to a stream, a content and its attempt. Before the body is read
// there is no content, and the request's number stands in for it.
func draw(stream uint64, f facts) float64 {
	lo, hi := binary.BigEndian.Uint64(f.content[:8]), binary.BigEndian.Uint64(f.content[8:16])
	n := f.attempt
	if n == 0 {
		n = f.number
	}
	return rand.New(rand.NewPCG(stream^lo, hi+uint64(n))).Float64() //nolint:gosec // it has to be foreseeable
}
