package main

import (
	"bytes"
	"context"
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

// asTicketAPI makes this test binary the service itself.
const asTicketAPI = "TICKET_API_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asTicketAPI) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestTheProcess(t *testing.T) {
	t.Parallel()
	token, hash := rpc.MintToken()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{
		asTicketAPI + "=1", "EVALONCE_DATABASE_URL=" + pgtest.As(pgtest.URL(t), pgtest.TicketAPI), "EVALONCE_API_TOKENS=acme=" + hash,
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
	address := rpctest.ServingAt(t, io.TeeReader(stderr, &log), serviceName).HTTP
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/openapi.json": 200, "/v1/tickets": 401} {
		if got := get(t, "http://"+address+path, ""); got != want {
			t.Errorf("%s gives %d, want %d", path, got, want)
		}
	}
	if got := get(t, "http://"+address+"/v1/tickets", token); got != http.StatusOK {
		t.Errorf("with the token the list gives %d", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&log, stderr); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, &log)
	}
	if strings.Contains(log.String(), token) || strings.Contains(log.String(), hash) {
		t.Errorf("the log holds a secret: %s", &log)
	}
}

func get(t *testing.T, url, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ []string
		wants   []string
	}{
		"nothing": {nil, []string{"EVALONCE_DATABASE_URL"}},
		"a token in place of its hash": {
			[]string{"EVALONCE_DATABASE_URL=postgres://x", "EVALONCE_API_TOKENS=acme=evalonce_SECRET"}, []string{"EVALONCE_API_TOKENS"},
		},
		"all at once": {
			[]string{
				"EVALONCE_DATABASE_URL=postgres://x", "EVALONCE_API_TOKENS=acme=" + strings.Repeat("0", 64), "EVALONCE_MAX_MESSAGE_BYTES=9000000",
				"EVALONCE_REQUEST_RETENTION=1s", "EVALONCE_CALL_TIMEOUT=-1s", "EVALONCE_SHUTDOWN_GRACE=0s",
				"EVALONCE_DATABASE_MAX_CONNECTIONS=0", "EVALONCE_MAX_SUBJECT_CHARACTERS=0", "EVALONCE_JWT_ISSUER=x",
				"EVALONCE_CLIENT_TICKETS_PER_SECOND=NaN", "EVALONCE_CLIENT_TICKETS_BURST=499",
			},
			[]string{
				"EVALONCE_TLS_CERT_FILE", "EVALONCE_JWT_JWKS_URL",
				"EVALONCE_MAX_REQUEST_BYTES", "EVALONCE_REQUEST_RETENTION", "EVALONCE_CALL_TIMEOUT", "EVALONCE_SHUTDOWN_GRACE",
				"EVALONCE_DATABASE_MAX_CONNECTIONS", "EVALONCE_MAX_SUBJECT_CHARACTERS",
				"EVALONCE_CLIENT_TICKETS_PER_SECOND", "EVALONCE_CLIENT_TICKETS_BURST must be at least 500",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), nil, c.environ, io.Discard, io.Discard)
			if !errors.Is(err, process.ErrUsage) {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s is not in %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "SECRET") {
				t.Errorf("a secret is in %v", err)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	_ = run(context.Background(), []string{"--help"}, nil, &stdout, io.Discard)
	for _, want := range []string{"EVALONCE_DATABASE_URL", "EVALONCE_API_TOKENS", "EVALONCE_REQUEST_RETENTION", "168h"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%s is not in\n%s", want, &stdout)
		}
	}
}
