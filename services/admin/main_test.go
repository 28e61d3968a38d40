package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/rpc/rpctest"
)

// asService turns the test binary into the service.
const asService = "EVALONCE_TEST_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

func TestTheServiceServesUntilItIsTold(t *testing.T) {
	t.Parallel()
	token, hash := rpc.MintToken()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{
		asService + "=1", "EVALONCE_DATABASE_URL=" + pgtest.As(pgtest.URL(t), pgtest.Admin), "EVALONCE_ADMIN_TOKENS=ana=" + hash,
		"EVALONCE_GRPC_ADDRESS=127.0.0.1:0", "EVALONCE_HTTP_ADDRESS=127.0.0.1:0", "EVALONCE_PLAINTEXT=true", "EVALONCE_HEALTH_ADDRESS=127.0.0.1:0",
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	at := rpctest.ServingAt(t, io.TeeReader(stderr, &log), serviceName)
	for _, c := range []struct {
		method, path, token, body string
		status                    int
	}{
		{"GET", "/healthz", "", "", 200},
		{"GET", "/readyz", "", "", 200},
		{"GET", "/openapi.json", "", "", 200},
		{"GET", "/v1/versions", "", "", 401},
		{"GET", "/v1/versions", token, "", 200},
		{"POST", "/v1/versions", token, `{"id":"v1","prompt_version":"p","provider":"openai","model":"m","departments":[{"name":"a"}],"max_output_tokens":9,"route":"r"}`, 201},
		{"POST", "/v1/versions/v1:promote", token, `{}`, 200},
	} {
		status, body := send(t, c.method, "http://"+at.HTTP+c.path, c.token, c.body)
		if status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stderr)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s%s", err, &log, rest)
	}
	if strings.Contains(log.String()+string(rest), hash) {
		t.Error("the log shows a token's hash")
	}
}

func send(t *testing.T, method, url, token, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAllThatIsWrongWithTheSettingsIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ []string
		parts   []string
	}{
		"nothing is set": {nil, []string{"EVALONCE_DATABASE_URL is not set"}},
		"a token in place of its hash": {
			[]string{"EVALONCE_DATABASE_URL=postgres://x", "EVALONCE_ADMIN_TOKENS=ana=evalonce_secret"}, []string{"EVALONCE_ADMIN_TOKENS"},
		},
		"nothing makes sense": {[]string{
			"EVALONCE_DATABASE_URL=postgres://x", "EVALONCE_ADMIN_TOKENS=ana=" + strings.Repeat("0", 64), "EVALONCE_DATABASE_MAX_CONNECTIONS=0",
			"EVALONCE_MAX_REQUEST_BYTES=900000", "EVALONCE_CALL_TIMEOUT=0s", "EVALONCE_SHUTDOWN_GRACE=-1s",
		}, []string{
			"EVALONCE_DATABASE_MAX_CONNECTIONS must be at least 1", "EVALONCE_MAX_REQUEST_BYTES must be at least 928832",
			"EVALONCE_CALL_TIMEOUT must be positive", "EVALONCE_SHUTDOWN_GRACE must be positive",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), nil, c.environ, io.Discard, io.Discard)
			if !errors.Is(err, process.ErrUsage) {
				t.Fatalf("%v is no error of usage", err)
			}
			for _, part := range c.parts {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "evalonce_secret") {
				t.Errorf("the token is shown: %v", err)
			}
		})
	}
}

func TestHelpShowsTheSettings(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"EVALONCE_GRPC_ADDRESS", ":8084", "EVALONCE_HTTP_ADDRESS", ":8083", "EVALONCE_ADMIN_TOKENS_FILE"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is not in %s", part, &out)
		}
	}
}
