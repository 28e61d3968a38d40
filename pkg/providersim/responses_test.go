package providersim_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"

	"github.com/evalonce/evalonce/pkg/providersim"
)

// rawResponse is a request for a response, to be bent by a test.
func rawResponse(message string) map[string]any {
	return map[string]any{
		"model": "gpt-5-mini", "instructions": instructions, "input": marked("Help", message), "store": false,
		"text": map[string]any{"format": map[string]any{
			"type": "json_schema", "name": "evaluation", "strict": true,
			"schema": schema("billing", "technical_support", "account_access"),
		}},
	}
}

func askResponses(t *testing.T, sim *providersim.Server, body any) reply {
	t.Helper()
	return mustDo(t, connections(t), http.MethodPost, sim.URL()+"/v1/responses", body)
}

func TestAnswersTheOfficialClientsResponses(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{APIKeys: []string{"sk-test"}})
	client := official(t, sim)
	p := responses.ResponseNewParams{
		Model: "gpt-5-mini", MaxOutputTokens: openai.Int(200), Store: openai.Bool(false),
		Instructions: openai.String(instructions + strings.Repeat("Be careful. ", 60)),
		Input:        responses.ResponseNewParamsInputUnion{OfString: openai.String(marked("Charged twice", "My invoice was paid twice, I need a refund"))},
		Text: responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigUnionParam{
			OfJSONSchema: &responses.ResponseFormatTextJSONSchemaConfigParam{
				Name: "evaluation", Strict: openai.Bool(true), Schema: schema("billing", "technical_support", "account_access"),
			},
		}},
	}
	got, err := client.Responses.New(testContext(t), p)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Department string }
	if err := json.Unmarshal([]byte(got.OutputText()), &answer); err != nil || answer.Department != "billing" {
		t.Errorf("output %q: %v", got.OutputText(), err)
	}
	if !strings.HasPrefix(got.ID, "resp_") || got.Status != responses.ResponseStatusCompleted || got.Model != "gpt-5-mini-2026-01-01" {
		t.Errorf("response %s", got.RawJSON())
	}
	e := onlyEntry(t, sim)
	if e.Protocol != "openai_responses" || !e.Billed || e.InputTokens != got.Usage.InputTokens || e.OutputTokens != got.Usage.OutputTokens || e.InputTokens == 0 {
		t.Errorf("entry %+v, usage %s", e, got.Usage.RawJSON())
	}
	if want := providersim.FingerprintOf("Charged twice", "My invoice was paid twice, I need a refund"); e.Content != want {
		t.Errorf("content %s, want %s", e.Content, want)
	}
	again, err := client.Responses.New(testContext(t), p)
	if err != nil {
		t.Fatal(err)
	}
	if cached := again.Usage.InputTokensDetails.CachedTokens; cached == 0 || cached >= again.Usage.InputTokens || again.Usage.InputTokensDetails.CacheWriteTokens != 0 {
		t.Errorf("usage %s", again.Usage.RawJSON())
	}
}

func TestResponsesOddAnswers(t *testing.T) {
	t.Parallel()
	type response struct {
		Status            string
		Model             string
		IncompleteDetails *struct{ Reason string } `json:"incomplete_details"`
		Output            []struct {
			Content []struct{ Type, Text, Refusal string }
		}
		Usage *struct{}
		Error *struct{ Code string }
	}
	incomplete := func(r response, reason string) bool {
		return r.Status == "incomplete" && r.IncompleteDetails.Reason == reason
	}
	text := func(r response) string { return r.Output[0].Content[0].Text }
	for _, tc := range []struct {
		action providersim.Action
		holds  func(body []byte, r response) bool
	}{
		{providersim.Action{Answer: providersim.AnswerBadJSON}, func(b []byte, _ response) bool { return len(b) > 0 && !json.Valid(b) }},
		{providersim.Action{Answer: providersim.AnswerEmptyBody}, func(b []byte, _ response) bool { return len(b) == 0 }},
		{providersim.Action{Answer: providersim.AnswerErrorBody}, func(_ []byte, r response) bool { return r.Status == "failed" && r.Error.Code == "server_error" }},
		{providersim.Action{Answer: providersim.AnswerEmptyChoices}, func(_ []byte, r response) bool { return r.Output != nil && len(r.Output) == 0 }},
		{providersim.Action{Answer: providersim.AnswerNullContent}, func(_ []byte, r response) bool { return len(r.Output) == 1 && len(r.Output[0].Content) == 0 }},
		{providersim.Action{Answer: providersim.AnswerEmptyContent}, func(_ []byte, r response) bool { return r.Status == "completed" && text(r) == "" }},
		{providersim.Action{Answer: providersim.AnswerRefusal}, func(_ []byte, r response) bool {
			return r.Output[0].Content[0].Type == "refusal" && r.Output[0].Content[0].Refusal != ""
		}},
		{providersim.Action{Answer: providersim.AnswerTruncated}, func(_ []byte, r response) bool {
			return incomplete(r, "max_output_tokens") && !json.Valid([]byte(text(r)))
		}},
		{providersim.Action{Answer: providersim.AnswerLength}, func(_ []byte, r response) bool {
			return incomplete(r, "max_output_tokens") && json.Valid([]byte(text(r)))
		}},
		{providersim.Action{Answer: providersim.AnswerContentFilter}, func(_ []byte, r response) bool { return incomplete(r, "content_filter") }},
		{providersim.Action{Answer: providersim.AnswerNoUsage}, func(_ []byte, r response) bool { return r.Usage == nil && r.Status == "completed" }},
		{providersim.Action{Content: "{}", FinishReason: "steered", ServedModel: "other"}, func(_ []byte, r response) bool {
			return text(r) == "{}" && incomplete(r, "steered") && r.Model == "other"
		}},
	} {
		sim := start(t, providersim.Options{Script: script(providersim.Match{}, tc.action)})
		got := askResponses(t, sim, rawResponse("Hello"))
		var r response
		if json.Valid(got.body) {
			if err := json.Unmarshal(got.body, &r); err != nil {
				t.Fatal(err)
			}
		}
		if got.status != 200 || !tc.holds(got.body, r) {
			t.Errorf("%+v: %d %s", tc.action, got.status, got.body)
		}
		if e := onlyEntry(t, sim); !e.Billed || e.Outcome != providersim.Answered || e.Rule == "" {
			t.Errorf("%+v: entry %+v", tc.action, e)
		}
	}
}

func TestResponsesRefusesBadRequests(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{})
	bent := func(bend func(map[string]any)) map[string]any {
		body := rawResponse("Hello")
		bend(body)
		return body
	}
	format := func(body map[string]any) map[string]any {
		return body["text"].(map[string]any)["format"].(map[string]any)
	}
	for _, tc := range []struct {
		name        string
		body        any
		param, says string
	}{
		{"no JSON", `{"model":`, "", "could not parse the JSON"},
		{"no model", bent(func(b map[string]any) { delete(b, "model") }), "model", "Missing"},
		{"no input", bent(func(b map[string]any) { delete(b, "input") }), "input", "Missing"},
		{"empty input", bent(func(b map[string]any) { b["input"] = "" }), "input", "Missing"},
		{"unknown role", bent(func(b map[string]any) { b["input"] = []map[string]any{{"role": "boss", "content": "x"}} }), "input", "boss"},
		{"no user", bent(func(b map[string]any) { b["input"] = []map[string]any{{"role": "developer", "content": "x"}} }), "input", "user"},
		{"streaming", bent(func(b map[string]any) { b["stream"] = true }), "stream", "one piece"},
		{"background", bent(func(b map[string]any) { b["background"] = true }), "stream", "one piece"},
		{"stored", bent(func(b map[string]any) { b["store"] = true }), "store", "stores nothing"},
		{"stored by default", bent(func(b map[string]any) { delete(b, "store") }), "store", "stores nothing"},
		{"unknown parameter", bent(func(b map[string]any) { b["messages"] = 1 }), "messages", "Unknown parameter"},
		{"unknown effort", bent(func(b map[string]any) { b["reasoning"] = map[string]any{"effort": "heroic"} }), "reasoning.effort", "heroic"},
		{"no format", bent(func(b map[string]any) { delete(b, "text") }), "text.format", "structured output"},
		{"bad schema name", bent(func(b map[string]any) { format(b)["name"] = "a b" }), "text.format.name", "pattern"},
		{"not strict", bent(func(b map[string]any) { delete(format(b), "strict") }), "text.format.strict", "strict"},
		{"no departments", bent(func(b map[string]any) { format(b)["schema"] = schema() }), "text.format", "Invalid schema for text 'evaluation'"},
	} {
		got := askResponses(t, sim, tc.body)
		var body struct {
			Error struct{ Message, Param string }
		}
		if err := json.Unmarshal(got.body, &body); err != nil {
			t.Errorf("%s: %s: %v", tc.name, got.body, err)
		}
		if got.status != 400 || body.Error.Param != tc.param || !strings.Contains(body.Error.Message, tc.says) {
			t.Errorf("%s: status %d, body %s", tc.name, got.status, got.body)
		}
	}
	messages := []map[string]any{
		{"type": "message", "role": "developer", "content": "Route it."},
		{"role": "user", "content": []map[string]any{{"type": "input_text", "text": marked("Help", "Hello")}}},
	}
	if got := askResponses(t, sim, bent(func(b map[string]any) { b["input"] = messages })); got.status != 200 {
		t.Errorf("a list of messages: %d %s", got.status, got.body)
	}
	if got := mustDo(t, connections(t), http.MethodGet, sim.URL()+"/v1/responses", nil); got.status != 405 || !strings.Contains(string(got.body), "/v1/responses") {
		t.Errorf("wrong method: %d %s", got.status, got.body)
	}
	if stats := sim.Stats(); stats.Billed != 1 {
		t.Errorf("stats %+v", stats)
	}
}
