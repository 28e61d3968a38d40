package inference

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dialect is a protocol as the tests see it.
type dialect struct {
	provider string
	new      func(Config) (*Client, error)
	prefix   string // of a provider's URL in front of the protocol's path
	path     string
	answered string // a whole response with answer, usage and the served model
	model    string // its
	id       string // its
	request  string // the response header with the request's id
}

var dialects = []dialect{
	{"openai", NewOpenAI, "/v1", "/chat/completions", answered, "gpt-test-2026-01-01", "chatcmpl-1", "X-Request-Id"},
	{"openai_responses", NewOpenAIResponses, "/v1", "/responses", answeredResponse, "gpt-test-2026-01-01", "resp_1", "X-Request-Id"},
	{"anthropic", NewAnthropic, "", "/v1/messages", answeredMessage, "gpt-test-20260101", "msg_1", "Request-Id"},
}

// eachDialect runs the test for every protocol, all at once.
func eachDialect(t *testing.T, test func(t *testing.T, d dialect)) {
	t.Helper()
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.provider, func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}

func (d dialect) client(t testing.TB, c Config) *Client {
	t.Helper()
	client, err := d.new(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func (d dialect) question(t testing.TB) Request {
	t.Helper()
	q := question(t)
	q.Version.Provider = d.provider
	return q
}

// answeredResponse is a whole response of OpenAI's other protocol.
const answeredResponse = `{"id":"resp_1","object":"response","created_at":1,"status":"completed","error":null,"incomplete_details":null,` +
	`"model":"gpt-test-2026-01-01","output":[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"message","id":"msg_1","status":"completed",` +
	`"role":"assistant","content":[{"type":"output_text","text":"{\"is_urgent\":0.9,\"urgency_score\":0.8,\"department\":\"billing\"}",` +
	`"annotations":[]}]}],"usage":{"input_tokens":120,"input_tokens_details":{"cached_tokens":100},"output_tokens":30,` +
	`"output_tokens_details":{"reasoning_tokens":10},"total_tokens":150}}`

// answeredMessage is a whole message. Its input counts apart what was read from the cache.
const answeredMessage = `{"id":"msg_1","type":"message","role":"assistant","model":"gpt-test-20260101","content":[{"type":"thinking","thinking":"hm",` +
	`"signature":"x"},{"type":"text","text":"{\"is_urgent\":0.9,\"urgency_score\":0.8,\"department\":\"billing\"}"}],"stop_reason":"end_turn",` +
	`"stop_sequence":null,"usage":{"input_tokens":20,"cache_read_input_tokens":100,"cache_creation_input_tokens":0,"output_tokens":30,` +
	`"output_tokens_details":{"thinking_tokens":10}}}`

// answered is a whole chat completion.
const answered = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-test-2026-01-01","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"{\"is_urgent\":0.9,\"urgency_score\":0.8,\"department\":\"billing\"}","refusal":null},` +
	`"finish_reason":"stop"}],"usage":{"prompt_tokens":120,"completion_tokens":30,"total_tokens":150,` +
	`"prompt_tokens_details":{"cached_tokens":100},"completion_tokens_details":{"reasoning_tokens":10}}}`

const answer = `{"is_urgent":0.9,"urgency_score":0.8,"department":"billing"}`

var usage = evaluation.Usage{InputTokens: 120, CachedInputTokens: 100, OutputTokens: 30, ReasoningTokens: 10}

func question(t testing.TB) Request {
	t.Helper()
	text, err := content.Canonical("Charged twice", "My card was charged twice. {{.X}} %s {product} <b>&amp;</b>")
	if err != nil {
		t.Fatal(err)
	}
	return Request{
		Version: evaluation.Version{
			ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "gpt-test", Prompt: "You triage tickets.",
			Departments: []evaluation.Department{
				{Name: "billing", Description: "invoices and refunds"},
				{Name: "technical", Description: "errors"},
			},
			MaxOutputTokens: 300, AnswerSchema: evaluation.AnswerSchema,
		},
		Text:   text,
		CallID: uuid.MustParse("0197b2c4-0000-7000-8000-000000000001"),
	}
}

// received is one request as a server saw it.
type received struct {
	method, target, proto string
	header                http.Header
	body                  string
}

// server answers every request with handle and keeps what it received.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

func serve(t testing.TB, handle http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(s.recording(handle))
	t.Cleanup(s.Close)
	return s
}

func (s *server) recording(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.mu.Lock()
		s.requests = append(s.requests, received{r.Method, r.RequestURI, r.Proto, r.Header, string(body)})
		s.mu.Unlock()
		handle(w, r)
	}
}

func (s *server) received() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func reply(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// within bounds a call that is not expected to come near the bound.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
