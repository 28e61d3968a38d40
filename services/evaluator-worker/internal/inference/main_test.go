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

func provider(t testing.TB, c OpenAIConfig) *OpenAI {
	t.Helper()
	o, err := NewOpenAI(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
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
