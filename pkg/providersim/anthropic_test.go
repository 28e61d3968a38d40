package providersim_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/providersim"
)

func officialAnthropic(t *testing.T, sim *providersim.Server, more ...option.RequestOption) anthropic.Client {
	t.Helper()
	return anthropic.NewClient(append([]option.RequestOption{
		option.WithBaseURL(sim.URL()), option.WithAPIKey("sk-test"), option.WithMaxRetries(0),
		option.WithHTTPClient(connections(t)),
	}, more...)...)
}

func messageParams(subject, message string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model:     "claude-haiku-5-5",
		MaxTokens: 200,
		System: []anthropic.TextBlockParam{{
			Text: instructions + strings.Repeat("Be careful. ", 60), CacheControl: anthropic.NewCacheControlEphemeralParam(),
		}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(marked(subject, message)))},
		OutputConfig: anthropic.OutputConfigParam{
			Effort: anthropic.OutputConfigEffortLow,
			Format: anthropic.JSONOutputFormatParam{Schema: schema("billing", "technical_support", "account_access")},
		},
	}
}

// rawMessage is the request of messageParams, to be bent by a test.
func rawMessage(message string) map[string]any {
	return map[string]any{
		"model": "claude-haiku-5-5", "max_tokens": 200, "system": instructions,
		"messages": []map[string]any{{"role": "user", "content": marked("Help", message)}},
		"output_config": map[string]any{"format": map[string]any{
			"type": "json_schema", "schema": schema("billing", "technical_support", "account_access"),
		}},
	}
}

func askAnthropic(t *testing.T, sim *providersim.Server, body any, headers ...string) reply {
	t.Helper()
	return mustDo(t, connections(t), http.MethodPost, sim.URL()+"/v1/messages", body, append([]string{"Anthropic-Version", "2026-10-21"}, headers...)...)
}

func TestAnswersAnthropicsClient(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{
		APIKeys: []string{"sk-test"},
		Prices: providersim.Prices{
			InputUSDPerMTok: decimal.RequireFromString("1"), CachedInputUSDPerMTok: decimal.RequireFromString("0.1"),
			OutputUSDPerMTok: decimal.RequireFromString("5"),
		},
	})
	var sent *http.Response
	client := officialAnthropic(t, sim, option.WithResponseInto(&sent))
	p := messageParams("Charged twice", "My invoice was paid twice, I need a refund")
	got, err := client.Messages.New(testContext(t), p, option.WithHeader("X-Evalonce-Key", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Department string }
	if len(got.Content) != 1 || json.Unmarshal([]byte(got.Content[0].Text), &answer) != nil || answer.Department != "billing" {
		t.Errorf("content %s", got.RawJSON())
	}
	if !strings.HasPrefix(got.ID, "msg_") || got.StopReason != anthropic.StopReasonEndTurn || got.Model != "claude-haiku-5-5-2026-01-01" {
		t.Errorf("message %s", got.RawJSON())
	}
	u := got.Usage
	if u.InputTokens == 0 || u.OutputTokens == 0 || u.CacheCreationInputTokens == 0 || u.CacheReadInputTokens != 0 ||
		u.CacheCreation.Ephemeral5mInputTokens != u.CacheCreationInputTokens {
		t.Errorf("usage %s", u.RawJSON())
	}

	e := onlyEntry(t, sim)
	if e.Outcome != providersim.Answered || !e.Billed || e.Status != http.StatusOK || e.Protocol != "anthropic" || e.Headers["x-evalonce-key"] != "k1" {
		t.Errorf("entry %+v", e)
	}
	if e.RequestID != sent.Header.Get("Request-Id") || e.RequestID == "" {
		t.Errorf("request id %q in the ledger, %q in the response", e.RequestID, sent.Header.Get("Request-Id"))
	}
	if want := providersim.FingerprintOf("Charged twice", "My invoice was paid twice, I need a refund"); e.Content != want {
		t.Errorf("content %s, want %s", e.Content, want)
	}
	if e.InputTokens != u.InputTokens+u.CacheCreationInputTokens || e.CacheWriteTokens != u.CacheCreationInputTokens || e.OutputTokens != u.OutputTokens {
		t.Errorf("entry %+v, usage %s", e, u.RawJSON())
	}
	want := decimal.NewFromInt(u.InputTokens).
		Add(decimal.NewFromInt(u.CacheCreationInputTokens).Mul(decimal.RequireFromString("1.25"))).
		Add(decimal.NewFromInt(5 * u.OutputTokens)).Div(decimal.NewFromInt(1_000_000))
	if !e.CostUSD.Equal(want) {
		t.Errorf("cost %s, want %s", e.CostUSD, want)
	}

	again, err := client.Messages.New(testContext(t), p)
	if err != nil {
		t.Fatal(err)
	}
	if again.Usage.CacheReadInputTokens != u.CacheCreationInputTokens || again.Usage.CacheCreationInputTokens != 0 || again.Usage.InputTokens != u.InputTokens {
		t.Errorf("the second time: %s", again.Usage.RawJSON())
	}
	if second := sim.Ledger(1)[0]; !second.CostUSD.LessThan(e.CostUSD) || second.CachedInputTokens != u.CacheCreationInputTokens {
		t.Errorf("a cached prefix costs no less: %+v", second)
	}
	p.System[0].CacheControl = anthropic.CacheControlEphemeralParam{}
	if uncached, err := client.Messages.New(testContext(t), p); err != nil || uncached.Usage.CacheReadInputTokens != 0 {
		t.Errorf("nobody asked for caching: %+v, %v", uncached, err)
	}
	if stats := sim.Stats(); stats.CacheWriteTokens != u.CacheCreationInputTokens || stats.CachedInputTokens != u.CacheCreationInputTokens {
		t.Errorf("stats %+v", stats)
	}
}

func TestAnthropicNamedErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   providersim.Error
		status int
		kind   string
		code   anthropic.ErrorCode
		says   string
	}{
		{providersim.RateLimit, 429, "rate_limit_error", "", "rate limit"},
		{providersim.SlowDown, 429, "rate_limit_error", "ramp_limit_exceeded", ""},
		{providersim.InsufficientQuota, 429, "rate_limit_error", "enforced_spend_limit_reached", "monthly API usage threshold"},
		{providersim.SpendLimit, 400, "invalid_request_error", "", "reached your specified API usage limits"},
		{providersim.InvalidAPIKey, 401, "authentication_error", "", "x-api-key"},
		{providersim.Forbidden, 403, "permission_error", "", ""},
		{providersim.ModelNotFound, 404, "not_found_error", "", "model: claude-haiku-5-5"},
		{providersim.Overloaded503, 503, "api_error", "", ""},
		{providersim.ServerError500, 500, "api_error", "", ""},
		{providersim.BadGateway502, 502, "", "", ""},
		{providersim.GatewayTimeout504, 504, "timeout_error", "", ""},
		{providersim.Overloaded529, 529, "overloaded_error", "", "Overloaded"},
		{providersim.ContextLength, 400, "invalid_request_error", "", "prompt is too long"},
		{providersim.ContentFilter400, 400, "invalid_request_error", "", "content filtering policy"},
		{providersim.BadSchema400, 400, "invalid_request_error", "", "output_config.format.schema"},
		{providersim.Conflict409, 409, "conflict_error", "", ""},
		{providersim.RequestTimeout408, 408, "timeout_error", "", ""},
		{providersim.RequestTooLarge413, 413, "request_too_large", "", ""},
	} {
		t.Run(string(tc.name), func(t *testing.T) {
			t.Parallel()
			sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{Error: tc.name, RetryAfter: 1500 * time.Millisecond})})
			client := officialAnthropic(t, sim)
			_, err := client.Messages.New(testContext(t), messageParams("Help", "Hello"))
			var problem *anthropic.Error
			if !errors.As(err, &problem) {
				t.Fatalf("got %v", err)
			}
			if problem.StatusCode != tc.status || string(problem.Type()) != tc.kind || problem.ErrorCode() != tc.code || !strings.Contains(problem.Message, tc.says) {
				t.Errorf("status %d, type %q, code %q: %s", problem.StatusCode, problem.Type(), problem.ErrorCode(), problem.RawJSON())
			}
			if problem.RequestID == "" || problem.Response.Header.Get("Retry-After") != "2" {
				t.Errorf("headers %v", problem.Response.Header)
			}
			if e := onlyEntry(t, sim); e.Outcome != providersim.Failed || e.Billed || e.Status != tc.status {
				t.Errorf("entry %+v", e)
			}
		})
	}
}

func TestAnthropicOddAnswers(t *testing.T) {
	t.Parallel()
	type message struct {
		Type       string
		Model      string
		Content    []struct{ Text string }
		StopReason string `json:"stop_reason"`
		Usage      *struct{}
		Error      *struct{ Message string }
	}
	for _, tc := range []struct {
		action providersim.Action
		holds  func(body []byte, m message) bool
	}{
		{providersim.Action{Answer: providersim.AnswerBadJSON}, func(b []byte, _ message) bool { return len(b) > 0 && !json.Valid(b) }},
		{providersim.Action{Answer: providersim.AnswerEmptyBody}, func(b []byte, _ message) bool { return len(b) == 0 }},
		{providersim.Action{Answer: providersim.AnswerErrorBody}, func(_ []byte, m message) bool { return m.Type == "error" && m.Error.Message != "" }},
		{providersim.Action{Answer: providersim.AnswerEmptyChoices}, func(_ []byte, m message) bool { return m.Content != nil && len(m.Content) == 0 }},
		{providersim.Action{Answer: providersim.AnswerNullContent}, func(_ []byte, m message) bool { return m.Type == "message" && m.Content == nil }},
		{providersim.Action{Answer: providersim.AnswerEmptyContent}, func(_ []byte, m message) bool { return m.Content[0].Text == "" }},
		{providersim.Action{Answer: providersim.AnswerRefusal}, func(_ []byte, m message) bool { return m.StopReason == "refusal" && len(m.Content) == 0 }},
		{providersim.Action{Answer: providersim.AnswerContentFilter}, func(_ []byte, m message) bool { return m.StopReason == "refusal" }},
		{providersim.Action{Answer: providersim.AnswerTruncated}, func(_ []byte, m message) bool {
			return m.StopReason == "max_tokens" && !json.Valid([]byte(m.Content[0].Text))
		}},
		{providersim.Action{Answer: providersim.AnswerLength}, func(_ []byte, m message) bool {
			return m.StopReason == "max_tokens" && json.Valid([]byte(m.Content[0].Text))
		}},
		{providersim.Action{Answer: providersim.AnswerNoUsage}, func(_ []byte, m message) bool { return m.Usage == nil && len(m.Content) == 1 }},
		{providersim.Action{Content: "{}", FinishReason: "pause_turn", ServedModel: "other"}, func(_ []byte, m message) bool {
			return m.Content[0].Text == "{}" && m.StopReason == "pause_turn" && m.Model == "other"
		}},
	} {
		sim := start(t, providersim.Options{Script: script(providersim.Match{}, tc.action)})
		got := askAnthropic(t, sim, rawMessage("Hello"))
		var m message
		if json.Valid(got.body) {
			if err := json.Unmarshal(got.body, &m); err != nil {
				t.Fatal(err)
			}
		}
		if got.status != 200 || !tc.holds(got.body, m) {
			t.Errorf("%+v: %d %s", tc.action, got.status, got.body)
		}
		if e := onlyEntry(t, sim); !e.Billed || e.Outcome != providersim.Answered || e.Rule == "" {
			t.Errorf("%+v: entry %+v", tc.action, e)
		}
	}
}

func TestAnthropicRefusesBadRequests(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{APIKeys: []string{"sk-test"}, Models: []string{"claude-haiku-5-5"}})
	bent := func(bend func(map[string]any)) map[string]any {
		body := rawMessage("Hello")
		bend(body)
		return body
	}
	format := func(body map[string]any) map[string]any {
		return body["output_config"].(map[string]any)["format"].(map[string]any)
	}
	property := func(body map[string]any, name string) map[string]any {
		return format(body)["schema"].(map[string]any)["properties"].(map[string]any)[name].(map[string]any)
	}
	const bad = "invalid_request_error"
	for _, tc := range []struct {
		name   string
		body   any
		header []string
		status int
		kind   string
		says   string
	}{
		{"no version", rawMessage("Hello"), []string{"Anthropic-Version", ""}, 400, bad, "anthropic-version: header is required"},
		{"unknown version", rawMessage("Hello"), []string{"Anthropic-Version", "2020-01-01"}, 400, bad, "not a valid version"},
		{"no JSON", `{"model":`, nil, 400, bad, "not valid JSON"},
		{"no model", bent(func(b map[string]any) { delete(b, "model") }), nil, 400, bad, "model: Field required"},
		{"no cap", bent(func(b map[string]any) { delete(b, "max_tokens") }), nil, 400, bad, "max_tokens: Field required"},
		{"cap of nothing", bent(func(b map[string]any) { b["max_tokens"] = 0 }), nil, 400, bad, "max_tokens"},
		{"no messages", bent(func(b map[string]any) { delete(b, "messages") }), nil, 400, bad, "messages"},
		{"system among messages", bent(func(b map[string]any) { b["messages"] = []map[string]any{{"role": "system", "content": "x"}} }), nil, 400, bad, "messages.0.role"},
		{"last word of the assistant", bent(func(b map[string]any) { b["messages"] = []map[string]any{{"role": "assistant", "content": "x"}} }), nil, 400, bad, "user message"},
		{"streaming", bent(func(b map[string]any) { b["stream"] = true }), nil, 400, bad, "stream"},
		{"sampling", bent(func(b map[string]any) { b["temperature"] = 0 }), nil, 400, bad, "temperature: Extra inputs are not permitted"},
		{"unknown effort", bent(func(b map[string]any) { b["output_config"].(map[string]any)["effort"] = "minimal" }), nil, 400, bad, "output_config.effort"},
		{"image", bent(func(b map[string]any) {
			b["messages"] = []map[string]any{{"role": "user", "content": []map[string]any{{"type": "image"}}}}
		}), nil, 400, bad, "image"},
		{"no format", bent(func(b map[string]any) { delete(b, "output_config") }), nil, 400, bad, "output_config.format"},
		{"open schema", bent(func(b map[string]any) { delete(format(b)["schema"].(map[string]any), "additionalProperties") }), nil, 400, bad, "additionalProperties"},
		{"range", bent(func(b map[string]any) { property(b, "is_urgent")["minimum"] = 0 }), nil, 400, bad, "minimum is not supported"},
		{"wrong key", rawMessage("Hello"), []string{"X-Api-Key", "sk-wrong"}, 401, "authentication_error", "x-api-key"},
		{"no key", rawMessage("Hello"), []string{"Authorization", " "}, 401, "authentication_error", "x-api-key"},
		{"unknown model", bent(func(b map[string]any) { b["model"] = "claude-9" }), nil, 404, "not_found_error", "model: claude-9"},
	} {
		got := askAnthropic(t, sim, tc.body, tc.header...)
		var body struct {
			Type  string
			Error struct{ Type, Message string }
		}
		if err := json.Unmarshal(got.body, &body); err != nil {
			t.Errorf("%s: %s: %v", tc.name, got.body, err)
		}
		if got.status != tc.status || body.Type != "error" || body.Error.Type != tc.kind || !strings.Contains(body.Error.Message, tc.says) {
			t.Errorf("%s: status %d, body %s", tc.name, got.status, got.body)
		}
		entries := sim.Ledger(0)
		if last := entries[len(entries)-1]; last.Outcome != providersim.Rejected || last.Billed || last.Status != tc.status {
			t.Errorf("%s: entry %+v", tc.name, last)
		}
	}
	for _, header := range [][]string{{"X-Api-Key", "sk-test", "Authorization", ""}, {"Authorization", "Bearer sk-test"}} {
		if got := askAnthropic(t, sim, rawMessage("Hello"), header...); got.status != 200 {
			t.Errorf("%v: %d %s", header, got.status, got.body)
		}
	}
	if got := mustDo(t, connections(t), http.MethodGet, sim.URL()+"/v1/messages", nil); got.status != 405 {
		t.Errorf("wrong method: %d %s", got.status, got.body)
	}
}

func TestAnthropicLimits(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Limits: providersim.Limits{RequestsPerMinute: 1, TokensPerMinute: 5000}})
	got := askAnthropic(t, sim, rawMessage("Hello"))
	reset, err := time.Parse(time.RFC3339, got.header.Get("Anthropic-Ratelimit-Requests-Reset"))
	if got.status != 200 || got.header.Get("Anthropic-Ratelimit-Requests-Remaining") != "0" || got.header.Get("Anthropic-Ratelimit-Input-Tokens-Limit") != "5000" ||
		err != nil || time.Until(reset) < 50*time.Second {
		t.Errorf("%d %v, %v", got.status, got.header, err)
	}
	got = askAnthropic(t, sim, rawMessage("Hello"))
	if got.status != 429 || !strings.Contains(string(got.body), "rate_limit_error") || got.header.Get("Retry-After") == "" {
		t.Errorf("over the limit: %d %v %s", got.status, got.header, got.body)
	}
	if e := sim.Ledger(1)[0]; e.Outcome != providersim.RateLimited || e.Billed {
		t.Errorf("entry %+v", e)
	}
}
