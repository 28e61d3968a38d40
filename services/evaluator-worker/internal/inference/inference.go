// Package inference asks a model provider for one evaluation.
//
// # What a call guarantees
//
// At most one request leaves for each Call. The SDKs' retries are off, redirects are refused, and the transport
// is given no second copy of the body, so that it cannot repeat a request of which anything was written. Of what SDKs
// say of themselves and of this process, nothing leaves with it.
//
// What arrived is kept. The response is captured before the SDK interprets it, because SDKs drop bodies
// whose shape they do not know, and it is returned beside the error too: a refusal, a truncated answer or a
// broken one has been paid for.
//
// Whether a request that failed has left is known, not guessed: Exchange.Sent of package failure decides between a
// failure that costs nothing and one that may have been paid for. Where it cannot be known, it has left.
//
// Nothing confidential is in an error. A failure carries the provider's own error message as its detail,
// without what that message repeats of the key, the prompt or the ticket, and causes without addresses.
package inference

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
)

// Request is one question. CallID names the call in the ledger; the provider receives it as a header, for the
// conversation with its support, and the model never sees it.
type Request struct {
	Version evaluation.Version
	Text    content.Text
	CallID  uuid.UUID
}

// Response is what arrived. Every field that did not is zero.
type Response struct {
	Raw               []byte // the body, as received after transfer and content coding, up to 4 MiB, of an error 64 KiB
	Content           string // the model's text, to be read with evaluation.ParseAnswer
	ServedModel       string // the model that answered, in the provider's words
	ProviderRequestID string // the provider's name for the request; the response's own id when it sent none
	HTTPStatus        int
	Usage             evaluation.Usage
}

// protocol is how a provider's responses are read.
type protocol struct {
	provider        string // as versions name it
	company         string // as OpenTelemetry's conventions name it
	requestIDHeader string
	read            func(body []byte) reading
}

var (
	chatCompletions = protocol{"openai", "openai", "X-Request-Id", readChatCompletion}
	openaiResponses = protocol{"openai_responses", "openai", "X-Request-Id", readResponse}
	messages        = protocol{"anthropic", "anthropic", "Request-Id", readMessage}
)

// ParseSaved interprets the stored body of a 2xx response as Call did when it arrived. The error is a
// *failure.Failure when the body can be no answer.
func ParseSaved(provider string, raw []byte) (Response, error) {
	all := []protocol{chatCompletions, openaiResponses, messages}
	i := slices.IndexFunc(all, func(p protocol) bool { return p.provider == provider })
	if i < 0 {
		return Response{}, fmt.Errorf("parse a saved response: unknown provider %q", provider)
	}
	x := exchange{status: http.StatusOK, body: raw, whole: true}
	response, _, f := x.interpret(all[i])
	if f != nil {
		return response, f
	}
	return response, nil
}
