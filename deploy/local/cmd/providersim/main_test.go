package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func script(t *testing.T, rules string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return "EVALONCE_PROVIDERSIM_SCRIPT=" + path
}

func TestServesItsScriptUntilItIsStopped(t *testing.T) {
	t.Parallel()
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	logged, log := io.Pipe()
	ended := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		err := run(serving, nil, []string{
			"EVALONCE_PROVIDERSIM_ADDRESS=127.0.0.1:0",
			script(t, `[{"name":"printer","match":{"text":"printer"},"action":{"error":"slow_down"}}]`),
		}, io.Discard, log)
		_ = log.Close()
		ended <- err
	}()
	lines := json.NewDecoder(logged)
	var started struct {
		URL   string
		Rules int
	}
	if err := lines.Decode(&started); err != nil || started.Rules != 1 {
		t.Fatalf("first line %+v: %v", started, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, started.URL+"/_sim/rules", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), `"printer"`) {
		t.Errorf("rules %s, %v", body, err)
	}
	stop()
	if _, err := io.Copy(io.Discard, io.MultiReader(lines.Buffered(), logged)); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestRefusesABadEnvironment(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{
		"EVALONCE_PROVIDERSIM_LATENCY_MIN=1s", "EVALONCE_PROVIDERSIM_CONCURRENT=-1", "EVALONCE_PROVIDERSIM_OUTPUT_USD_PER_MTOK=-2",
		"EVALONCE_PROVIDERSIM_SEED=many", "EVALONCE_PROVIDERSIM_SCRIPT=" + filepath.Join(t.TempDir(), "absent.json"),
		script(t, `{"action":{"error":"gremlins"}}`), script(t, `{"surprise":1}`),
	} {
		err := run(t.Context(), nil, []string{"EVALONCE_PROVIDERSIM_ADDRESS=127.0.0.1:0", entry}, io.Discard, io.Discard)
		if !errors.Is(err, process.ErrUsage) {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

func TestExplainsItself(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, nil, &out, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "EVALONCE_PROVIDERSIM_SCRIPT") {
		t.Errorf("help:\n%s", &out)
	}
}
