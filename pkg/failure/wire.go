package failure

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// wireError is what an error body says, whichever of the known shapes it has:
//
//	{"error": {"message": …, "type": …, "code": …}}     OpenAI; code may be a number (OpenRouter), or null
//	{"error": {"type": …, "message": …,                 Anthropic
//	  "details": {"error_code": …}}}
//	{"error": "…"}                                      Ollama
//	{"object": "error", "message": …, "code": 404}      vLLM
//	{"detail": …}, {"message": …}                       gateways and frameworks
//	[{"error": {…, "status": "RESOURCE_EXHAUSTED"}}]    Gemini
//	{"choices": [{"error": {…}}]}                       OpenRouter, when the model's own host failed midway
type wireError struct {
	isError bool     // the body reports an error by its shape, whatever its status
	status  int      // the HTTP status in the body; 0 when there is none
	words   []string // machine words in lower case: codes and types
	text    string   // prose, or the whole body when none is found in it
}

// parseBody reports, as ok, whether the body is a JSON object or a list of them.
func parseBody(body []byte) (w wireError, ok bool) {
	root, ok := object(body)
	if !ok {
		return wireError{text: string(body)}, false
	}
	switch e := reported(root).(type) {
	case map[string]any:
		w.isError = len(e) > 0
		w.collect(e)
	case string:
		w.isError = e != ""
		w.prose(e)
		w.collect(root)
	default:
		w.isError = root["object"] == "error" || root["type"] == "error"
		w.collect(root)
	}
	if w.text == "" {
		w.text = string(body)
	}
	return w, true
}

func object(body []byte) (map[string]any, bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		return nil, false
	}
	if list, ok := root.([]any); ok && len(list) > 0 {
		root = list[0]
	}
	m, ok := root.(map[string]any)
	return m, ok
}

// reported is the error of the body. An answer beside it makes it a remark: what was paid for is judged for itself.
func reported(root map[string]any) any {
	choices, _ := root["choices"].([]any)
	if len(choices) == 0 {
		return root["error"]
	}
	first, _ := choices[0].(map[string]any)
	return first["error"]
}

func (w *wireError) collect(e map[string]any) {
	for _, key := range []string{"code", "type", "status"} {
		switch v := e[key].(type) {
		case json.Number:
			w.number(v.String())
		case string:
			w.number(v)
			w.words = append(w.words, strings.ToLower(v))
		}
	}
	w.inner(e, "innererror", "code")               // Azure
	w.inner(e, "details", "error_code")            // Anthropic
	w.inner(e, "metadata", "reason", "error_type") // OpenRouter
	for _, key := range []string{"message", "detail", "msg"} {
		w.prose(e[key])
	}
	if metadata, ok := e["metadata"].(map[string]any); ok { // OpenRouter: what the model's own host said
		w.prose(metadata["raw"])
	}
}

// inner takes the words that lie one level deeper.
func (w *wireError) inner(e map[string]any, member string, keys ...string) {
	deeper, _ := e[member].(map[string]any)
	for _, key := range keys {
		if word, ok := deeper[key].(string); ok {
			w.words = append(w.words, strings.ToLower(word))
		}
	}
}

// number takes the first that can be the status of an error.
func (w *wireError) number(s string) {
	n, err := strconv.Atoi(s)
	if err == nil && w.status == 0 && n >= http.StatusBadRequest && n < 600 {
		w.status = n
	}
}

// prose adds a text, or the messages in a list of problems.
func (w *wireError) prose(v any) {
	switch v := v.(type) {
	case string:
		w.text = strings.TrimSpace(w.text + " " + v)
	case []any:
		for _, item := range v {
			if m, ok := item.(map[string]any); ok {
				w.prose(m["msg"])
			}
		}
	}
}
