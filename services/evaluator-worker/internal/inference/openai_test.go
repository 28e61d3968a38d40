package inference

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	s := serve(t, reply(200, answered))
	o := dialects[0].client(t, Config{BaseURL: s.URL + "/gateway/v1/?api-version=2026-01-01&tenant=a%20b", APIKey: "sk-test"})
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
	wantHeaders(t, plain, q, map[string]string{"Authorization": "Bearer sk-test"})

	var body struct {
		Model               string         `json:"model"`
		MaxCompletionTokens int            `json:"max_completion_tokens"`
		ReasoningEffort     *string        `json:"reasoning_effort"`
		ResponseFormat      map[string]any `json:"response_format"`
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
	if len(body.Messages) != 2 || body.Messages[0].Role != "system" || body.Messages[1].Role != "user" {
		t.Fatalf("messages are %q", body.Messages)
	}
	wantPrompt(t, q, body.Messages[0].Content, body.Messages[1].Content)
	if strings.Contains(plain.body, q.CallID.String()) {
		t.Error("the model sees the call's id")
	}
	wantFormat(t, body.ResponseFormat, map[string]any{
		"type": "json_schema",
		"json_schema": map[string]any{
			"name": "evaluation", "strict": true, "schema": evaluation.AnswerJSONSchema(q.Version.Departments),
		},
	})
	if !strings.Contains(withEffort.body, `"reasoning_effort":"low"`) {
		t.Errorf("effort is missing in %s", withEffort.body)
	}
}
