package systemtest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// clockOff is the environment variable that a binary of buildWithClock reads.
const clockOff = "CLOCK_OFF"

// buildWithClock builds a worker whose clock can be set wrong: its time.Now is that of the toolchain with a constant
// added. Time that passes, as timers and deadlines measure it, stays right, as on a machine with a wrong clock.
func buildWithClock(t *testing.T) (bin string) {
	t.Helper()
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(string(bytes.TrimSpace(goroot)), "src", "time")
	original, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if n := bytes.Count(original, []byte(reads)); n != 1 {
		t.Fatalf("this toolchain's time.Now is another one: found it %d times", n)
	}
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	now := write("time.go", bytes.Replace(original, []byte(reads), []byte(reads+"\tsec += off\n"), 1))
	off := write("off.go", []byte(`package time

import "syscall"

var off = func() int64 {
	value, _ := syscall.Getenv("`+clockOff+`")
	d, _ := ParseDuration(value)
	return int64(d / Second)
}()
`))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(source, "time.go"): now, filepath.Join(source, "off.go"): off,
	}})
	if err != nil {
		t.Fatal(err)
	}
	bin, err = stack.BuildInto(t.Context(), "test-bin-clock", []string{"-overlay=" + write("overlay.json", overlay)}, "./services/evaluator-worker")
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Workers whose clocks are ten minutes off, one ahead and one behind. Neither takes the other's leases for expired or
// loses its own, retries come when they are due, and a killed one's work is taken over when its lease is over: all of
// it by the database's clock.
func TestClocksDoNotMatter(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the standard library")
	}
	bin := buildWithClock(t) // before anybody's clock runs
	t.Parallel()
	const hung = 4
	s := startSystem(t, options{
		latency: someLatency, version: patientVersion,
		rules: []providersim.Rule{
			{Match: providersim.Match{Text: "hang", Attempt: 1}, Action: hang},
			{Match: providersim.Match{Text: text(3), Attempt: 1}, Action: providersim.Action{Error: providersim.ServerError500}},
			{Match: providersim.Match{Text: text(4), Attempt: 1}, Action: providersim.Action{Latency: 5 * time.Second}},
			{Match: providersim.Match{Text: text(5), Attempt: 1}, Action: providersim.Action{Latency: 5 * time.Second}},
		},
	})
	wrong, err := stack.New(t.Context(), stack.Options{Bin: bin, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := wrong.Stop(); err != nil {
			t.Error(err)
		}
	})
	wrong.UseDatabase(s.stack.DatabaseURL())
	endpoint := stack.Endpoint{BaseURL: s.sim.URL() + "/v1", APIKey: "sk-test"}
	start := func(off string) *stack.Process {
		p, err := wrong.StartWorker(t.Context(), endpoint, clockOff+"="+off, leaseInMatrix, "EVALONCE_POLL_INTERVAL=100ms", "EVALONCE_CONCURRENCY=4")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for n := range hung {
		s.create("hang " + text(n))
	}
	ahead := start("10m")
	s.hanging(hung)
	behind := start("-10m")
	ids := s.submit(someOrders())
	s.until(contents, "evaluation_result")
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
		t.Errorf("%d calls are taken for lost while their workers live", n)
	}
	if n := s.count("evaluation_outbox WHERE status = 'processing'"); n != hung {
		t.Errorf("%d leases are held, want the %d of the calls that hang", n, hung)
	}
	s.kill(ahead)
	killed := s.openCalls()
	s.sim.Release()
	s.until(0, "evaluation_outbox") // three seconds, and not ten minutes
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != hung {
		t.Errorf("%d calls of unknown outcome, want the %d that were killed", n, hung)
	}
	if n := s.count("model_call m JOIN model_call f ON f.idempotency_key = m.idempotency_key AND f.attempt = 1 AND f.outcome = 'failed'" +
		" WHERE m.attempt = 2 AND m.started_at - f.finished_at BETWEEN interval '2 s' AND interval '1 min'"); n != 1 {
		t.Error("the retry did not come when it was due")
	}
	if n := s.count("evaluation_result WHERE abs(extract(epoch FROM now() - computed_at)) > 120"); n != 0 {
		t.Errorf("%d results carry a worker's time", n)
	}
	if n := s.count("model_call WHERE abs(extract(epoch FROM now() - started_at)) > 120 OR abs(extract(epoch FROM now() - finished_at)) > 120"); n != 0 {
		t.Errorf("%d calls carry a worker's time", n)
	}
	for _, p := range []*stack.Process{ahead, behind} {
		if off := clockOf(t, p); off < 9*time.Minute && off > -9*time.Minute {
			t.Errorf("the clock of %s is only %s off: this test shows nothing", p.Name, off)
		}
	}
	s.ended(ids, "")
	s.promises(killed)
}

// clockOf is how far the clock of a process is off, by what it has logged.
func clockOf(t *testing.T, p *stack.Process) time.Duration {
	t.Helper()
	log, err := p.Log()
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(log, "\n")
	var line struct{ Time time.Time }
	if err := json.Unmarshal([]byte(first), &line); err != nil {
		t.Fatalf("%v: %s", err, first)
	}
	return time.Until(line.Time)
}
