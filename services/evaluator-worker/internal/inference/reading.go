package inference

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

// The ways in which a model stops, in one vocabulary for all providers.
const (
	finishStop          = "stop"
	finishLength        = "length"
	finishContentFilter = "content_filter"
	finishOther         = "other"
)

// reading is a response body in the terms that all providers share.
type reading struct {
	isJSON     bool
	recognised bool // the body is a response of this protocol, whatever is in it
	id         string
	model      string
	content    string
	refused    bool
	finish     string // one of the constants above; "" when the body does not say
	usage      evaluation.Usage
}

// decode reads the JSON of a body into wire, whose members of an unexpected type are absent, and reports whether it is
// JSON at all. The SDKs' own types are not used: they coerce what does not fit by rules that may change, and a stored
// body must read the same after an update as it did when it arrived.
func decode(body []byte, wire any) bool {
	// The standard library goes on after a member of the wrong type, and reports it at the end.
	var wrongType *json.UnmarshalTypeError
	err := json.Unmarshal(body, wire)
	return err == nil || errors.As(err, &wrongType)
}

// interpret reads the body by the provider's wire format and judges the whole exchange.
func (x *exchange) interpret(p protocol) (Response, reading, *failure.Failure) {
	r := p.read(x.body)
	r.id, r.model = label(r.id), label(r.model)
	r.usage = r.usage.Bounded()
	response := Response{
		Raw:               x.body,
		Content:           r.content,
		ServedModel:       r.model,
		ProviderRequestID: label(x.header.Get(p.requestIDHeader)),
		HTTPStatus:        x.status,
		Usage:             r.usage,
	}
	if response.ProviderRequestID == "" {
		response.ProviderRequestID = r.id
	}
	return response, r, x.judge(r)
}

// judge returns nil when there is an answer to validate. What has arrived as this protocol's response is paid for,
// and no other can be expected for the same request, so that what is wrong with it is permanent.
func (x *exchange) judge(r reading) *failure.Failure {
	if x.err == nil && x.succeeded() {
		switch {
		case len(x.body) >= maxBody:
			return x.fail(failure.ContractViolation, "the response is larger than any answer")
		case x.whole && !r.isJSON && bytes.HasPrefix(bytes.TrimSpace(x.body), []byte("{")):
			// The classifier would take it for cut; the framing says that it is not.
			return x.fail(failure.ContractViolation, "the response is broken JSON")
		}
	}
	f := failure.Classify(failure.Exchange{
		Err: x.err, Sent: x.sent(), Status: x.status, Header: x.header, Body: x.body, Now: x.ended,
	})
	if f != nil {
		return f
	}
	switch {
	case !r.isJSON:
		return x.fail(failure.ContractViolation, "the response is broken JSON")
	case !r.recognised:
		return x.fail(failure.MalformedResponse, "the response is of another protocol")
	case r.refused:
		return x.fail(failure.Refusal, "the model refused")
	case r.finish == finishContentFilter:
		return x.fail(failure.ContentFilter, "the provider withheld the answer")
	case r.finish == finishLength && !json.Valid([]byte(r.content)):
		// A whole value is an answer even when the cap was reached right after it; half of one is not.
		return x.fail(failure.Truncated, "the answer reached the output cap")
	case strings.TrimSpace(r.content) == "":
		return x.fail(failure.EmptyAnswer, "the response holds no text")
	}
	return nil
}

// fail is a failure of a response that arrived. Its detail is ours: what the model said may repeat the ticket.
func (x *exchange) fail(reason failure.Reason, detail string) *failure.Failure {
	f := failure.New(reason, detail, nil)
	f.HTTPStatus = x.status
	return f
}

const maxLabel = 200

// label makes a name that the provider chose fit for a column and for a span.
func label(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	if len(s) <= maxLabel {
		return s
	}
	end := maxLabel
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
