package inference

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestAnthropicBaseURLIsWithoutItsVersion(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://example.com/v1", "https://example.com/gateway/v1/"} {
		if _, err := NewAnthropic(Config{BaseURL: url}); err == nil || !strings.Contains(err.Error(), "/v1") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestMessageRequestOnTheWire(t *testing.T) {
	t.Parallel()
	d := dialects[2]
	s := serve(t, reply(200, d.answered))
	client := d.client(t, Config{BaseURL: s.URL + "/gateway?tenant=a%20b", APIKey: "sk-test"})
	q := d.question(t)
	if _, err := client.Call(within(t), q); err != nil {
		t.Fatal(err)
	}
	q.Version.Effort = "low"
	if _, err := client.Call(within(t), q); err != nil {
		t.Fatal(err)
	}
	plain, withEffort := s.received()[0], s.received()[1]
	if plain.method != "POST" || plain.target != "/gateway/v1/messages?tenant=a+b" {
		t.Errorf("%s %s", plain.method, plain.target)
	}
	wantHeaders(t, plain, q, map[string]string{"X-Api-Key": "sk-test", "Anthropic-Version": "2026-10-21"})

	type block struct {
		Type         string            `json:"type"`
		Text         string            `json:"text"`
		CacheControl map[string]string `json:"cache_control"`
	}
	var body struct {
		Model     string  `json:"model"`
		MaxTokens int     `json:"max_tokens"`
		System    []block `json:"system"`
		Messages  []struct {
			Role    string  `json:"role"`
			Content []block `json:"content"`
		} `json:"messages"`
		OutputConfig struct {
			Format map[string]any `json:"format"`
		} `json:"output_config"`
	}
	strict := json.NewDecoder(strings.NewReader(plain.body))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&body); err != nil {
		t.Fatalf("decode %s: %v", plain.body, err)
	}
	if body.Model != "gpt-test" || body.MaxTokens != 300 {
		t.Errorf("body is %s", plain.body)
	}
	if len(body.System) != 1 || len(body.Messages) != 1 || body.Messages[0].Role != "user" || len(body.Messages[0].Content) != 1 {
		t.Fatalf("body is %s", plain.body)
	}
	wantPrompt(t, q, body.System[0].Text, body.Messages[0].Content[0].Text)
	if body.System[0].CacheControl["type"] != "ephemeral" || body.Messages[0].Content[0].CacheControl != nil {
		t.Errorf("the version's part of the prompt is to be cached, and the ticket is not: %s", plain.body)
	}
	wantFormat(t, body.OutputConfig.Format, map[string]any{
		"type": "json_schema", "schema": evaluation.AnswerJSONSchema(q.Version.Departments),
	})
	if !strings.Contains(withEffort.body, `"effort":"low"`) {
		t.Errorf("effort is missing in %s", withEffort.body)
	}
}
