package inference

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

// completion is a chat completion with one choice: the message's members and the finish reason as JSON.
func completion(message, finish string) string {
	return `{"id":"chatcmpl-1","model":"gpt-test-2026-01-01","choices":[{"index":0,"message":{"role":"assistant",` + message +
		`},"finish_reason":` + finish + `}],"usage":{"prompt_tokens":120,"completion_tokens":30,` +
		`"prompt_tokens_details":{"cached_tokens":100},"completion_tokens_details":{"reasoning_tokens":10}}}`
}

const noChoices = `{"id":"chatcmpl-1","model":"gpt-test-2026-01-01","choices":[],"usage":{"prompt_tokens":120,"completion_tokens":30,` +
	`"prompt_tokens_details":{"cached_tokens":100},"completion_tokens_details":{"reasoning_tokens":10}}}`

// responses are what a provider may answer, and what becomes of it. paid means that the usage, the served model and
// the request's id are known beside the failure.
var responses = []struct {
	name    string
	status  int
	body    string
	reason  failure.Reason // "" is an answer
	content string
	paid    bool
}{
	{"answer", 200, answered, "", answer, true},
	{"answer in a fence", 200, completion(`"content":"`+"```json\\n{}\\n```"+`"`, `"stop"`), "", "```json\n{}\n```", true},
	{"text that is no answer is for the validator", 200, completion(`"content":"I think billing."`, `"stop"`), "", "I think billing.", true},
	{"finish reason of another kind", 200, completion(`"content":"{}"`, `"eos"`), "", "{}", true},
	{"no finish reason", 200, completion(`"content":"{}"`, `null`), "", "{}", true},
	{"whole value at the cap", 200, completion(`"content":"{\"is_urgent\":1}  "`, `"length"`), "", `{"is_urgent":1}  `, true},
	{"cut at the cap", 200, completion(`"content":"{\"is_urgent\":0."`, `"length"`), failure.Truncated, `{"is_urgent":0.`, true},
	{"nothing before the cap", 200, completion(`"content":""`, `"length"`), failure.Truncated, "", true},
	{"refusal", 200, completion(`"content":null,"refusal":"I cannot help"`, `"stop"`), failure.Refusal, "", true},
	{"filtered", 200, completion(`"content":"{\"is_ur"`, `"content_filter"`), failure.ContentFilter, `{"is_ur`, true},
	{"null content", 200, completion(`"content":null`, `"stop"`), failure.EmptyAnswer, "", true},
	{"empty content", 200, completion(`"content":""`, `"stop"`), failure.EmptyAnswer, "", true},
	{"blank content", 200, completion(`"content":" \n "`, `"stop"`), failure.EmptyAnswer, " \n ", true},
	{"content of another type", 200, completion(`"content":[{"type":"text","text":"{}"}]`, `"stop"`), failure.EmptyAnswer, "", true},
	{"tool call", 200, completion(`"content":null,"tool_calls":[]`, `"tool_calls"`), failure.EmptyAnswer, "", true},
	{"no choices", 200, noChoices, failure.EmptyAnswer, "", true},
	{"choices null without usage", 200, `{"choices":null}`, failure.MalformedResponse, "", false},
	{"another protocol", 200, `{"status":"ok"}`, failure.MalformedResponse, "", false},
	{"list", 200, `[{"choices":[]}]`, failure.MalformedResponse, "", false},
	{"error with a success's status", 200, `{"error":{"message":"overloaded","code":503}}`, failure.Overloaded, "", false},
	{"broken JSON, whole by its framing", 200, `{"choices":[{"message":{"content":NaN}}]}`, failure.ContractViolation, "", false},
	{"more after the JSON", 200, answered + `{}`, failure.ContractViolation, "", false},
	{"gateway's page", 200, `<html><body>maintenance</body></html>`, failure.MalformedResponse, "", false},
	{"nothing", 200, ``, failure.ConnectionLost, "", false},
	{"too large", 200, `{"choices":[],"padding":"` + strings.Repeat("x", maxBody) + `"}`, failure.ContractViolation, "", false},
	{"too large an error", 503, `{"error":{"message":"` + strings.Repeat("x", maxBody) + `"}}`, failure.Overloaded, "", false},

	{"bad request", 400, `{"error":{"message":"bad","type":"invalid_request_error"}}`, failure.BadRequest, "", false},
	{"context too long", 400, `{"error":{"message":"too long","code":"context_length_exceeded"}}`, failure.ContextTooLong, "", false},
	{"filtered input", 400, `{"error":{"message":"no","code":"content_filter"}}`, failure.ContentFilter, "", false},
	{"unauthorized", 401, `{"error":{"message":"no","code":"invalid_api_key"}}`, failure.Unauthorized, "", false},
	{"quota", 429, `{"error":{"message":"pay","code":"insufficient_quota"}}`, failure.QuotaExhausted, "", false},
	{"rate limited", 429, `{"error":{"message":"slow","code":"rate_limit_exceeded"}}`, failure.RateLimited, "", false},
	{"model not found", 404, `{"error":{"message":"no","code":"model_not_found"}}`, failure.ModelNotFound, "", false},
	{"foreign error shape", 500, `{"error":"model runner has stopped"}`, failure.ServerError, "", false},
	{"error without a body", 502, ``, failure.ServerError, "", false},
	{"error page", 503, `<html>Service Unavailable</html>`, failure.Overloaded, "", false},
	{"gateway timeout", 504, `{}`, failure.Timeout, "", false},
	{"conflict", 409, `{}`, failure.Conflict, "", false},
	{"integer code", 404, `{"object":"error","message":"The model does not exist.","code":404}`, failure.ModelNotFound, "", false},
	{"redirect to another method", 302, `{}`, failure.MalformedResponse, "", false},
	{"redirect", 307, `{}`, failure.MalformedResponse, "", false},
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, tt := range responses {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// The SDK retries when it is told to, and follows redirects to the same host: neither may happen.
			s := serve(t, reply(tt.status, tt.body, "X-Request-Id", "req_42", "X-Should-Retry", "true", "Retry-After", "0", "Location", "/elsewhere"))
			got, err := provider(t, OpenAIConfig{BaseURL: s.URL}).Call(within(t), question(t))
			expect(t, err, tt.reason)
			if n := len(s.received()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
			if got.HTTPStatus != tt.status || got.ProviderRequestID != "req_42" {
				t.Errorf("status %d, request id %q", got.HTTPStatus, got.ProviderRequestID)
			}
			bound := maxErrorBody
			if tt.status == 200 {
				bound = maxBody
			}
			if want := tt.body[:min(len(tt.body), bound)]; string(got.Raw) != want {
				t.Errorf("raw body is %d bytes, want the %d received", len(got.Raw), len(want))
			}
			checkReading(t, got, tt.content, tt.paid)
		})
	}
}

// A body of status 2xx reads the same when it comes from the ledger.
func TestParseSavedAgreesWithCall(t *testing.T) {
	t.Parallel()
	for _, tt := range responses {
		if tt.status != 200 {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseSaved("openai", []byte(tt.body)[:min(len(tt.body), maxBody)])
			expect(t, err, tt.reason)
			checkReading(t, got, tt.content, tt.paid)
			if tt.paid && got.ProviderRequestID != "chatcmpl-1" {
				t.Errorf("request id is %q, want the response's", got.ProviderRequestID)
			}
		})
	}
	if _, err := ParseSaved("nobody", []byte(answered)); err == nil {
		t.Error("a body of an unknown provider was parsed")
	}
}

func expect(t *testing.T, err error, reason failure.Reason) {
	t.Helper()
	if reason == "" {
		if err != nil {
			t.Errorf("error is %v, want none", err)
		}
		return
	}
	var f *failure.Failure
	if !errors.As(err, &f) {
		t.Fatalf("error is %v, want a failure", err)
	}
	if f.Reason != reason || f.Class != reason.Class() {
		t.Errorf("failure is %s %s (%s), want %s", f.Class, f.Reason, f.Detail, reason)
	}
}

func checkReading(t *testing.T, got Response, content string, paid bool) {
	t.Helper()
	if got.Content != content {
		t.Errorf("content is %q, want %q", got.Content, content)
	}
	wantUsage, wantModel := evaluation.Usage{}, ""
	if paid {
		wantUsage, wantModel = usage, "gpt-test-2026-01-01"
	}
	if got.Usage != wantUsage || got.ServedModel != wantModel {
		t.Errorf("usage %+v by %q, want %+v by %q", got.Usage, got.ServedModel, wantUsage, wantModel)
	}
}

func TestFailureCarriesStatusRetryAfterAndTheProvidersMessage(t *testing.T) {
	t.Parallel()
	s := serve(t, reply(429, `{"error":{"message":"Rate limit\nreached\u0000","code":"rate_limit_exceeded"}}`, "Retry-After-Ms", "1500"))
	_, err := provider(t, OpenAIConfig{BaseURL: s.URL}).Call(within(t), question(t))
	var f *failure.Failure
	if !errors.As(err, &f) {
		t.Fatal(err)
	}
	if f.HTTPStatus != 429 || f.RetryAfter != 1500*time.Millisecond || f.Detail != "Rate limit reached" {
		t.Errorf("failure is %+v", f)
	}

	date := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	s = serve(t, reply(503, `{}`, "Retry-After", date))
	_, err = provider(t, OpenAIConfig{BaseURL: s.URL}).Call(within(t), question(t))
	if !errors.As(err, &f) || f.RetryAfter < 50*time.Second || f.RetryAfter > time.Minute {
		t.Errorf("failure for a date in a minute is %+v", f)
	}
}

func TestCompressedBodyIsKeptAsText(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, answered)
		_ = z.Close()
	})
	got, err := provider(t, OpenAIConfig{BaseURL: s.URL}).Call(within(t), question(t))
	if err != nil || string(got.Raw) != answered || got.Content != answer {
		t.Errorf("response is %+v, %v", got, err)
	}
}

// The cap is on what is read, however small it was on the wire.
func TestCompressedBodyCannotFillTheMemory(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		zeros := make([]byte, 1<<20)
		for range 8 {
			if _, err := z.Write(zeros); err != nil {
				return
			}
		}
		_ = z.Close()
	})
	got, err := provider(t, OpenAIConfig{BaseURL: s.URL}).Call(within(t), question(t))
	expect(t, err, failure.ContractViolation)
	if len(got.Raw) != maxBody {
		t.Errorf("kept %d bytes, want %d", len(got.Raw), maxBody)
	}
}

// What a provider says of itself goes into columns that refuse NUL, invalid UTF-8 and negative counts.
func TestWhatIsStoredIsStorable(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body string
		want Response
	}{
		"names": {
			`{"id":"a\u0000b\u202e\ud800","model":"` + strings.Repeat("é", 150) + `","choices":[]}`,
			Response{ProviderRequestID: "ab", ServedModel: strings.Repeat("é", 100)},
		},
		"negative": {
			`{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":-5,"prompt_tokens_details":{"cached_tokens":3}}}`,
			Response{},
		},
		"parts larger than the whole": {
			`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":9},"completion_tokens_details":{"reasoning_tokens":9}}}`,
			Response{Usage: evaluation.Usage{InputTokens: 5, CachedInputTokens: 5, OutputTokens: 7, ReasoningTokens: 7}},
		},
		"counts that are no counts": {
			`{"choices":[],"usage":{"prompt_tokens":"many","completion_tokens":1e99,"prompt_tokens_details":null}}`,
			Response{},
		},
		"one bad count spoils no other": {
			`{"choices":[],"usage":{"prompt_tokens":1.5,"completion_tokens":7,"completion_tokens_details":[]}}`,
			Response{Usage: evaluation.Usage{OutputTokens: 7}},
		},
	} {
		got, err := ParseSaved("openai", []byte(tt.body))
		expect(t, err, failure.EmptyAnswer)
		if got.Usage != tt.want.Usage || got.ServedModel != tt.want.ServedModel || got.ProviderRequestID != tt.want.ProviderRequestID {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func FuzzParseSaved(f *testing.F) {
	for _, tt := range responses {
		if len(tt.body) < 4096 {
			f.Add([]byte(tt.body))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := ParseSaved("openai", raw)
		var fail *failure.Failure
		if err != nil && (!errors.As(err, &fail) || fail.Class == "" || fail.Reason.Class() != fail.Class) {
			t.Fatalf("error is %#v", err)
		}
		if err == nil && strings.TrimSpace(got.Content) == "" {
			t.Error("an answer without text")
		}
		u := got.Usage
		if u.CachedInputTokens < 0 || u.ReasoningTokens < 0 || u.CachedInputTokens > u.InputTokens || u.ReasoningTokens > u.OutputTokens {
			t.Errorf("usage is %+v", u)
		}
		if strings.ContainsRune(got.ServedModel+got.ProviderRequestID, 0) || len(got.ServedModel) > maxLabel {
			t.Errorf("names are %q and %q", got.ServedModel, got.ProviderRequestID)
		}
		if again, _ := ParseSaved("openai", raw); fmt.Sprint(again) != fmt.Sprint(got) {
			t.Error("one body reads in two ways")
		}
	})
}
