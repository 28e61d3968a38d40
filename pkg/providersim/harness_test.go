package providersim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"github.com/evalonce/evalonce/pkg/providersim"
)

const instructions = `You route support tickets. Answer with the department and how urgent it is.
- billing: invoices, payments and refunds
- technical_support: bugs, outages and errors
- account_access: login and passwords
`

// patience bounds every wait of a test; nothing takes that long.
const patience = 20 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, o providersim.Options) *providersim.Server {
	t.Helper()
	sim := providersim.New(o)
	if err := sim.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	return sim
}

// connections returns a client whose connections are its own and end with the test.
func connections(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func official(t *testing.T, sim *providersim.Server, more ...option.RequestOption) openai.Client {
	t.Helper()
	return openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL(sim.URL() + "/v1/"), option.WithAPIKey("sk-test"), option.WithMaxRetries(0),
		option.WithHTTPClient(connections(t)),
	}, more...)...)
}

func marked(subject, message string) string {
	const nonce = "0123456789abcdef0123456789abcdef"
	return fmt.Sprintf("-----BEGIN TICKET %s-----\nSubject: %s\n\nMessage:\n%s\n-----END TICKET %s-----", nonce, subject, message, nonce)
}

func schema(departments ...string) map[string]any {
	number := map[string]any{"type": "number"}
	return map[string]any{
		"type": "object", "additionalProperties": false,
		"required": []string{"is_urgent", "department", "urgency_score"},
		"properties": map[string]any{
			"is_urgent": number, "urgency_score": number,
			"department": map[string]any{"type": "string", "enum": departments},
		},
	}
}

func params(subject, message string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:               "gpt-5-mini",
		MaxCompletionTokens: openai.Int(200),
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage(instructions), openai.UserMessage(marked(subject, message)),
		},
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
				Name: "evaluation", Strict: openai.Bool(true), Schema: schema("billing", "technical_support", "account_access"),
			},
		}},
	}
}

// rawBody is the request of params, to be bent by a test.
func rawBody(subject, message string) map[string]any {
	return map[string]any{
		"model": "gpt-5-mini",
		"messages": []map[string]any{
			{"role": "system", "content": instructions},
			{"role": "user", "content": marked(subject, message)},
		},
		"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{
			"name": "evaluation", "strict": true, "schema": schema("billing", "technical_support", "account_access"),
		}},
	}
}

// reply is a response that was read to its end, or to where it broke.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // of the body
}

func do(t *testing.T, client *http.Client, method, url string, body any, headers ...string) (reply, error) {
	t.Helper()
	var payload []byte
	switch b := body.(type) {
	case nil:
	case string:
		payload = []byte(b)
	default:
		var err error
		if payload, err = json.Marshal(b); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(testContext(t), method, url, bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer sk-test")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	return reply{status: response.StatusCode, header: response.Header, body: got, err: err}, nil
}

func mustDo(t *testing.T, client *http.Client, method, url string, body any, headers ...string) reply {
	t.Helper()
	r, err := do(t, client, method, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ask(t *testing.T, client *http.Client, sim *providersim.Server, message string) (reply, error) {
	t.Helper()
	return do(t, client, http.MethodPost, sim.URL()+"/v1/chat/completions", rawBody("Help", message))
}

func onlyEntry(t *testing.T, sim *providersim.Server) providersim.Entry {
	t.Helper()
	entries := sim.Ledger(0)
	if len(entries) != 1 {
		t.Fatalf("%d entries in the ledger, want 1", len(entries))
	}
	return entries[0]
}
