package webhook_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/evalonce/evalonce/pkg/webhook"
)

// A URL that is accepted is one of a host over TLS, with nothing in it that a log or a proxy would show or misread.
func FuzzURL(f *testing.F) {
	for _, s := range []string{
		"https://acme.example/hook?token=x", "https://user:pass@acme.example", "http://acme.example", "https:acme.example", "https://", "https://[::1]:0/", "https://a:99999",
		"https://a/#b", "https://127.0.0.1\\@acme.example", "https://acme.example\r\nHost: x", "HTTPS://acme.example", "https://%61cme.example", "https://ácme.example", "//acme.example",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if webhook.CheckURL(raw, false) != "" {
			return
		}
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, raw, nil)
		if err != nil {
			t.Fatalf("%q is accepted, and cannot be sent to: %v", raw, err)
		}
		if r.URL.Scheme != "https" || r.URL.Hostname() == "" || r.URL.User != nil || r.URL.Fragment != "" || len(raw) > 2048 {
			t.Errorf("%q is accepted", raw)
		}
		if webhook.CheckURL(raw, true) != "" {
			t.Errorf("%q is accepted only where less is", raw)
		}
	})
}
