package inference

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestResponseRequestOnTheWire(t *testing.T) {
	t.Parallel()
	d := dialects[1]
	s := serve(t, reply(200, d.answered))
	client := d.client(t, Config{BaseURL: s.URL + "/gateway/v1/?api-version=2026-01-01&tenant=a%20b", APIKey: "sk-test"})
	q := d.question(t)
	if _, err := client.Call(within(t), q); err != nil {
		t.Fatal(err)
	}
	q.Version.Effort = "low"
	if _, err := client.Call(within(t), q); err != nil {
		t.Fatal(err)
	}
	plain, withEffort := s.received()[0], s.received()[1]
	if plain.method != "POST" || plain.target != "/gateway/v1/responses?api-version=2026-01-01&tenant=a+b" {
		t.Errorf("%s %s", plain.method, plain.target)
	}
	wantHeaders(t, plain, q, map[string]string{"Authorization": "Bearer sk-test"})

	var body struct {
		Model           string `json:"model"`
		MaxOutputTokens int    `json:"max_output_tokens"`
		Store           *bool  `json:"store"`
		Instructions    string `json:"instructions"`
		Input           string `json:"input"`
		Text            struct {
			Format map[string]any `json:"format"`
		} `json:"text"`
	}
	strict := json.NewDecoder(strings.NewReader(plain.body))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&body); err != nil {
		t.Fatalf("decode %s: %v", plain.body, err)
	}
	if body.Model != "gpt-test" || body.MaxOutputTokens != 300 || body.Store == nil || *body.Store {
		t.Errorf("body is %s", plain.body)
	}
	wantPrompt(t, q, body.Instructions, body.Input)
	wantFormat(t, body.Text.Format, map[string]any{
		"type": "json_schema", "name": "evaluation", "strict": true, "schema": evaluation.AnswerJSONSchema(q.Version.Departments),
	})
	if !strings.Contains(withEffort.body, `"reasoning":{"effort":"low"}`) {
		t.Errorf("effort is missing in %s", withEffort.body)
	}
}

// wantFormat compares what was decoded from JSON with what was not.
func wantFormat(t *testing.T, got, want map[string]any) {
	t.Helper()
	encoded, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var decoded map[string]any
	if err := json.Unmarshal(encoded, &decoded); err != nil || !reflect.DeepEqual(got, decoded) {
		t.Errorf("format is %v, want %s", got, encoded)
	}
}
