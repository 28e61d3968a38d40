package inference

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

// outcome is what a provider may answer, and what becomes of it. paid means that the usage, the served model and
// the request's id are known beside the failure.
type outcome struct {
	name    string
	status  int
	body    string
	reason  failure.Reason // "" is an answer
	content string
	paid    bool
}

// outcomes are those of the protocol and those that no protocol decides.
func (d dialect) outcomes() []outcome {
	own := map[string][]outcome{"openai": chatOutcomes, "openai_responses": responseOutcomes, "anthropic": messageOutcomes}
	return slices.Concat([]outcome{
		{"answer", 200, d.answered, "", answer, true},
		{"more after the JSON", 200, d.answered + `{}`, failure.ContractViolation, "", false},
	}, own[d.provider], anyOutcomes)
}

var anyOutcomes = []outcome{
	{"another protocol", 200, `{"status":"ok"}`, failure.MalformedResponse, "", false},
	{"list", 200, `[{"choices":[]}]`, failure.MalformedResponse, "", false},
	{"error with a success's status", 200, `{"error":{"message":"overloaded","code":503}}`, failure.Overloaded, "", false},
	{"broken JSON, whole by its framing", 200, `{"choices":[{"message":{"content":NaN}}]}`, failure.ContractViolation, "", false},
	{"gateway's page", 200, `<html><body>maintenance</body></html>`, failure.MalformedResponse, "", false},
	{"nothing", 200, ``, failure.ConnectionLost, "", false},
	{"too large", 200, `{"padding":"` + strings.Repeat("x", maxBody) + `"}`, failure.ContractViolation, "", false},
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

// completion is a chat completion with one choice: the message's members and the finish reason as JSON.
func completion(message, finish string) string {
	return `{"id":"chatcmpl-1","model":"gpt-test-2026-01-01","choices":[{"index":0,"message":{"role":"assistant",` + message +
		`},"finish_reason":` + finish + `}],"usage":{"prompt_tokens":120,"completion_tokens":30,` +
		`"prompt_tokens_details":{"cached_tokens":100},"completion_tokens_details":{"reasoning_tokens":10}}}`
}

const noChoices = `{"id":"chatcmpl-1","model":"gpt-test-2026-01-01","choices":[],"usage":{"prompt_tokens":120,"completion_tokens":30,` +
	`"prompt_tokens_details":{"cached_tokens":100},"completion_tokens_details":{"reasoning_tokens":10}}}`

var chatOutcomes = []outcome{
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
	{"Azure's filter on what was asked", 400, `{"error":{"message":"The response was filtered.","code":"content_filter","status":400,` +
		`"innererror":{"code":"ResponsibleAIPolicyViolation","content_filter_result":{"violence":{"filtered":true}}}}}`, failure.ContentFilter, "", false},
	{"Azure's filter on what was answered", 200, strings.Replace(completion(`"content":"{}"`, `"stop"`), `"index":0`,
		`"index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}`, 1), "", "{}", true},
	{
		"OpenRouter's model failed midway", 200, `{"id":"gen-1","choices":[{"error":{"code":502,"message":"lost"},"message":{"content":""},"finish_reason":"error"}]}`,
		failure.ServerError, "", false,
	},
}

// response is a response with the usage of all: the status and what follows as members, and the output as JSON.
func response(status, output string) string {
	return `{"id":"resp_1","object":"response","error":null,"model":"gpt-test-2026-01-01","status":` + status + `,"output":` + output + `,` +
		`"usage":{"input_tokens":120,"input_tokens_details":{"cached_tokens":100},"output_tokens":30,"output_tokens_details":{"reasoning_tokens":10}}}`
}

// said is the output of one message with the parts.
func said(parts string) string {
	return `[{"type":"message","role":"assistant","content":[` + parts + `]}]`
}

const (
	capped   = `"incomplete","incomplete_details":{"reason":"max_output_tokens"}`
	filtered = `"incomplete","incomplete_details":{"reason":"content_filter"}`
)

var responseOutcomes = []outcome{
	{"text that is no answer is for the validator", 200, response(`"completed"`, said(`{"type":"output_text","text":"I think billing."}`)), "", "I think billing.", true},
	{"answer in parts", 200, response(`"completed"`, said(`{"type":"output_text","text":"{"},{"type":"output_text","text":"}"}`)), "", "{}", true},
	{"comments before the answer", 200, response(`"completed"`, `[{"type":"message","phase":"commentary","content":[{"type":"output_text","text":"Let me see."}]},`+
		`{"type":"message","phase":"final_answer","content":[{"type":"output_text","text":"{}"}]}]`), "", "{}", true},
	{"what is no message says nothing", 200, response(`"completed"`, `[{"type":"message","content":[{"type":"output_text","text":"{}"}]},`+
		`{"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"},{"type":"refusal","refusal":"no"}]}]`), "", "{}", true},
	{"no status", 200, response(`null`, said(`{"type":"output_text","text":"{}"}`)), "", "{}", true},
	{"whole value at the cap", 200, response(capped, said(`{"type":"output_text","text":"{\"is_urgent\":1} "}`)), "", `{"is_urgent":1} `, true},
	{"cut at the cap", 200, response(capped, said(`{"type":"output_text","text":"{\"is_urgent\":0."}`)), failure.Truncated, `{"is_urgent":0.`, true},
	{"nothing before the cap", 200, response(capped, `[{"type":"reasoning","summary":[]}]`), failure.Truncated, "", true},
	{"filtered", 200, response(filtered, said(`{"type":"output_text","text":"{\"is_ur"}`)), failure.ContentFilter, `{"is_ur`, true},
	{"incomplete for another reason", 200, response(`"incomplete","incomplete_details":{"reason":"steered"}`, said(`{"type":"output_text","text":"{}"}`)), "", "{}", true},
	{"refusal", 200, response(`"completed"`, said(`{"type":"refusal","refusal":"I cannot help"}`)), failure.Refusal, "", true},
	{"no output", 200, response(`"completed"`, `[]`), failure.EmptyAnswer, "", true},
	{"no content", 200, response(`"completed"`, `[{"type":"message","content":null}]`), failure.EmptyAnswer, "", true},
	{"null text", 200, response(`"completed"`, said(`{"type":"output_text","text":null}`)), failure.EmptyAnswer, "", true},
	{"empty text", 200, response(`"completed"`, said(`{"type":"output_text","text":""}`)), failure.EmptyAnswer, "", true},
	{"content of another type", 200, response(`"completed"`, `[{"type":"message","content":"{}"}]`), failure.EmptyAnswer, "", true},
	{"tool call", 200, response(`"completed"`, `[{"type":"function_call","arguments":"{}"}]`), failure.EmptyAnswer, "", true},
	{"output null", 200, `{"status":"completed","output":null}`, failure.MalformedResponse, "", false},
	{"failed", 200, `{"status":"failed","error":{"code":"server_error","message":"no"},"output":[]}`, failure.ServerError, "", false},
	{"failed, throttled", 200, `{"status":"failed","error":{"code":"rate_limit_exceeded","message":"no"},"output":[]}`, failure.RateLimited, "", false},
	{"failed without an error", 200, `{"status":"failed","error":null,"output":[]}`, failure.MalformedResponse, "", false},
	{"not begun", 200, `{"status":"queued","error":null,"output":[]}`, failure.MalformedResponse, "", false},
}

// message is a message with the usage of all: the stop reason as JSON and the content's blocks.
func message(stop, blocks string) string {
	return `{"id":"msg_1","type":"message","role":"assistant","model":"gpt-test-20260101","content":[` + blocks + `],"stop_reason":` + stop + `,` +
		`"usage":{"input_tokens":20,"cache_read_input_tokens":100,"output_tokens":30,"output_tokens_details":{"thinking_tokens":10}}}`
}

var messageOutcomes = []outcome{
	{"text that is no answer is for the validator", 200, message(`"end_turn"`, `{"type":"text","text":"I think billing."}`), "", "I think billing.", true},
	{"answer in blocks", 200, message(`"stop_sequence"`, `{"type":"text","text":"{"},{"type":"thinking","text":"no"},{"type":"text","text":"}"}`), "", "{}", true},
	{"stop reason of another kind", 200, message(`"pause_turn"`, `{"type":"text","text":"{}"}`), "", "{}", true},
	{"no stop reason", 200, message(`null`, `{"type":"text","text":"{}"}`), "", "{}", true},
	{"whole value at the cap", 200, message(`"max_tokens"`, `{"type":"text","text":"{\"is_urgent\":1} "}`), "", `{"is_urgent":1} `, true},
	{"cut at the cap", 200, message(`"max_tokens"`, `{"type":"text","text":"{\"is_urgent\":0."}`), failure.Truncated, `{"is_urgent":0.`, true},
	{"nothing before the cap", 200, message(`"max_tokens"`, `{"type":"thinking","thinking":"hm"}`), failure.Truncated, "", true},
	{"cut at the end of the context", 200, message(`"model_context_window_exceeded"`, `{"type":"text","text":"{"}`), failure.Truncated, "{", true},
	{"refusal", 200, message(`"refusal"`, ``), failure.Refusal, "", true},
	{"refusal midway", 200, message(`"refusal"`, `{"type":"text","text":"{\"is_ur"}`), failure.Refusal, `{"is_ur`, true},
	{"no content", 200, message(`"end_turn"`, ``), failure.EmptyAnswer, "", true},
	{"null content", 200, `{"type":"message","content":null,"stop_reason":"end_turn"}`, failure.EmptyAnswer, "", false},
	{"null text", 200, message(`"end_turn"`, `{"type":"text","text":null}`), failure.EmptyAnswer, "", true},
	{"empty text", 200, message(`"end_turn"`, `{"type":"text","text":""}`), failure.EmptyAnswer, "", true},
	{"content of another type", 200, `{"type":"message","content":"{}"}`, failure.EmptyAnswer, "", false},
	{"tool call", 200, message(`"tool_use"`, `{"type":"tool_use","input":{}}`), failure.EmptyAnswer, "", true},
	{"error with a success's status", 200, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, failure.Overloaded, "", false},
	{
		"spend limit", 429, `{"type":"error","error":{"type":"rate_limit_error","message":"no","details":{"error_code":"enforced_spend_limit_reached"}}}`,
		failure.QuotaExhausted, "", false,
	},
	{
		"usage limit", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits."}}`,
		failure.QuotaExhausted, "", false,
	},
	{"overloaded", 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, failure.Overloaded, "", false},
}

func TestOutcomes(t *testing.T) { eachDialect(t, everyOutcome) }

func everyOutcome(t *testing.T, d dialect) {
	for _, tt := range d.outcomes() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// The SDKs retry when they are told to, and follow redirects to the same host: neither may happen.
			s := serve(t, reply(tt.status, tt.body, d.request, "req_42", "X-Should-Retry", "true", "Retry-After", "0", "Location", "/elsewhere"))
			got, err := d.client(t, Config{BaseURL: s.URL}).Call(within(t), d.question(t))
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
			d.checkReading(t, got, tt.content, tt.paid)
		})
	}
}

// A body of status 2xx reads the same when it comes from the ledger.
func TestParseSavedAgreesWithCall(t *testing.T) { eachDialect(t, parseSavedAgrees) }

func parseSavedAgrees(t *testing.T, d dialect) {
	for _, tt := range d.outcomes() {
		if tt.status != 200 {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseSaved(d.provider, []byte(tt.body)[:min(len(tt.body), maxBody)])
			expect(t, err, tt.reason)
			d.checkReading(t, got, tt.content, tt.paid)
			if tt.paid && got.ProviderRequestID != d.id {
				t.Errorf("request id is %q, want the response's", got.ProviderRequestID)
			}
		})
	}
	if _, err := ParseSaved("nobody", []byte(d.answered)); err == nil {
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

func (d dialect) checkReading(t *testing.T, got Response, content string, paid bool) {
	t.Helper()
	if got.Content != content {
		t.Errorf("content is %q, want %q", got.Content, content)
	}
	wantUsage, wantModel := evaluation.Usage{}, ""
	if paid {
		wantUsage, wantModel = usage, d.model
	}
	if got.Usage != wantUsage || got.ServedModel != wantModel {
		t.Errorf("usage %+v by %q, want %+v by %q", got.Usage, got.ServedModel, wantUsage, wantModel)
	}
}

func TestFailureCarriesStatusRetryAfterAndTheProvidersMessage(t *testing.T) {
	eachDialect(t, failureCarriesWhatIsKnown)
}

func failureCarriesWhatIsKnown(t *testing.T, d dialect) {
	s := serve(t, reply(429, `{"error":{"message":"Rate limit\nreached\u0000","code":"rate_limit_exceeded"}}`, "Retry-After-Ms", "1500"))
	_, err := d.client(t, Config{BaseURL: s.URL}).Call(within(t), d.question(t))
	var f *failure.Failure
	if !errors.As(err, &f) {
		t.Fatal(err)
	}
	if f.HTTPStatus != 429 || f.RetryAfter != 1500*time.Millisecond || f.Detail != "Rate limit reached" {
		t.Errorf("failure is %+v", f)
	}

	date := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	s = serve(t, reply(503, `{}`, "Retry-After", date))
	_, err = d.client(t, Config{BaseURL: s.URL}).Call(within(t), d.question(t))
	if !errors.As(err, &f) || f.RetryAfter < 50*time.Second || f.RetryAfter > time.Minute {
		t.Errorf("failure for a date in a minute is %+v", f)
	}
}

func TestCompressedBodyIsKeptAsText(t *testing.T) { eachDialect(t, compressedBodyIsKeptAsText) }

func compressedBodyIsKeptAsText(t *testing.T, d dialect) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, d.answered)
		_ = z.Close()
	})
	got, err := d.client(t, Config{BaseURL: s.URL}).Call(within(t), d.question(t))
	if err != nil || string(got.Raw) != d.answered || got.Content != answer {
		t.Errorf("response is %+v, %v", got, err)
	}
}

// The cap is on what is read, however small it was on the wire.
func TestCompressedBodyCannotFillTheMemory(t *testing.T) {
	eachDialect(t, compressedBodyCannotFillTheMemory)
}

func compressedBodyCannotFillTheMemory(t *testing.T, d dialect) {
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
	got, err := d.client(t, Config{BaseURL: s.URL}).Call(within(t), d.question(t))
	expect(t, err, failure.ContractViolation)
	if len(got.Raw) != maxBody {
		t.Errorf("kept %d bytes, want %d", len(got.Raw), maxBody)
	}
}

// What a provider says of itself goes into columns that refuse NUL, invalid UTF-8 and negative counts.
func TestWhatIsStoredIsStorable(t *testing.T) {
	t.Parallel()
	names := `{"id":"a\u0000b\u202e\ud800","model":"` + strings.Repeat("é", 150) + `",`
	named := Response{ProviderRequestID: "ab", ServedModel: strings.Repeat("é", 100)}
	of := func(input, cached, written, output, reasoning int64) Response {
		return Response{Usage: evaluation.Usage{
			InputTokens: input, CachedInputTokens: cached, CacheWriteTokens: written, OutputTokens: output, ReasoningTokens: reasoning,
		}}
	}
	for _, tt := range []struct {
		provider, name, body string
		want                 Response
	}{
		{"openai", "names", names + `"choices":[]}`, named},
		{"openai", "negative", `{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":-5,"prompt_tokens_details":{"cached_tokens":3}}}`, Response{}},
		{"openai", "parts larger than the whole", `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":9},` +
			`"completion_tokens_details":{"reasoning_tokens":9}}}`, of(5, 5, 0, 7, 7)},
		{"openai", "counts that are no counts", `{"choices":[],"usage":{"prompt_tokens":"many","completion_tokens":1e99,"prompt_tokens_details":null}}`, Response{}},
		{"openai", "one bad count spoils no other", `{"choices":[],"usage":{"prompt_tokens":1.5,"completion_tokens":7,"completion_tokens_details":[]}}`, of(0, 0, 0, 7, 0)},
		{"openai", "written to the cache", `{"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":2,"cache_write_tokens":4}}}`, of(9, 2, 4, 0, 0)},

		{"openai_responses", "names", names + `"output":[]}`, named},
		{"openai_responses", "negative", `{"output":[],"usage":{"input_tokens":-1,"output_tokens":-5,"input_tokens_details":{"cached_tokens":3}}}`, Response{}},
		{"openai_responses", "parts larger than the whole", `{"output":[],"usage":{"input_tokens":5,"output_tokens":7,"input_tokens_details":{"cached_tokens":9},` +
			`"output_tokens_details":{"reasoning_tokens":9}}}`, of(5, 5, 0, 7, 7)},
		{"openai_responses", "one bad count spoils no other", `{"output":[],"usage":{"input_tokens":"many","output_tokens":7,"output_tokens_details":[]}}`, of(0, 0, 0, 7, 0)},
		{"openai_responses", "written to the cache", `{"output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":2,"cache_write_tokens":4}}}`, of(9, 2, 4, 0, 0)},

		{"anthropic", "names", names + `"content":[]}`, named},
		{"anthropic", "negative", `{"content":[],"usage":{"input_tokens":-1,"output_tokens":-5,"cache_read_input_tokens":-3}}`, Response{}},
		{"anthropic", "a negative part takes nothing away", `{"content":[],"usage":{"input_tokens":5,"cache_read_input_tokens":-3,"cache_creation_input_tokens":2}}`, of(7, 0, 2, 0, 0)},
		{"anthropic", "the cache is counted apart", `{"content":[],"usage":{"input_tokens":5,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,"output_tokens":7,` +
			`"output_tokens_details":{"thinking_tokens":9}}}`, of(125, 100, 20, 7, 7)},
		{"anthropic", "no sum overflows", `{"content":[],"usage":{"input_tokens":9223372036854775807,"cache_read_input_tokens":9223372036854775807,` +
			`"cache_creation_input_tokens":9223372036854775807}}`, of(3*(math.MaxInt64/4), math.MaxInt64/4, math.MaxInt64/4, 0, 0)},
		{"anthropic", "one bad count spoils no other", `{"content":[],"usage":{"input_tokens":"many","cache_read_input_tokens":null,"output_tokens":7,"output_tokens_details":[]}}`, of(0, 0, 0, 7, 0)},
	} {
		got, err := ParseSaved(tt.provider, []byte(tt.body))
		expect(t, err, failure.EmptyAnswer)
		if got.Usage != tt.want.Usage || got.ServedModel != tt.want.ServedModel || got.ProviderRequestID != tt.want.ProviderRequestID {
			t.Errorf("%s, %s: %+v, want %+v", tt.provider, tt.name, got, tt.want)
		}
	}
}

func FuzzParseSaved(f *testing.F) {
	for _, d := range dialects {
		for _, tt := range d.outcomes() {
			if len(tt.body) < 4096 {
				f.Add([]byte(tt.body))
			}
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, d := range dialects {
			got, err := ParseSaved(d.provider, raw)
			var fail *failure.Failure
			if err != nil && (!errors.As(err, &fail) || fail.Class == "" || fail.Reason.Class() != fail.Class) {
				t.Fatalf("%s: error is %#v", d.provider, err)
			}
			if err == nil && strings.TrimSpace(got.Content) == "" {
				t.Errorf("%s: an answer without text", d.provider)
			}
			if u := got.Usage; u != u.Bounded() {
				t.Errorf("%s: usage is %+v", d.provider, u)
			}
			if strings.ContainsRune(got.ServedModel+got.ProviderRequestID, 0) || len(got.ServedModel) > maxLabel {
				t.Errorf("%s: names are %q and %q", d.provider, got.ServedModel, got.ProviderRequestID)
			}
			if again, _ := ParseSaved(d.provider, raw); fmt.Sprint(again) != fmt.Sprint(got) {
				t.Errorf("%s: one body reads in two ways", d.provider)
			}
		}
	})
}
