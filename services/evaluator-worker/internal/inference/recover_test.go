package inference_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// The provider keeps the text of those versions that ask for it, and of no others.
func TestOnlyRecoverStores(t *testing.T) {
	t.Parallel()
	text, err := content.Canonical("", "hello")
	if err != nil {
		t.Fatal(err)
	}
	for policy, stores := range map[evaluation.UnknownPolicy]bool{evaluation.Resend: false, evaluation.Hold: false, evaluation.Recover: true} {
		var sent struct {
			Store    *bool             `json:"store"`
			Metadata map[string]string `json:"metadata"`
		}
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = json.Unmarshal(body, &sent)
			}
			if err != nil {
				t.Error(err)
			}
		}))
		client, err := inference.NewOpenAI(inference.Config{BaseURL: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		call := uuid.New()
		version := evaluation.Version{Model: "m", MaxOutputTokens: 1, Departments: []evaluation.Department{{Name: "billing"}}, UnknownPolicy: policy}
		_, _ = client.Call(t.Context(), inference.Request{Version: version, Text: text, CallID: call})
		client.Close()
		server.Close()
		if got := sent.Store != nil && *sent.Store; got != stores {
			t.Errorf("%s stores: %t", policy, got)
		}
		if named := sent.Metadata["evalonce_call_id"] == call.String(); named != stores {
			t.Errorf("%s names its call: %t", policy, named)
		}
	}
}

// Whatever goes wrong in asking, nothing may have been paid for, and the item is not to blame.
func TestRecoverFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		class  failure.Class
	}{
		"not the key":       {401, `{"error":{"code":"invalid_api_key","message":"no"}}`, failure.Operator},
		"too many":          {429, `{"error":{"code":"rate_limit_exceeded","message":"no"}}`, failure.Throttled},
		"down":              {503, `{}`, failure.Transient},
		"timed out":         {504, `{}`, failure.Transient},
		"too long":          {413, `{}`, failure.Transient},
		"no list":           {200, `{}`, failure.Transient},
		"another protocol":  {200, `<html>`, failure.Transient},
		"cut in its middle": {200, `{"data": [{`, failure.Transient},
		"no connection":     {0, "", failure.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			client, err := inference.NewOpenAI(inference.Config{BaseURL: server.URL, APIKey: "sk-test"})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, found, err := client.Recover(t.Context(), evaluation.Version{}, uuid.New())
			var f *failure.Failure
			if found || !errors.As(err, &f) || f.Class != c.class {
				t.Errorf("found %t, %v, want class %s", found, err, c.class)
			}
		})
	}
}
