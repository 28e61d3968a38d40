package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// awake needs no waking.
type awake struct{}

func (awake) Wake() {}

// operator runs command lines against an admin service on a database of its own.
type operator struct {
	t              *testing.T
	address, token string
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	db := pgtest.PoolAs(t, pgtest.New(t), pgtest.Admin)
	return serve(t, api.Policy(), func(r grpc.ServiceRegistrar) { api.Register(r, db, db, awake{}) })
}

// serve serves the services that the policy names until the test ends; change may adjust how.
func serve(t *testing.T, policy rpc.Policy, register func(grpc.ServiceRegistrar), change ...func(*rpc.Options)) *operator {
	t.Helper()
	token, hash := rpc.MintToken()
	tokens, err := rpc.ParseTokens("ana=" + hash)
	if err != nil {
		t.Fatal(err)
	}
	options := rpc.Options{
		Transport:   rpc.Transport{Plaintext: true},
		GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0", Register: register,
		Authenticator: rpc.Grant(tokens, rpc.AdminWrite), Policy: policy, Errors: api.Errors,
		MaxRequestBytes: 4 << 20, CallTimeout: 20 * time.Second, Grace: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&options)
	}
	server, err := rpc.Listen(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Run(serving) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return &operator{t: t, address: server.GRPCAddress(), token: token}
}

func (o *operator) environ() []string {
	return []string{"EVALONCE_ADMIN_ADDRESS=" + o.address, "EVALONCE_ADMIN_TOKEN=" + o.token}
}

// outcome is what a command line has left behind.
type outcome struct {
	code     int
	out, err string
}

// runs executes a command line as a script does, without a terminal.
func (o *operator) runs(args ...string) outcome {
	o.t.Helper()
	return execute(o.t, o.environ(), nil, args...)
}

// answers executes a command line on a terminal, with what is typed there.
func (o *operator) answers(typed string, args ...string) outcome {
	o.t.Helper()
	return execute(o.t, o.environ(), &typed, args...)
}

func execute(t *testing.T, environ []string, typed *string, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	s := streams{in: strings.NewReader(""), out: &out, err: &err}
	if typed != nil {
		s.in, s.interactive = strings.NewReader(*typed), true
	}
	code := run(t.Context(), args, environ, s)
	return outcome{code: code, out: out.String(), err: err.String()}
}

func (o *operator) must(args ...string) outcome {
	o.t.Helper()
	got := o.runs(args...)
	if got.code != 0 {
		o.t.Fatalf("%s: %+v", strings.Join(args, " "), got)
	}
	return got
}

// want checks an exit code, and that the standard error holds all parts and nothing raw.
func (got outcome) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if got.code != code {
		t.Errorf("exit code %d, want %d: %+v", got.code, code, got)
	}
	if code != 0 && (got.out != "" || !strings.Contains(got.err, "evalctl: ")) {
		t.Errorf("a failure on the wrong stream: %+v", got)
	}
	for _, part := range parts {
		if !strings.Contains(got.err, part) {
			t.Errorf("standard error is %q, without %q", got.err, part)
		}
	}
	for _, raw := range []string{"rpc error", "code =", "desc =", "goroutine", "Usage:"} {
		if strings.Contains(got.err, raw) {
			t.Errorf("standard error shows %q: %s", raw, got.err)
		}
	}
}

// file writes a file of the test's own.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// yamlVersion is a version in YAML, with its prompt and further lines.
func yamlVersion(id, prompt string, more ...string) string {
	return strings.Join(append([]string{
		"# a comment", "id: " + id, "prompt_version: p-" + id, "provider: openai", "model: m-" + id, "prompt: |", "  " + prompt, "  ---",
		"departments:", "  - name: billing", "    description: money", "  - {name: technical}",
		"max_output_tokens: 100", "route: main", `prices: {input_usd_per_mtok: "0.25", output_usd_per_mtok: "2.00"}`,
	}, more...), "\n") + "\n"
}

// fails is a writer that is full.
type fails struct{}

func (fails) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
