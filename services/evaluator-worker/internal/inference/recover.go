package inference

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

// callIDMetadata is the metadata of a stored conversation that names its call.
const callIDMetadata = "evalonce_call_id"

// Recover asks the provider for the response of a call whose outcome is unknown. It reports false when the provider has
// none, or, with an error, cannot say; asking buys nothing, so that no such error is of class unknown. Beside a response
// that was found, the error is why it can be no answer, as in [Client.Call].
func (c *Client) Recover(ctx context.Context, _ evaluation.Version, call uuid.UUID) (r Response, found bool, err error) {
	if c.stored == nil {
		return Response{}, false, nil
	}
	req, err := c.stored(ctx, call)
	if err != nil {
		return Response{}, false, failure.New(failure.BadRequest, "no request for stored responses can be made", nil)
	}
	var x exchange
	resp, err := x.do(req, c.http().Do)
	if err != nil || !x.succeeded() {
		return Response{}, false, x.unanswered()
	}
	_ = resp.Body.Close()
	var list struct {
		Data *[]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(x.body, &list); err != nil || list.Data == nil {
		return Response{}, false, x.fail(failure.MalformedResponse, "the provider does not list what it has stored")
	}
	if len(*list.Data) == 0 {
		return Response{}, false, nil
	}
	lost := exchange{status: http.StatusOK, header: http.Header{}, body: (*list.Data)[0], whole: true, ended: x.ended}
	response, _, f := lost.interpret(c.protocol)
	if f != nil {
		return response, true, f
	}
	return response, true, nil
}

// unanswered is the failure of a question that cost nothing: what may have been paid for in a call is transient here,
// and what is the item's own fault there is the question's.
func (x *exchange) unanswered() *failure.Failure {
	f := failure.Classify(failure.Exchange{Err: x.err, Status: x.status, Header: x.header, Body: x.body, Now: x.ended})
	if f == nil || f.Class == failure.Unknown || f.Class == failure.Permanent {
		return x.fail(failure.ServerError, "the provider does not say what it has stored")
	}
	f.Detail = ""
	return f
}

// storedChatCompletions asks for the conversations that were stored for a call.
func (c *Client) storedChatCompletions(ctx context.Context, key string, call uuid.UUID) (*http.Request, error) {
	address, err := url.Parse(c.base())
	if err != nil {
		return nil, err
	}
	address = address.JoinPath("chat/completions")
	query := c.server.Query()
	query.Set("metadata["+callIDMetadata+"]", call.String())
	query.Set("limit", "1")
	address.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", userAgent)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req, nil
}
