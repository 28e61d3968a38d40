package health_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// addressLog takes the address that the server logs.
type addressLog struct {
	slog.Handler
	address chan string
}

func (addressLog) Enabled(context.Context, slog.Level) bool { return true }

func (l addressLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "address" {
			l.address <- a.Value.String()
		}
		return true
	})
	return nil
}

func TestServer(t *testing.T) { // not parallel: it takes the default logger
	addresses := make(chan string, 1)
	before := slog.Default()
	slog.SetDefault(slog.New(addressLog{slog.DiscardHandler, addresses}))
	defer slog.SetDefault(before)

	var broken atomic.Bool
	s := health.Server{
		Address: "127.0.0.1:0",
		Ready: func(context.Context) error {
			if broken.Load() {
				return errors.New("db.internal:5432 refused")
			}
			return nil
		},
		Remarks: func() []string { return []string{"route main is halted: unauthorized"} },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a_metric 1\n") }),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	base := "http://" + <-addresses
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\nroute main is halted: unauthorized\n", "/metrics": "a_metric 1\n"} {
		if status, body := get(path); status != http.StatusOK || body != want {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	broken.Store(true)
	if status, body := get("/readyz"); status != http.StatusServiceUnavailable || strings.Contains(body, "db.internal") {
		t.Errorf("not ready: %d %q", status, body)
	}
	if status, _ := get("/healthz"); status != http.StatusOK {
		t.Errorf("what is not ready lives all the same: %d", status)
	}
	if status, _ := get("/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("profiles: %d", status)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}
