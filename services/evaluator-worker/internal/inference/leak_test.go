package inference

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/evalonce/evalonce/pkg/failure"
)

// Servers quote what they were sent, and clients quote where they sent it. None of it may be in what is logged,
// stored as a reason, or exported.
func TestNothingConfidentialLeaks(t *testing.T) {
	secrets := map[string]string{
		"key":     "KeySentinel-9f8e7d6c5b4a3210",
		"query":   "QuerySentinel-0123456789abcd",
		"path":    "PathSentinel-0123456789abcde",
		"subject": "SubjectSentinel refund äöü",
		"message": "MessageSentinel: my password is hunter2 and my card is 4111",
		"prompt":  "PromptSentinel: you are the triage of a secret company",
	}
	openAIShape := func(s string) any { return map[string]any{"error": map[string]any{"message": s, "code": "odd"}} }
	cases := map[string]http.HandlerFunc{
		"OpenAI's error": echo(400, openAIShape),
		"unauthorized":   echo(401, openAIShape),
		"server error":   echo(500, openAIShape),
		"Anthropic's error": echo(529, func(s string) any {
			return map[string]any{"type": "error", "error": map[string]any{"type": "overloaded_error", "message": s}}
		}),
		"error as text":       echo(500, func(s string) any { return map[string]any{"error": s} }),
		"validation error":    echo(422, func(s string) any { return map[string]any{"detail": []any{map[string]any{"msg": s, "input": s}}} }),
		"unknown shape":       echo(418, func(s string) any { return []string{s} }),
		"error under success": echo(200, openAIShape),
		"no answer at all":    echo(200, func(s string) any { return s }),
		"refusal": echo(200, func(s string) any {
			return map[string]any{
				"choices": []any{map[string]any{"message": map[string]any{"refusal": s}}},
				"output":  []any{map[string]any{"type": "message", "content": []any{map[string]any{"type": "refusal", "refusal": s}}}},
				"content": []any{}, "stop_reason": "refusal", "stop_details": map[string]any{"explanation": s},
			}
		}),
		"truncated": echo(200, func(s string) any {
			return map[string]any{
				"choices": []any{map[string]any{"message": map[string]any{"content": "{" + s}, "finish_reason": "length"}},
				"output":  []any{map[string]any{"type": "message", "content": []any{map[string]any{"type": "output_text", "text": "{" + s}}}},
				"status":  "incomplete", "incomplete_details": map[string]any{"reason": "max_output_tokens"},
				"content": []any{map[string]any{"type": "text", "text": "{" + s}}, "stop_reason": "max_tokens",
			}
		}),
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) },
		"closed":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}

	var logged bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })

	base := map[string]string{"no such host": "http://provider.invalid", "refused": "http://127.0.0.1:1"}
	for name, handle := range cases {
		base[name] = serve(t, handle).URL
	}
	for _, d := range dialects {
		q := d.question(t)
		q.Text.Subject, q.Text.Message, q.Version.Prompt = secrets["subject"], "a\nb \"quoted\" "+secrets["message"]+" c", secrets["prompt"]
		for name, url := range base {
			spans := tracetest.NewSpanRecorder()
			client := d.client(t, Config{
				BaseURL: url + "/" + secrets["path"] + "?key=" + secrets["query"], APIKey: secrets["key"],
				TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
			})
			got, err := client.Call(within(t), q)
			var f *failure.Failure
			if !errors.As(err, &f) {
				t.Errorf("%s, %s: error is %v", d.provider, name, err)
				continue
			}
			out := fmt.Sprintf("%v\n%+v\n%#v\n%s\n%s %s\n", err, err, err, f.Detail, got.ServedModel, got.ProviderRequestID)
			for cause := errors.Unwrap(err); cause != nil; cause = errors.Unwrap(cause) {
				out += fmt.Sprintf("%v\n%+v\n%#v\n", cause, cause, cause)
			}
			if len(spans.Ended()) != 1 {
				t.Errorf("%s, %s: %d spans", d.provider, name, len(spans.Ended()))
			}
			for _, span := range spans.Ended() {
				out += fmt.Sprintf("%s %v %v %v\n", span.Name(), span.Attributes(), span.Status(), span.Events())
			}
			for what, secret := range secrets {
				if strings.Contains(out+logged.String(), secret[:16]) {
					t.Errorf("%s, %s: the %s is in\n%s%s", d.provider, name, what, out, logged.String())
				}
			}
			if len(f.Detail) > failure.MaxExcerptBytes {
				t.Errorf("%s, %s: the detail has %d bytes", d.provider, name, len(f.Detail))
			}
		}

		// A key that a provider repeats in part is another matter than one that it repeats: what is left is its message.
		client := d.client(t, Config{BaseURL: serve(t, echo(400, openAIShape)).URL, APIKey: secrets["key"]})
		_, err := client.Call(within(t), d.question(t))
		var f *failure.Failure
		if !errors.As(err, &f) || !strings.HasPrefix(f.Detail, "[…]") || !strings.Contains(f.Detail, "-----BEGIN TICKET") {
			t.Errorf("%s: the detail is %q: nothing was quoted, or nothing is left", d.provider, f.Detail)
		}
	}
}

// echo answers with all that it was sent, in a shape: the key, the query, and beginning and end of every text.
func echo(status int, shape func(everything string) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var sent any
		_ = json.NewDecoder(r.Body).Decode(&sent)
		everything := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("X-Api-Key") + " " + r.URL.Query().Get("key")
		for _, text := range texts(sent) {
			everything += " " + text[:min(len(text), 100)] + " " + text[max(0, len(text)-200):]
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(shape(everything))
	}
}

// texts are the long strings of a JSON value, the ticket's first: little of a quotation is kept.
func texts(v any) []string {
	var all []string
	switch v := v.(type) {
	case string:
		if len(v) > 100 {
			all = append(all, v)
		}
	case []any:
		for _, item := range v {
			all = append(all, texts(item)...)
		}
	case map[string]any:
		for _, item := range v {
			all = append(all, texts(item)...)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Compare(strings.Index(a, "-----BEGIN TICKET"), strings.Index(b, "-----BEGIN TICKET"))
	})
	slices.Reverse(all)
	return all
}

func TestWithhold(t *testing.T) {
	t.Parallel()
	const long = "a long secret that is longer than the window"
	for _, tt := range []struct{ s, secret, want string }{
		{"nothing to hide", long, "nothing to hide"},
		{"", long, ""},
		{long, "", long},
		{"it said: " + long + "!", long, "it said: […]!"},
		{"cut: " + long[:20], long, "cut: […]"},
		{"too little: " + long[:15], long, "too little: " + long[:15]},
		{"twice: " + long[:16] + " / " + long[10:30] + " end", long, "twice: […] / […] end"},
		{"short secrets count whole: hunter2", "hunter2", "short secrets count whole: […]"},
		{"but not words: help", "help", "but not words: help"},
		{"é" + "ééééééééééééé" + "x", "ééééééééé", "[…]x"},
	} {
		if got := withhold(tt.s, tt.secret); got != tt.want {
			t.Errorf("withhold(%q, %q) = %q, want %q", tt.s, tt.secret, got, tt.want)
		}
	}
}

func FuzzWithhold(f *testing.F) {
	f.Add("before the secret after", "the secret", "")
	f.Add("ééééüééé\u202e", "ééé\xc3", "üééé")
	f.Fuzz(func(t *testing.T, s, one, other string) {
		if !utf8.ValidString(s) {
			t.Skip()
		}
		got := withhold(s, one, other)
		if len(got) > len(s) {
			t.Errorf("%d bytes became %d", len(s), len(got))
		}
		for _, secret := range []string{one, other} {
			for _, left := range strings.Split(got, "[…]") {
				if len(secret) >= withheldLeast && strings.Contains(left, secret) {
					t.Errorf("%q is still in %q", secret, got)
				}
			}
		}
	})
}
