package systemtest

import (
	"encoding/base64"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

// A secret of 32 bytes, as each of them is known and told.
const secret = "Geheimnis-Sentinel-of-32-bytes-!"

// tellsSecret reports whether an output has the secret, or a part of it that is told by itself.
func tellsSecret(output string) bool {
	encoded := base64.StdEncoding.EncodeToString([]byte(secret))
	return strings.Contains(output, "Sentinel") || strings.Contains(output, encoded[:16])
}

// said runs a binary of the product to its end, in this environment alone, and returns all that it printed.
func said(t *testing.T, binary string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, binary), args...)
	cmd.Env = append([]string{}, env...)
	output, err := cmd.CombinedOutput()
	if len(output) == 0 {
		t.Fatalf("%s said nothing: %v", binary, err)
	}
	return string(output)
}

var (
	settings = regexp.MustCompile(`(?m)^(EVALONCE_\w+) .*$`)
	secretly = regexp.MustCompile(`\b(KEYS?|TOKENS?|SECRETS?|PASSWORD|PROXY_URL|DATABASE_URL)$`)
)

// secretsOf are the settings of a service that its help says can be files, as secrets can.
func secretsOf(t *testing.T, binary string) []string {
	t.Helper()
	var names []string
	for _, line := range settings.FindAllStringSubmatch(said(t, binary, nil, "--help"), -1) {
		isSecret := strings.HasSuffix(line[0], "or its file as "+line[1]+"_FILE")
		if isSecret {
			names = append(names, line[1])
		} else if secretly.MatchString(strings.ReplaceAll(line[1], "_", " ")) || strings.HasSuffix(line[1], "DATABASE_URL") {
			t.Errorf("%s: %s sounds like a secret, and is none", binary, line[1])
		}
	}
	return names
}

func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	for binary, want := range map[string][]string{
		"ticket-api": {"EVALONCE_API_TOKENS", "EVALONCE_DATABASE_URL", "EVALONCE_READ_DATABASE_URL", "EVALONCE_WEBHOOK_KEYS"},
		"admin":      {"EVALONCE_ADMIN_TOKENS", "EVALONCE_DATABASE_URL", "EVALONCE_READ_DATABASE_URL"},
		"sweeper":    {"EVALONCE_DATABASE_URL"},
		"evaluator-worker": {
			"EVALONCE_ANTHROPIC_API_KEY", "EVALONCE_ANTHROPIC_PROXY_URL", "EVALONCE_DATABASE_URL", "EVALONCE_DIRECT_DATABASE_URL",
			"EVALONCE_OPENAI_API_KEY", "EVALONCE_OPENAI_PROXY_URL", "EVALONCE_WEBHOOK_KEYS",
		},
	} {
		t.Run(binary, func(t *testing.T) {
			t.Parallel()
			names := slices.Sorted(slices.Values(secretsOf(t, binary)))
			if !slices.Equal(names, want) {
				t.Errorf("its secrets are %q, want %q", names, want)
			}
			const malformed = "://" + secret + "\x01%zz"
			var all []string
			for _, name := range names {
				all = append(all, name+"="+malformed)
				alone := []string{name + "=" + malformed, "EVALONCE_PLAINTEXT=true"}
				if name != "EVALONCE_DATABASE_URL" {
					alone = append(alone, "EVALONCE_DATABASE_URL=postgres://u:"+secret+"@127.0.0.1:1/db")
				}
				if output := said(t, binary, alone); tellsSecret(output) {
					t.Errorf("a malformed %s is told: %s", name, output)
				}
			}
			if output := said(t, binary, all, "--help"); tellsSecret(output) {
				t.Errorf("--help tells: %s", output)
			}
			if output := said(t, binary, all); tellsSecret(output) {
				t.Errorf("what is wrong is told: %s", output)
			}
			if output := said(t, binary, nil, "--token="+secret); tellsSecret(output) {
				t.Errorf("an argument is told: %s", output)
			}
		})
	}
	t.Run("migrate", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{
			"postgres://u:" + secret + "@127.0.0.1:1/db", "postgres://u:" + secret + "/x@127.0.0.1:1/db", "postgres://u:" + secret + "%zz@h/db",
			"postgres://u@127.0.0.1:1/db?password=" + secret + "&sslmode=" + secret, "host=127.0.0.1 port=" + secret + " password=" + secret,
		} {
			for _, args := range [][]string{{"up"}, {"status"}, {"wait", "--timeout=1ms"}, {"up", "--database-url=" + url}} {
				if output := said(t, "migrate", []string{"EVALONCE_DATABASE_URL=" + url}, args...); tellsSecret(output) {
					t.Errorf("%s of %s is told: %s", args[0], url, output)
				}
			}
		}
	})
}

// What a process leaves behind that crashes: all of its stacks, and all that it has logged.
func TestACrashTellsNoSecrets(t *testing.T) {
	t.Parallel()
	database := strings.Replace(pgtest.URL(t), "postgres@", "postgres:"+secret+"@", 1)
	for binary, role := range map[string]pgtest.Role{
		"ticket-api": pgtest.TicketAPI, "admin": pgtest.Admin, "evaluator-worker": pgtest.EvaluatorWorker,
	} {
		t.Run(binary, func(t *testing.T) {
			t.Parallel()
			s, err := stack.New(t.Context(), stack.Options{Bin: binaries, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}()
			health, err := s.FreeAddress(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p, err := s.Start(t.Context(), stack.Spec{Name: binary, Binary: binary, Ready: "http://" + health + "/readyz", Env: []string{
				"EVALONCE_DATABASE_URL=" + pgtest.As(database, role), "EVALONCE_HEALTH_ADDRESS=" + health, "EVALONCE_PLAINTEXT=true",
				"EVALONCE_GRPC_ADDRESS=127.0.0.1:0", "EVALONCE_HTTP_ADDRESS=127.0.0.1:0",
				"EVALONCE_API_TOKENS=acme=" + strings.Repeat("0", 64), "EVALONCE_ADMIN_TOKENS=ana=" + strings.Repeat("0", 64),
				"EVALONCE_WEBHOOK_KEYS=k=" + base64.StdEncoding.EncodeToString([]byte(secret)),
				"EVALONCE_OPENAI_API_KEY=" + secret, "EVALONCE_OPENAI_PROXY_URL=http://u:" + secret + "@127.0.0.1:1", "EVALONCE_ANTHROPIC_API_KEY=" + secret,
				"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS=authorization=" + secret, "GOTRACEBACK=system",
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Signal(syscall.SIGQUIT); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			log, err := p.Log()
			if err != nil || !strings.Contains(log, "goroutine ") {
				t.Fatalf("%v: the process has left no stacks: %s", err, log)
			}
			if tellsSecret(log) {
				t.Errorf("it is told: %s", log)
			}
		})
	}
}
