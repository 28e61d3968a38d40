package inference

import (
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestCallAnswers(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		s := serve(t, reply(200, d.answered, d.request, "req_42"))
		got, err := d.client(t, Config{BaseURL: s.URL + d.prefix, APIKey: "sk-test"}).Call(within(t), d.question(t))
		if err != nil {
			t.Fatal(err)
		}
		want := Response{
			Raw: []byte(d.answered), Content: answer, ServedModel: d.model, ProviderRequestID: "req_42",
			HTTPStatus: 200, Usage: usage,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("response is %+v, want %+v", got, want)
		}
		if r := s.received(); len(r) != 1 || r[0].method != http.MethodPost || r[0].target != d.prefix+d.path {
			t.Errorf("received %+v", r)
		}
	})
}

// wantHeaders checks that the headers are these and no others. Those that every request has need not be said.
func wantHeaders(t *testing.T, r received, q Request, want map[string]string) {
	t.Helper()
	want["Content-Type"], want["Accept"], want["Accept-Encoding"] = "application/json", "application/json", "gzip"
	want["User-Agent"], want["X-Client-Request-Id"] = "EvalOnce", q.CallID.String()
	for name, values := range r.header {
		if name == "Content-Length" {
			continue
		}
		if len(values) != 1 || values[0] != want[name] {
			t.Errorf("%s is %q, want %q", name, values, want[name])
		}
		delete(want, name)
	}
	if len(want) != 0 {
		t.Errorf("headers are missing: %v", want)
	}
}

// wantPrompt checks what the model is told.
func wantPrompt(t *testing.T, q Request, system, user string) {
	t.Helper()
	if !strings.HasPrefix(system, "You triage tickets.\n\nDepartments:\n- billing: invoices and refunds\n") ||
		!strings.Contains(user, "\nSubject: "+q.Text.Subject+"\n\nMessage:\n"+q.Text.Message+"\n-----END TICKET ") {
		t.Errorf("the model is told %q and %q", system, user)
	}
}

// Providers cache by prefix, so two requests of one version and one ticket differ in the ticket's marks alone.
func TestRequestsOfOneVersionShareTheirPrefix(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		s := serve(t, reply(200, d.answered))
		client := d.client(t, Config{BaseURL: s.URL})
		for range 2 {
			if _, err := client.Call(within(t), d.question(t)); err != nil {
				t.Fatal(err)
			}
		}
		var rest [2]string
		for i, r := range s.received() {
			before, inside, found := strings.Cut(r.body, "-----BEGIN TICKET ")
			_, after, closed := strings.Cut(inside, "-----END TICKET ")
			if !found || !closed {
				t.Fatalf("no ticket in %s", r.body)
			}
			rest[i] = before + after[len("0123456789abcdef0123456789abcdef"):]
		}
		if rest[0] != rest[1] {
			t.Errorf("requests differ:\n%s\n%s", rest[0], rest[1])
		}
	})
}

func TestEnvironmentChangesNothing(t *testing.T) {
	trap := serve(t, reply(200, answered))
	for name, value := range map[string]string{
		"OPENAI_API_KEY": "sk-environment", "OPENAI_ADMIN_KEY": "sk-admin", "OPENAI_BASE_URL": trap.URL,
		"OPENAI_ORG_ID": "org-environment", "OPENAI_PROJECT_ID": "proj-environment",
		"OPENAI_WEBHOOK_SECRET": "whsec", "OPENAI_CUSTOM_HEADERS": "X-Environment: yes",
		"ANTHROPIC_API_KEY": "sk-environment", "ANTHROPIC_AUTH_TOKEN": "environment", "ANTHROPIC_BASE_URL": trap.URL,
		"ANTHROPIC_CUSTOM_HEADERS": "X-Environment: yes", "ANTHROPIC_WEBHOOK_SIGNING_KEY": "whsec",
		"HTTP_PROXY": trap.URL, "HTTPS_PROXY": trap.URL, "ALL_PROXY": trap.URL, "NO_PROXY": "",
	} {
		t.Setenv(name, value)
	}
	for _, d := range dialects {
		s := serve(t, reply(200, d.answered))
		if _, err := d.client(t, Config{BaseURL: s.URL}).Call(within(t), d.question(t)); err != nil {
			t.Fatal(err)
		}
		r := s.received()[0]
		for _, name := range []string{"Authorization", "X-Api-Key", "OpenAI-Organization", "OpenAI-Project", "X-Environment"} {
			if r.header.Get(name) != "" {
				t.Errorf("%s: %s came from the environment", d.provider, name)
			}
		}
		public := d.client(t, Config{})
		want := map[string]string{"openai": openaiAPI, "openai_responses": openaiAPI, "anthropic": anthropicAPI}[d.provider]
		if public.server.String() != want || public.transport.Proxy != nil {
			t.Errorf("%s: asks %s by default, proxy %t", d.provider, public.server, public.transport.Proxy != nil)
		}
	}
	if n := len(trap.received()); n != 0 {
		t.Errorf("%d requests went where the environment points", n)
	}

	// The same variables do change what the SDKs' clients send, or the test would prove nothing.
	s := serve(t, reply(200, answered))
	theirs := openai.NewClient(option.WithBaseURL(s.URL), option.WithMaxRetries(0))
	if _, err := theirs.Chat.Completions.New(within(t), openai.ChatCompletionNewParams{
		Model: "any", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
	}); err != nil {
		t.Fatal(err)
	}
	if got := s.received()[0].header; got.Get("OpenAI-Organization") != "org-environment" || got.Get("X-Environment") != "yes" {
		t.Errorf("the environment is not what the SDK reads: %v", got)
	}
	if got := sdkMessage(t, anthropicoption.WithHTTPClient(http.DefaultClient)).header; got.Get("Authorization") != "Bearer sk-environment" || got.Get("X-Environment") != "yes" {
		t.Errorf("the environment is not what the SDK reads: %v", got)
	}
}

// sdkMessage is a request of Anthropic's SDK as it is when nobody tells it otherwise.
func sdkMessage(t *testing.T, options ...anthropicoption.RequestOption) received {
	t.Helper()
	s := serve(t, reply(200, answeredMessage))
	client := anthropic.NewClient(append(options, anthropicoption.WithBaseURL(s.URL))...)
	if _, err := client.Messages.New(within(t), anthropic.MessageNewParams{
		Model: "any", MaxTokens: 1, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hello"))},
	}); err != nil {
		t.Fatal(err)
	}
	return s.received()[0]
}

// The process's tracing is none of the provider's business, and no SDK makes spans beside ours.
func TestNoTelemetryOfTheSDKs(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	tracers, propagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	otel.SetTracerProvider(tracing)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	t.Cleanup(func() {
		otel.SetTracerProvider(tracers)
		otel.SetTextMapPropagator(propagator)
	})
	for _, d := range dialects {
		spans.Reset()
		s := serve(t, reply(200, d.answered))
		ctx, parent := tracing.Tracer("test").Start(within(t), "process evaluation")
		if _, err := d.client(t, Config{BaseURL: s.URL}).Call(ctx, d.question(t)); err != nil {
			t.Fatal(err)
		}
		if ended := spans.Ended(); len(ended) != 1 || ended[0].Name() != "chat gpt-test" || ended[0].Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("%s: spans are %v", d.provider, ended)
		}
		for name := range s.received()[0].header {
			if strings.HasPrefix(name, "X-Stainless-") || name == "Traceparent" || name == "Tracestate" || name == "Baggage" {
				t.Errorf("%s: %s left", d.provider, name)
			}
		}
	}

	// The SDK does both when nobody tells it otherwise, or the test would prove nothing.
	spans.Reset()
	if got := sdkMessage(t, anthropicoption.WithAPIKey("sk-test"), anthropicoption.WithHTTPClient(http.DefaultClient)).header; got.Get("Traceparent") == "" || got.Get("X-Stainless-Os") == "" {
		t.Errorf("headers are %v", got)
	}
	if len(spans.Ended()) == 0 {
		t.Error("the SDK made no span")
	}
}

func TestProxyIsTheOneGiven(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		proxy := serve(t, reply(200, d.answered))
		client := d.client(t, Config{BaseURL: "http://provider.invalid" + d.prefix, ProxyURL: proxy.URL})
		if _, err := client.Call(within(t), d.question(t)); err != nil {
			t.Fatal(err)
		}
		if got := proxy.received()[0].target; got != "http://provider.invalid"+d.prefix+d.path {
			t.Errorf("the proxy was asked for %s", got)
		}
	})
}

func TestConfigsRefused(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		const secret = "sentinel"
		for name, c := range map[string]Config{
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
			client, err := d.new(c)
			if err == nil {
				client.Close()
				t.Errorf("%s: accepted", name)
			} else if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error repeats the value: %v", name, err)
			}
		}
	})
}

// SDKs have limits of their own on how long a call may take, by the output cap or by the clock.
func TestDeadlineIsTheCallers(t *testing.T) {
	eachDialect(t, func(t *testing.T, d dialect) {
		s := serve(t, reply(200, d.answered))
		q := d.question(t)
		q.Version.Model, q.Version.MaxOutputTokens = "claude-opus-4-20250514", 1_000_000
		client := d.client(t, Config{BaseURL: s.URL})
		_, err := client.Call(t.Context(), q)
		if err != nil {
			t.Errorf("without a deadline: %v", err)
		}
		if _, err := client.Call(within(t), q); err != nil {
			t.Errorf("with a deadline: %v", err)
		}
	})
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
	o := dialects[0].client(t, Config{BaseURL: ts.URL})

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
