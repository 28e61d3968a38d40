package evaluation

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// AnswerSchema is the version of the answer's contract that this package reads and describes.
const AnswerSchema = 1

// MaxAnswerBytes bounds a response. The longest answer within the contract is far shorter.
const MaxAnswerBytes = 64 << 10

// Answer is what the model said of a ticket.
type Answer struct {
	IsUrgent     float64 // how likely the ticket is urgent, in [0, 1]
	UrgencyScore float64 // how urgent it is, in [0, 1]
	Department   string  // one of the version's departments, in the version's spelling
}

// The reasons of [ContractError].
const (
	AnswerEmpty             = "empty"
	AnswerTooLarge          = "too_large"
	AnswerInvalidUTF8       = "invalid_utf8"
	AnswerNotJSON           = "not_json"
	AnswerNotAnObject       = "not_an_object"
	AnswerTrailingData      = "trailing_data"
	AnswerUnknownKey        = "unknown_key"
	AnswerDuplicateKey      = "duplicate_key"
	AnswerMissingKey        = "missing_key"
	AnswerNotANumber        = "not_a_number"
	AnswerOutOfRange        = "out_of_range"
	AnswerNotAString        = "not_a_string"
	AnswerUnknownDepartment = "unknown_department"
)

// ContractError says how a response broke the contract. Detail is the key concerned, or empty; nothing that the
// model wrote is repeated, since it may quote the ticket.
type ContractError struct {
	Reason string // one of the words above
	Detail string
}

func (e *ContractError) Error() string {
	if e.Detail == "" {
		return "answer breaks its contract: " + e.Reason
	}
	return "answer breaks its contract: " + e.Reason + ": " + e.Detail
}

func violation(reason, detail string) error { return &ContractError{Reason: reason, Detail: detail} }

const (
	keyIsUrgent     = "is_urgent"
	keyUrgencyScore = "urgency_score"
	keyDepartment   = "department"
)

var answerKeys = []string{keyIsUrgent, keyUrgencyScore, keyDepartment}

// ParseAnswer reads a response by the contract of the package comment, or returns a [*ContractError]. Numbers are
// read to the nearest float64.
//
// The object is read token by token because decoding into a struct would let duplicate keys, keys in another letter
// case and null pass unseen.
func ParseAnswer(raw string, departments []Department) (Answer, error) {
	switch {
	case len(raw) > MaxAnswerBytes:
		return Answer{}, violation(AnswerTooLarge, "")
	case !utf8.ValidString(raw):
		return Answer{}, violation(AnswerInvalidUTF8, "")
	}
	raw = unfence(strings.TrimSpace(raw))
	if raw == "" {
		return Answer{}, violation(AnswerEmpty, "")
	}
	p := parser{dec: json.NewDecoder(strings.NewReader(raw)), departments: departments}
	p.dec.UseNumber()
	if err := p.object(); err != nil {
		return Answer{}, err
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return Answer{}, violation(AnswerTrailingData, "")
	}
	return p.answer, nil
}

// unfence removes one Markdown code fence that surrounds all of s.
func unfence(s string) string {
	const fence = "```"
	inner, opened := strings.CutPrefix(s, fence)
	inner, closed := strings.CutSuffix(inner, fence)
	if !opened || !closed {
		return s
	}
	return strings.TrimSpace(strings.TrimPrefix(inner, "json"))
}

type parser struct {
	dec         *json.Decoder
	departments []Department
	answer      Answer
}

func (p *parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		return nil, violation(AnswerNotJSON, "")
	}
	return t, nil
}

func (p *parser) object() error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return violation(AnswerNotAnObject, "")
	}
	seen := make([]string, 0, len(answerKeys))
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key, _ := t.(string) // the decoder lets nothing else be a key
		switch {
		case !slices.Contains(answerKeys, key):
			return violation(AnswerUnknownKey, "")
		case slices.Contains(seen, key):
			return violation(AnswerDuplicateKey, key)
		}
		seen = append(seen, key)
		if err := p.member(key); err != nil {
			return err
		}
	}
	if _, err := p.token(); err != nil { // the closing brace
		return err
	}
	for _, key := range answerKeys {
		if !slices.Contains(seen, key) {
			return violation(AnswerMissingKey, key)
		}
	}
	return nil
}

func (p *parser) member(key string) error {
	value, err := p.token()
	if err != nil {
		return err
	}
	switch key {
	case keyIsUrgent:
		p.answer.IsUrgent, err = fraction(key, value)
	case keyUrgencyScore:
		p.answer.UrgencyScore, err = fraction(key, value)
	case keyDepartment:
		p.answer.Department, err = p.department(value)
	}
	return err
}

func fraction(key string, value json.Token) (float64, error) {
	n, ok := value.(json.Number)
	if !ok {
		return 0, violation(AnswerNotANumber, key)
	}
	f, err := strconv.ParseFloat(n.String(), 64)
	if err != nil || f < 0 || f > 1 { // the error is of a number beyond float64
		return 0, violation(AnswerOutOfRange, key)
	}
	return f + 0, nil // and -0 becomes 0
}

// department takes no string with U+FFFD in it, which is what the decoder makes of half a surrogate pair.
func (p *parser) department(value json.Token) (string, error) {
	name, ok := value.(string)
	if !ok {
		return "", violation(AnswerNotAString, keyDepartment)
	}
	i := slices.IndexFunc(p.departments, func(d Department) bool { return sameName(d.Name, name) })
	if i < 0 || strings.ContainsRune(name, utf8.RuneError) {
		return "", violation(AnswerUnknownDepartment, keyDepartment)
	}
	return p.departments[i].Name, nil
}

// sameName is how department names are compared, here and when a version is validated, so that of the names of a
// valid version at most one can match.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSpace(a), strings.TrimSpace(b))
}

// AnswerJSONSchema is the contract as a JSON schema for a provider's structured output. It uses only what the
// strict modes of all providers take, so that the ranges of the numbers are told in words: minimum and maximum are
// refused by some.
func AnswerJSONSchema(departments []Department) map[string]any {
	names := make([]string, len(departments))
	for i, d := range departments {
		names[i] = d.Name
	}
	return map[string]any{
		"type": "object",
		"properties": map[string]any{
			keyIsUrgent: map[string]any{
				"type":        "number",
				"description": "Probability that the ticket is urgent, from 0 to 1.",
			},
			keyUrgencyScore: map[string]any{
				"type":        "number",
				"description": "How urgent the ticket is, from 0 (can wait) to 1 (act now).",
			},
			keyDepartment: map[string]any{
				"type":        "string",
				"enum":        names,
				"description": "The department that should handle the ticket.",
			},
		},
		"required":             slices.Clone(answerKeys),
		"additionalProperties": false,
	}
}
