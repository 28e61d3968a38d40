package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

const asSweeper = "EVALONCE_TEST_AS_SWEEPER"

// TestMain makes the test binary a sweeper when it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv(asSweeper) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// command is a sweeper as a process of its own.
func (w *world) command(ctx context.Context, environ []string, args ...string) *exec.Cmd {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append([]string{asSweeper + "=1", "PATH=" + os.Getenv("PATH"), "EVALONCE_DATABASE_URL=" + pgtest.As(w.url, pgtest.Sweeper)}, environ...)
	return cmd
}

type outcome struct {
	code   int
	stdout string
	stderr string
}

func runToEnd(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// line reads the one line that a sweep prints.
func line(t *testing.T, stdout string) summary {
	t.Helper()
	var s summary
	if strings.Count(stdout, "\n") != 1 || !strings.HasSuffix(stdout, "\n") {
		t.Fatalf("printed %q, want one line", stdout)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		t.Fatalf("printed %q: %v", stdout, err)
	}
	return s
}

func TestPrintsOneLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	w.lose("lost", "v1", 2)
	o := runToEnd(t, w.command(t.Context(), nil, "--fsck"))
	if o.code != 0 {
		t.Fatalf("exit %d: %s", o.code, o.stderr)
	}
	s := line(t, o.stdout)
	printed := strings.Replace(o.stdout, `"duration_ms":`+jsonOf(t, s.DurationMS), `"duration_ms":1`, 1)
	if want := `{"reclaimed_pending":2,"reclaimed_dead":0,"unknown_calls":2,"pruned_requests":0,"partitions_made":0,"reconciled":0,` +
		`"erased_tickets":0,"erased_responses":0,"erased_deliveries":0,"violations":0,"duration_ms":1,"skipped":[],"failed":[]}` + "\n"; printed != want {
		t.Errorf("printed %s, want %s", printed, want)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	w.tickets("old", 1, 100*time.Hour)
	for name, test := range map[string]struct {
		environ []string
		args    []string
		code    int
		stdout  string
		stderr  string
	}{
		"nobody looks":     {code: 0, stdout: `"reconciled":0`},
		"violation":        {environ: []string{"EVALONCE_FSCK=true"}, code: 1, stdout: `"violations":1`, stderr: "ticket_without_work"},
		"flag is stronger": {environ: []string{"EVALONCE_FSCK=true"}, args: []string{"--fsck=false"}, code: 0, stdout: `"reconciled":0`},
		"no such flag":     {args: []string{"--fsk"}, code: 2, stderr: "fsk"},
		"argument":         {args: []string{"now"}, code: 2, stderr: "now"},
		"bad settings": {
			environ: []string{"EVALONCE_RECONCILE_WINDOW=0s", "EVALONCE_FSCK_TIMEOUT=-1s"}, args: []string{"--interval=1ms"},
			code: 2, stderr: "EVALONCE_INTERVAL must be 0 or at least 1s",
		},
		"bad duration": {args: []string{"--interval", "soon"}, code: 2, stderr: "EVALONCE_INTERVAL"},
		"no database":  {environ: []string{"EVALONCE_DATABASE_URL_FILE=/nowhere"}, code: 2, stderr: "EVALONCE_DATABASE_URL"},
		"help":         {args: []string{"--help"}, code: 0, stdout: "EVALONCE_RECONCILE_WINDOW"},
		"help, flags":  {args: []string{"-h"}, code: 0, stdout: "--reconcile-all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := runToEnd(t, w.command(t.Context(), test.environ, test.args...))
			if o.code != test.code || !strings.Contains(o.stdout, test.stdout) || !strings.Contains(o.stderr, test.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q", o.code, o.stdout, o.stderr)
			}
			if test.code == 2 && o.stdout != "" {
				t.Errorf("printed %q", o.stdout)
			}
		})
	}
}

// Two sweepers at once do what one would have done, once.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	const lost, held, forgotten, alone = 3000, 1000, 4000, 5000
	w.lose("lost", "v1", lost)
	w.lose("held", "hold", held)
	w.request("forgotten", forgotten, time.Microsecond)
	w.tickets("alone", alone, time.Hour)
	w.dropNextMonth()

	outcomes := make([]outcome, 2)
	var wg sync.WaitGroup
	for i := range outcomes {
		wg.Go(func() { outcomes[i] = runToEnd(t, w.command(t.Context(), nil)) })
	}
	wg.Wait()
	total := summary{Skipped: []string{}, Failed: []string{}}
	for _, o := range outcomes {
		if o.code != 0 {
			t.Fatalf("exit %d: %s", o.code, o.stderr)
		}
		s := line(t, o.stdout)
		t.Logf("%s", o.stdout)
		total.ReclaimedPending += s.ReclaimedPending
		total.ReclaimedDead += s.ReclaimedDead
		total.UnknownCalls += s.UnknownCalls
		total.PrunedRequests += s.PrunedRequests
		total.PartitionsMade += s.PartitionsMade
		total.Reconciled += s.Reconciled
	}
	want(t, total, summary{
		ReclaimedPending: lost, ReclaimedDead: held, UnknownCalls: lost + held, PrunedRequests: forgotten, PartitionsMade: 1,
		Reconciled: alone,
	})
	if work := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE lane = 'bulk'"); work != alone {
		t.Errorf("%d evaluations for %d contents", work, alone)
	}
	fscktest.Require(t, w.db)
}

func TestGoesOnUntilToldToStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	cmd := w.command(t.Context(), nil, "--interval=1s")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	next := func() summary {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("no line: %v, %s", lines.Err(), &stderr)
		}
		return line(t, lines.Text()+"\n")
	}
	next()
	w.tickets("alone", 1, 0)
	if s := next(); s.Reconciled != 1 {
		t.Errorf("the second sweep did %+v, want one ticket reconciled", s)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		line(t, lines.Text()+"\n")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, &stderr)
	}
}
