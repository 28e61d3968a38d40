package inference

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestCallAnswers(t *testing.T) {
	t.Parallel()
	s := serve(t, reply(200, answered, "X-Request-Id", "req_42"))
	got, err := provider(t, OpenAIConfig{BaseURL: s.URL + "/v1", APIKey: "sk-test"}).Call(within(t), question(t))
	if err != nil {
		t.Fatal(err)
	}
	want := Response{
		Raw: []byte(answered), Content: answer, ServedModel: "gpt-test-2026-01-01", ProviderRequestID: "req_42",
		HTTPStatus: 200, Usage: usage,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("response is %+v, want %+v", got, want)
	}
	if n := len(s.received()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	s := serve(t, reply(200, answered))
	o := provider(t, OpenAIConfig{BaseURL: s.URL + "/gateway/v1/?api-version=2026-01-01&tenant=a%20b", APIKey: "sk-test"})
	q := question(t)
	if _, err := o.Call(within(t), q); err != nil {
		t.Fatal(err)
	}
	q.Version.Effort = "low"
	if _, err := o.Call(within(t), q); err != nil {
		t.Fatal(err)
	}

	plain, withEffort := s.received()[0], s.received()[1]
	if plain.method != "POST" || plain.target != "/gateway/v1/chat/completions?api-version=2026-01-01&tenant=a+b" {
		t.Errorf("%s %s", plain.method, plain.target)
	}
	length := plain.header.Get("Content-Length")
	for name, want := range map[string][]string{
		"Authorization":       {"Bearer sk-test"},
		"Content-Type":        {"application/json"},
		"Accept":              {"application/json"},
		"Accept-Encoding":     {"gzip"},
		"User-Agent":          {"EvalOnce"},
		"X-Client-Request-Id": {q.CallID.String()},
		"Content-Length":      {length},
	} {
		if got := plain.header[name]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
		plain.header.Del(name)
	}
	if len(plain.header) != 0 {
		t.Errorf("headers that nobody asked for: %v", plain.header)
	}

	var body struct {
		Model               string          `json:"model"`
		MaxCompletionTokens int             `json:"max_completion_tokens"`
		ReasoningEffort     *string         `json:"reasoning_effort"`
		ResponseFormat      json.RawMessage `json:"response_format"`
		Messages            []struct{ Role, Content string }
	}
	strict := json.NewDecoder(strings.NewReader(plain.body))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&body); err != nil {
		t.Fatalf("decode %s: %v", plain.body, err)
	}
	if body.Model != "gpt-test" || body.MaxCompletionTokens != 300 || body.ReasoningEffort != nil {
		t.Errorf("body is %s", plain.body)
	}
	if len(body.Messages) != 2 || body.Messages[0].Role != "system" || body.Messages[1].Role != "user" ||
		!strings.HasPrefix(body.Messages[0].Content, "You triage tickets.\n\nDepartments:\n- billing: invoices and refunds\n") ||
		!strings.Contains(body.Messages[1].Content, "\nSubject: "+q.Text.Subject+"\n\nMessage:\n"+q.Text.Message+"\n-----END TICKET ") {
		t.Errorf("messages are %q", body.Messages)
	}
	if strings.Contains(plain.body, q.CallID.String()) {
		t.Error("the model sees the call's id")
	}
	wantFormat, err := json.Marshal(map[string]any{
		"type": "json_schema",
		"json_schema": map[string]any{
			"name": "evaluation", "strict": true, "schema": evaluation.AnswerJSONSchema(q.Version.Departments),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if json.Unmarshal(body.ResponseFormat, &got) != nil || json.Unmarshal(wantFormat, &want) != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("response format is %s, want %s", body.ResponseFormat, wantFormat)
	}
	if !strings.Contains(withEffort.body, `"reasoning_effort":"low"`) {
		t.Errorf("effort is missing in %s", withEffort.body)
	}
}

// Providers cache by prefix, so two tickets of one version share everything before the ticket.
func TestRequestsOfOneVersionShareTheirPrefix(t *testing.T) {
	t.Parallel()
	s := serve(t, reply(200, answered))
	o := provider(t, OpenAIConfig{BaseURL: s.URL})
	for range 2 {
		if _, err := o.Call(within(t), question(t)); err != nil {
			t.Fatal(err)
		}
	}
	first, _, found := strings.Cut(s.received()[0].body, "-----BEGIN TICKET ")
	second, _, _ := strings.Cut(s.received()[1].body, "-----BEGIN TICKET ")
	if !found || first != second {
		t.Errorf("prefixes differ:\n%s\n%s", first, second)
	}
}

func TestEnvironmentChangesNothing(t *testing.T) {
	trap := serve(t, reply(200, answered))
	for name, value := range map[string]string{
		"OPENAI_API_KEY": "sk-environment", "OPENAI_ADMIN_KEY": "sk-admin", "OPENAI_BASE_URL": trap.URL,
		"OPENAI_ORG_ID": "org-environment", "OPENAI_PROJECT_ID": "proj-environment",
		"OPENAI_WEBHOOK_SECRET": "whsec", "OPENAI_CUSTOM_HEADERS": "X-Environment: yes",
		"HTTP_PROXY": trap.URL, "HTTPS_PROXY": trap.URL, "ALL_PROXY": trap.URL, "NO_PROXY": "",
	} {
		t.Setenv(name, value)
	}

	s := serve(t, reply(200, answered))
	if _, err := provider(t, OpenAIConfig{BaseURL: s.URL}).Call(within(t), question(t)); err != nil {
		t.Fatal(err)
	}
	r := s.received()[0]
	for _, name := range []string{"Authorization", "OpenAI-Organization", "OpenAI-Project", "X-Environment"} {
		if r.header.Get(name) != "" {
			t.Errorf("%s came from the environment", name)
		}
	}
	if n := len(trap.received()); n != 0 {
		t.Errorf("%d requests went where the environment points", n)
	}
	public := provider(t, OpenAIConfig{})
	if public.server.String() != "https://api.openai.com/v1" {
		t.Errorf("the default base URL is %s", public.server)
	}
	if public.transport.Proxy != nil {
		t.Error("a proxy was chosen that nobody gave")
	}

	// The same variables do change what the SDK's client sends, or the test would prove nothing.
	client := openai.NewClient(option.WithBaseURL(s.URL), option.WithMaxRetries(0))
	if _, err := client.Chat.Completions.New(within(t), openai.ChatCompletionNewParams{
		Model: "any", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
	}); err != nil {
		t.Fatal(err)
	}
	if got := s.received()[1].header; got.Get("OpenAI-Organization") != "org-environment" || got.Get("X-Environment") != "yes" {
		t.Errorf("the environment is not what the SDK reads: %v", got)
	}
}

func TestProxyIsTheOneGiven(t *testing.T) {
	t.Parallel()
	proxy := serve(t, reply(200, answered))
	o := provider(t, OpenAIConfig{BaseURL: "http://provider.invalid/v1", ProxyURL: proxy.URL})
	if _, err := o.Call(within(t), question(t)); err != nil {
		t.Fatal(err)
	}
	if got := proxy.received()[0].target; got != "http://provider.invalid/v1/chat/completions" {
		t.Errorf("the proxy was asked for %s", got)
	}
}

func TestNewOpenAIRefuses(t *testing.T) {
	t.Parallel()
	const secret = "sentinel"
	for name, c := range map[string]OpenAIConfig{
		"no scheme":        {BaseURL: secret + ".example/v1"},
		"other scheme":     {BaseURL: "ftp://" + secret},
		"no host":          {BaseURL: "https:///" + secret},
		"user information": {BaseURL: "https://user:" + secret + "@example.com"},
		"fragment":         {BaseURL: "https://example.com/#" + secret},
		"not a URL":        {BaseURL: "https://example.com/%zz" + secret},
		"proxy":            {ProxyURL: "://" + secret},
		"proxy host":       {ProxyURL: secret},
		"key with newline": {APIKey: secret + "\n"},
		"key with space":   {APIKey: "Bearer " + secret},
	} {
		o, err := NewOpenAI(c)
		if err == nil {
			o.Close()
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error repeats the value: %v", name, err)
		}
	}
}

// A full worker's calls open as many connections as they are, once.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	const concurrent = 200
	var opened atomic.Int64
	var arrived sync.WaitGroup
	s := &server{}
	wave := make(chan struct{})
	ts := httptest.NewUnstartedServer(s.recording(func(w http.ResponseWriter, r *http.Request) {
		arrived.Done()
		<-wave
		reply(200, answered)(w, r)
	}))
	ts.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	ts.Start()
	t.Cleanup(ts.Close)
	o := provider(t, OpenAIConfig{BaseURL: ts.URL})

	for round := 1; round <= 2; round++ {
		arrived.Add(concurrent)
		var calls sync.WaitGroup
		for range concurrent {
			calls.Go(func() {
				if _, err := o.Call(within(t), question(t)); err != nil {
					t.Error(err)
				}
			})
		}
		arrived.Wait() // all of them are running at once
		for range concurrent {
			wave <- struct{}{}
		}
		calls.Wait()
	}
	if n := opened.Load(); n != concurrent {
		t.Errorf("%d connections for two waves of %d calls", n, concurrent)
	}
	if n := len(s.received()); n != 2*concurrent {
		t.Errorf("%d requests for %d calls", n, 2*concurrent)
	}
}
