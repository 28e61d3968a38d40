package providersim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/evalonce/evalonce/pkg/providersim"
)

func script(match providersim.Match, action providersim.Action) []providersim.Rule {
	return []providersim.Rule{{Match: match, Action: action}}
}

func TestNamedErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   providersim.Error
		status int
		code   string
	}{
		{providersim.RateLimit, 429, "rate_limit_exceeded"},
		{providersim.SlowDown, 503, "slow_down"},
		{providersim.InsufficientQuota, 429, "insufficient_quota"},
		{providersim.SpendLimit, 400, "billing_hard_limit_reached"},
		{providersim.InvalidAPIKey, 401, "invalid_api_key"},
		{providersim.Forbidden, 403, "unsupported_country_region_territory"},
		{providersim.ModelNotFound, 404, "model_not_found"},
		{providersim.Overloaded503, 503, ""},
		{providersim.ServerError500, 500, ""},
		{providersim.BadGateway502, 502, ""},
		{providersim.GatewayTimeout504, 504, ""},
		{providersim.Overloaded529, 529, ""},
		{providersim.ContextLength, 400, "context_length_exceeded"},
		{providersim.ContentFilter400, 400, "content_filter"},
		{providersim.BadSchema400, 400, ""},
		{providersim.Conflict409, 409, ""},
		{providersim.RequestTimeout408, 408, ""},
		{providersim.RequestTooLarge413, 413, ""},
	} {
		t.Run(string(tc.name), func(t *testing.T) {
			t.Parallel()
			sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{
				Error: tc.name, RetryAfter: 1500 * time.Millisecond, Headers: map[string]string{"X-Extra": "1", "Retry-After-Ms": ""},
			})})
			client := official(t, sim)
			_, err := client.Chat.Completions.New(testContext(t), params("Help", "Hello"))
			var problem *openai.Error
			if !errors.As(err, &problem) {
				t.Fatalf("got %v", err)
			}
			if problem.StatusCode != tc.status || problem.Code != tc.code {
				t.Errorf("status %d, code %q: %s", problem.StatusCode, problem.Code, problem.RawJSON())
			}
			h := problem.Response.Header
			if h.Get("Retry-After") != "2" || h.Get("X-Extra") != "1" || h.Get("Retry-After-Ms") != "" {
				t.Errorf("headers %v", h)
			}
			e := onlyEntry(t, sim)
			if e.Outcome != providersim.Failed || e.Billed || e.Status != tc.status || !strings.HasPrefix(e.Rule, string(tc.name)) {
				t.Errorf("entry %+v", e)
			}
		})
	}
}

func TestOddAnswers(t *testing.T) {
	t.Parallel()
	type completion struct {
		Model   string
		Choices []struct {
			FinishReason string `json:"finish_reason"`
			Message      struct {
				Content, Refusal *string
			}
		}
		Usage *struct {
			PromptTokens int `json:"prompt_tokens"`
		}
		Error *struct{ Message string }
	}
	for _, tc := range []struct {
		action providersim.Action
		holds  func(body []byte, c completion) bool
	}{
		{providersim.Action{Answer: providersim.AnswerBadJSON}, func(b []byte, _ completion) bool { return len(b) > 0 && !json.Valid(b) }},
		{providersim.Action{Answer: providersim.AnswerEmptyBody}, func(b []byte, _ completion) bool { return len(b) == 0 }},
		{providersim.Action{Answer: providersim.AnswerErrorBody}, func(_ []byte, c completion) bool { return c.Error != nil && c.Choices == nil }},
		{providersim.Action{Answer: providersim.AnswerEmptyChoices}, func(_ []byte, c completion) bool { return c.Choices != nil && len(c.Choices) == 0 }},
		{providersim.Action{Answer: providersim.AnswerNullContent}, func(_ []byte, c completion) bool {
			return c.Choices[0].Message.Content == nil && c.Choices[0].Message.Refusal == nil
		}},
		{providersim.Action{Answer: providersim.AnswerEmptyContent}, func(_ []byte, c completion) bool { return *c.Choices[0].Message.Content == "" }},
		{providersim.Action{Answer: providersim.AnswerRefusal}, func(_ []byte, c completion) bool {
			return c.Choices[0].Message.Content == nil && *c.Choices[0].Message.Refusal != ""
		}},
		{providersim.Action{Answer: providersim.AnswerTruncated}, func(_ []byte, c completion) bool {
			return c.Choices[0].FinishReason == "length" && !json.Valid([]byte(*c.Choices[0].Message.Content))
		}},
		{providersim.Action{Answer: providersim.AnswerLength}, func(_ []byte, c completion) bool {
			return c.Choices[0].FinishReason == "length" && json.Valid([]byte(*c.Choices[0].Message.Content))
		}},
		{providersim.Action{Answer: providersim.AnswerContentFilter}, func(_ []byte, c completion) bool { return c.Choices[0].FinishReason == "content_filter" }},
		{providersim.Action{Answer: providersim.AnswerNoUsage}, func(_ []byte, c completion) bool { return c.Usage == nil && len(c.Choices) == 1 }},
		{providersim.Action{Content: `{"department":"x","department":"y"}`}, func(_ []byte, c completion) bool {
			return *c.Choices[0].Message.Content == `{"department":"x","department":"y"}` && c.Choices[0].FinishReason == "stop"
		}},
		{providersim.Action{FinishReason: "tool_calls", ServedModel: "other"}, func(_ []byte, c completion) bool {
			return c.Choices[0].FinishReason == "tool_calls" && c.Model == "other"
		}},
	} {
		name := string(tc.action.Answer) + tc.action.Content + tc.action.FinishReason
		sim := start(t, providersim.Options{Script: script(providersim.Match{}, tc.action)})
		got, err := ask(t, connections(t), sim, "Hello")
		if err != nil || got.err != nil || got.status != 200 {
			t.Fatalf("%s: %v, %+v", name, err, got)
		}
		var c completion
		if json.Valid(got.body) {
			if err := json.Unmarshal(got.body, &c); err != nil {
				t.Fatal(err)
			}
		}
		if !tc.holds(got.body, c) {
			t.Errorf("%s: %s", name, got.body)
		}
		if e := onlyEntry(t, sim); !e.Billed || e.Outcome != providersim.Answered || e.Rule == "" {
			t.Errorf("%s: entry %+v", name, e)
		}
	}
}

func TestRawError(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: []providersim.Rule{
		{Times: 1, Action: providersim.Action{Status: 200, Body: "<html>log in</html>"}},
		{Times: 1, Action: providersim.Action{Status: 418, Body: `{"a":1}`, Headers: map[string]string{"Content-Type": "text/plain"}}},
		{Times: 1, Action: providersim.Action{Error: providersim.InsufficientQuota, Body: `{"error":"plain"}`}},
	}})
	client := connections(t)
	for _, want := range []struct {
		status            int
		kind, body, label string
	}{
		{200, "text/html", "<html>log in</html>", "status_200-1"},
		{418, "text/plain", `{"a":1}`, "status_418-2"},
		{429, "application/json", `{"error":"plain"}`, "insufficient_quota-3"},
	} {
		got, err := ask(t, client, sim, "Hello")
		if err != nil || got.status != want.status || !strings.HasPrefix(got.header.Get("Content-Type"), want.kind) || string(got.body) != want.body {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if sim.Stats().ByRule[want.label] != 1 {
			t.Errorf("rules %v, want %s", sim.Stats().ByRule, want.label)
		}
	}
	if got, err := ask(t, client, sim, "Hello"); err != nil || got.status != 200 || sim.Stats().Billed != 1 {
		t.Errorf("after the rules expired: %+v, %v", got, err)
	}
}

func TestConnectionsThatEnd(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		action  providersim.Action
		outcome providersim.Outcome
		billed  bool
		known   bool // the content is
		status  int
		bytes   int // of the body that arrive
	}{
		{"before reading", providersim.Action{Close: providersim.CloseOnAccept}, providersim.Closed, false, false, 0, 0},
		{"after reading", providersim.Action{Close: providersim.CloseAfterRequest}, providersim.Closed, false, true, 0, 0},
		{"after the answer", providersim.Action{Close: providersim.CloseAfterAnswer}, providersim.Closed, true, true, 0, 0},
		{"in the body", providersim.Action{CutAfterBytes: 40}, providersim.Cut, true, true, 200, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sim := start(t, providersim.Options{Script: script(providersim.Match{}, tc.action)})
			got, err := ask(t, connections(t), sim, "Hello")
			if tc.status == 0 {
				if err == nil {
					t.Fatalf("got a response: %+v", got)
				}
			} else if err != nil || got.status != tc.status || !errors.Is(got.err, io.ErrUnexpectedEOF) || len(got.body) != tc.bytes {
				t.Errorf("got %v, %+v", err, got)
			}
			e := onlyEntry(t, sim)
			if e.Outcome != tc.outcome || e.Billed != tc.billed || e.Status != tc.status || (e.Content != providersim.Fingerprint{}) != tc.known {
				t.Errorf("entry %+v", e)
			}
		})
	}
}

func TestACutNeverLooksWhole(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{CutAfterBytes: 1 << 20})})
	got, err := ask(t, connections(t), sim, "Hello")
	if err != nil || !errors.Is(got.err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, %+v", err, got)
	}
}

// asked is a call that runs beside the test.
type asked struct {
	cancel context.CancelFunc
	done   chan error // of the call
}

func begin(t *testing.T, sim *providersim.Server, message string) asked {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	client := official(t, sim)
	a := asked{cancel: cancel, done: make(chan error, 1)}
	go func() {
		_, err := client.Chat.Completions.New(ctx, params("Help", message))
		a.done <- err
	}()
	return a
}

func (a asked) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.done:
		return err
	case <-testContext(t).Done():
		t.Fatal("the call does not end")
		return nil
	}
}

func TestHangs(t *testing.T) {
	t.Parallel()
	for _, hang := range []providersim.Hang{providersim.HangBeforeAnswer, providersim.HangAfterAnswer, providersim.HangMidBody} {
		paid := hang != providersim.HangBeforeAnswer
		status := 0
		if hang == providersim.HangMidBody {
			status = 200
		}
		t.Run(string(hang), func(t *testing.T) {
			t.Parallel()
			sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{Hang: hang})})
			ctx := testContext(t)

			released := begin(t, sim, "released")
			if err := sim.WaitHanging(ctx, 1); err != nil {
				t.Fatal(err)
			}
			if e := onlyEntry(t, sim); e.Outcome != providersim.InFlight || e.Billed != paid {
				t.Errorf("hanging: %+v", e)
			}
			if n := sim.Release(); n != 1 {
				t.Errorf("released %d", n)
			}
			if err := released.wait(t); err != nil {
				t.Errorf("released: %v", err)
			}
			if e := onlyEntry(t, sim); e.Outcome != providersim.Answered || !e.Billed || e.Status != 200 {
				t.Errorf("released: %+v", e)
			}

			left := begin(t, sim, "left")
			if err := sim.WaitHanging(ctx, 1); err != nil {
				t.Fatal(err)
			}
			left.cancel()
			if err := left.wait(t); !errors.Is(err, context.Canceled) {
				t.Errorf("left: %v", err)
			}
			if err := sim.WaitIdle(ctx); err != nil {
				t.Fatal(err)
			}
			if e := sim.Ledger(1)[0]; e.Outcome != providersim.ClientGone || e.Billed != paid || e.Status != status {
				t.Errorf("left: %+v", e)
			}
			if n := sim.Release(); n != 0 {
				t.Errorf("released %d that had left", n)
			}

			shut := begin(t, sim, "shut")
			if err := sim.WaitHanging(ctx, 1); err != nil {
				t.Fatal(err)
			}
			if err := sim.Close(); err != nil {
				t.Fatal(err)
			}
			if err := shut.wait(t); err == nil {
				t.Error("shut: answered")
			}
			if e := sim.Ledger(2)[0]; e.Outcome != providersim.Shutdown || e.Billed != paid || e.Status != status {
				t.Errorf("shut: %+v", e)
			}
		})
	}
}

func TestHangsAndThenFails(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{
		Hang: providersim.HangBeforeAnswer, Error: providersim.GatewayTimeout504,
	})})
	call := begin(t, sim, "Hello")
	if err := sim.WaitHanging(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	sim.Release()
	var problem *openai.Error
	if err := call.wait(t); !errors.As(err, &problem) || problem.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("got %v", err)
	}
	if sim.Stats().Billed != 0 {
		t.Error("an error was billed")
	}
}

func TestAClientThatLeavesDuringTheLatencyHasPaid(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Latency: providersim.Latency{Min: time.Hour, Max: 2 * time.Hour}})
	call := begin(t, sim, "Hello")
	ctx := testContext(t)
	if err := sim.Wait(ctx, func(now providersim.Stats) bool { return now.Billed == 1 }); err != nil {
		t.Fatal(err)
	}
	call.cancel()
	if err := call.wait(t); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := sim.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if e := onlyEntry(t, sim); e.Outcome != providersim.ClientGone || !e.Billed {
		t.Errorf("entry %+v", e)
	}
}

// net/http sends a request again by itself when its header says that this is harmless, its connection was used
// before and no byte of a response came. The simulator must show that second payment, which no client code sees.
func TestShowsWhatATransportRepeats(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: script(providersim.Match{Nth: 2}, providersim.Action{Close: providersim.CloseAfterAnswer})})
	client := connections(t)
	url := sim.URL() + "/v1/chat/completions"
	mustDo(t, client, http.MethodPost, url, rawBody("Help", "first, to open a connection"))
	if got := mustDo(t, client, http.MethodPost, url, rawBody("Help", "second"), "Idempotency-Key", "k2"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	entries := sim.Ledger(1)
	if len(entries) != 2 || !entries[0].Billed || !entries[1].Billed || entries[1].Attempt != 2 || entries[1].Headers["idempotency-key"] != "k2" {
		t.Errorf("entries %+v", entries)
	}
}

func TestOutageAndItsEnd(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{Error: providersim.RateLimit})})
	client := connections(t)
	status := func(method, path string, body any) int {
		got, err := do(t, client, method, sim.URL()+path, body)
		if err != nil {
			return 0
		}
		return got.status
	}
	both := func() [2]int {
		return [2]int{status("POST", "/v1/chat/completions", rawBody("a", "b")), status("GET", "/v1/models", nil)}
	}
	if got := both(); got != [2]int{429, 200} {
		t.Errorf("before: %v", got)
	}
	for _, tc := range []struct {
		action providersim.Action
		want   [2]int
	}{
		{providersim.Action{Error: providersim.InvalidAPIKey}, [2]int{401, 401}},
		{providersim.Action{Close: providersim.CloseOnAccept}, [2]int{0, 0}},
		{providersim.Action{Close: providersim.CloseAfterRequest}, [2]int{0, 0}},
	} {
		if err := sim.StartOutage(tc.action); err != nil {
			t.Fatal(err)
		}
		if got := both(); got != tc.want {
			t.Errorf("during %+v: %v", tc.action, got)
		}
	}
	sim.EndOutage()
	if got := both(); got != [2]int{429, 200} {
		t.Errorf("after: %v", got)
	}
	if err := sim.StartOutage(providersim.Action{Error: "gremlins"}); err == nil {
		t.Error("an unknown error was accepted")
	}
}

func TestRulesInOrder(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: []providersim.Rule{
		{Name: "third", Match: providersim.Match{Nth: 3}, Action: providersim.Action{Error: providersim.ServerError500}},
		{Name: "printer", Match: providersim.Match{Text: "printer"}, Action: providersim.Action{Error: providersim.ContentFilter400}, Times: 2},
		{Name: "again", Match: providersim.Match{Attempt: 2}, Action: providersim.Action{Error: providersim.Conflict409}},
		{Name: "model", Match: providersim.Match{Model: "gpt-5-mini", From: 7, To: 7}, Action: providersim.Action{Error: providersim.ModelNotFound}},
		{Name: "content", Match: providersim.Match{Content: providersim.FingerprintOf("Help", "x").String()}, Action: providersim.Action{Error: providersim.RateLimit}},
	}})
	client := connections(t)
	for i, tc := range []struct {
		message string
		status  int
	}{
		{"a", 200}, {"printer", 400}, {"printer", 500}, {"printer", 400}, {"a", 409}, {"printer", 200}, {"b", 404}, {"b", 409}, {"x", 429}, {"c", 200},
	} {
		got, err := ask(t, client, sim, tc.message)
		if err != nil || got.status != tc.status {
			t.Errorf("request %d %q: status %d, %v, want %d", i+1, tc.message, got.status, err, tc.status)
		}
	}
	sim.ClearRules()
	if got, err := ask(t, client, sim, "x"); err != nil || got.status != 200 {
		t.Errorf("without rules: %+v, %v", got, err)
	}
}

// TestFaultsFollowTheSeed sends the same work in two orders, concurrently, and expects the same faults.
func TestFaultsFollowTheSeed(t *testing.T) {
	t.Parallel()
	const contents = 60
	fates := func(seed uint64, order func(int) int) string {
		sim := start(t, providersim.Options{Seed: seed, Script: []providersim.Rule{
			{Match: providersim.Match{Probability: 0.3}, Action: providersim.Action{Error: providersim.ServerError500}},
			{Match: providersim.Match{Probability: 0.3}, Action: providersim.Action{Close: providersim.CloseAfterAnswer}},
		}})
		client := connections(t)
		var all sync.WaitGroup
		for i := range contents {
			message := fmt.Sprint("ticket ", order(i))
			all.Go(func() {
				for range 2 {
					_, _ = ask(t, client, sim, message)
				}
			})
		}
		all.Wait()
		fate := map[string]string{}
		for _, e := range sim.Ledger(0) {
			fate[fmt.Sprint(e.Content, e.Attempt)] = string(e.Outcome)
		}
		if len(fate) != 2*contents {
			t.Errorf("%d fates", len(fate))
		}
		out, err := json.Marshal(fate)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	upwards := fates(7, func(i int) int { return i })
	if downwards := fates(7, func(i int) int { return contents - 1 - i }); upwards != downwards {
		t.Error("the same seed, another fate")
	}
	if fates(8, func(i int) int { return i }) == upwards {
		t.Error("another seed, the same fate")
	}
	for _, o := range []providersim.Outcome{providersim.Answered, providersim.Failed, providersim.Closed} {
		if !strings.Contains(upwards, string(o)) {
			t.Errorf("no request was %s", o)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		sim := start(t, providersim.Options{Limits: providersim.Limits{RequestsPerMinute: 2}})
		client := connections(t)
		for i := range 2 {
			got, err := ask(t, client, sim, "Hello")
			if err != nil || got.status != 200 || got.header.Get("X-Ratelimit-Limit-Requests") != "2" || got.header.Get("X-Ratelimit-Remaining-Requests") != fmt.Sprint(1-i) {
				t.Fatalf("request %d: %+v, %v", i+1, got, err)
			}
		}
		got, err := ask(t, client, sim, "Hello")
		if err != nil || got.status != 429 || !strings.Contains(string(got.body), "rate_limit_exceeded") {
			t.Fatalf("over the limit: %+v, %v", got, err)
		}
		if after := got.header.Get("Retry-After"); after != "30" && after != "29" {
			t.Errorf("Retry-After %q for a limit of two a minute", after)
		}
		if e := sim.Ledger(2)[0]; e.Outcome != providersim.RateLimited || e.Billed || e.Status != 429 {
			t.Errorf("entry %+v", e)
		}
	})
	t.Run("tokens", func(t *testing.T) {
		t.Parallel()
		sim := start(t, providersim.Options{Limits: providersim.Limits{TokensPerMinute: 5000, RequestsPerMinute: 2}})
		client := connections(t)
		if got, err := ask(t, client, sim, strings.Repeat("long ", 10_000)); err != nil || got.status != 429 || got.header.Get("Retry-After") != "" {
			t.Errorf("never admissible: %+v, %v", got, err)
		}
		for range 2 {
			if got, err := ask(t, client, sim, "short"); err != nil || got.status != 200 {
				t.Errorf("a refused request consumed: %+v, %v", got, err)
			}
		}
	})
	t.Run("concurrency", func(t *testing.T) {
		t.Parallel()
		sim := start(t, providersim.Options{
			Limits: providersim.Limits{Concurrent: 1},
			Script: script(providersim.Match{Nth: 1}, providersim.Action{Hang: providersim.HangBeforeAnswer}),
		})
		first := begin(t, sim, "first")
		if err := sim.WaitHanging(testContext(t), 1); err != nil {
			t.Fatal(err)
		}
		client := connections(t)
		if got, err := ask(t, client, sim, "second"); err != nil || got.status != 429 {
			t.Errorf("beside the first: %+v, %v", got, err)
		}
		sim.Release()
		if err := first.wait(t); err != nil {
			t.Fatal(err)
		}
		if err := sim.WaitIdle(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if got, err := ask(t, client, sim, "third"); err != nil || got.status != 200 {
			t.Errorf("after the first: %+v, %v", got, err)
		}
	})
}

func TestLatencyIsAdded(t *testing.T) {
	t.Parallel()
	const extra = 30 * time.Millisecond
	sim := start(t, providersim.Options{Script: script(providersim.Match{}, providersim.Action{Latency: extra})})
	if got, err := ask(t, connections(t), sim, "Hello"); err != nil || got.status != 200 {
		t.Fatalf("%+v, %v", got, err)
	}
	if e := onlyEntry(t, sim); e.EndedAt.Sub(e.ReceivedAt) < extra {
		t.Errorf("took %s", e.EndedAt.Sub(e.ReceivedAt))
	}
}

func TestTheOfficialClientRetriesAreSeen(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{Script: []providersim.Rule{{
		Times: 1, Action: providersim.Action{Error: providersim.ServerError500, Headers: map[string]string{"Retry-After-Ms": "1"}},
	}}})
	client := official(t, sim, option.WithMaxRetries(1))
	if _, err := client.Chat.Completions.New(testContext(t), params("Help", "Hello")); err != nil {
		t.Fatal(err)
	}
	entries := sim.Ledger(0)
	if len(entries) != 2 || entries[1].Headers["x-stainless-retry-count"] != "1" {
		t.Errorf("entries %+v", entries)
	}
}
