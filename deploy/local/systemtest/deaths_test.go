package systemtest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

// crashAt begins the entry of an environment that says where to die.
const crashAt = "EVALONCE_CRASH_AT="

// crashBinaries are the services with crash points in them.
var crashBinaries = sync.OnceValues(func() (string, error) { return stack.BuildCrashing(context.Background()) })

func crashing(t *testing.T) string {
	t.Helper()
	bin, err := crashBinaries()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// died waits for the end of a process that is to die at a point, and proves that it did.
func (s *system) died(p *stack.Process, at crashpoint.Point) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	state, err := p.Wait(ctx)
	if err != nil {
		s.t.Fatalf("%s did not come to %s: %v\n%s", p.Name, at, err, p.LogTail())
	}
	if status := state.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		s.t.Fatalf("%s ended with %s\n%s", p.Name, state, p.LogTail())
	}
	if log, err := p.Log(); err != nil || !strings.Contains(log, "killed at "+string(at)+"\n") {
		s.t.Fatalf("%s was not killed at %s; %v\n%s", p.Name, at, err, p.LogTail())
	}
}

// launchWorker starts a worker that need not live until it is ready.
func (s *system) launchWorker(name string, env ...string) *stack.Process {
	s.t.Helper()
	health, err := s.stack.FreeAddress(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return s.launch(stack.Spec{
		Name: name, Binary: "evaluator-worker",
		Env: append([]string{
			"EVALONCE_DATABASE_URL=" + pgtest.As(s.stack.DatabaseURL(), pgtest.EvaluatorWorker), "EVALONCE_HEALTH_ADDRESS=" + health,
			"EVALONCE_OPENAI_BASE_URL=" + s.sim.URL() + "/v1", "EVALONCE_OPENAI_API_KEY=sk-test", "EVALONCE_POLL_INTERVAL=100ms",
		}, env...),
	})
}

func (s *system) launch(spec stack.Spec) *stack.Process {
	s.t.Helper()
	p, err := s.stack.Start(s.t.Context(), spec)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// withoutFate is an environment without what it says of a death.
func withoutFate(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, crashAt) })
}

// openCalls are the calls that may be under way.
func (s *system) openCalls() map[string]bool {
	s.t.Helper()
	ids, err := s.readOpenCalls(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	open := map[string]bool{}
	for _, id := range ids {
		open[id] = true
	}
	return open
}

func (s *system) readOpenCalls(ctx context.Context) ([]string, error) {
	rows, err := s.db.Query(ctx, "SELECT id::text FROM model_call WHERE outcome = 'open'")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// expire lets the leases of all workers be over: those who live extend theirs again, or have lost them.
func (s *system) expire() {
	s.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 ms' WHERE status = 'processing'")
}

// The product cannot be told to die.
func TestProductHasNoCrashPoints(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ticket-api", "evaluator-worker", "sweeper"} {
		product, armed := read(t, binaries, name), read(t, crashing(t), name)
		texts := []string{strings.TrimSuffix(crashAt, "=")}
		for _, p := range crashpoint.All() {
			texts = append(texts, string(p))
		}
		for _, text := range texts {
			if bytes.Contains(product, []byte(text)) {
				t.Errorf("%s contains %q", name, text)
			}
			if !bytes.Contains(armed, []byte(text)) {
				t.Errorf("%s with crash points does not contain %q: this test finds nothing", name, text)
			}
		}
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
