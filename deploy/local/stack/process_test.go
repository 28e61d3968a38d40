package stack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

// newStack is a stack whose binaries are shell scripts.
func newStack(t *testing.T, scripts map[string]string) *stack.Stack {
	t.Helper()
	bin := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, err := stack.New(t.Context(), stack.Options{Bin: bin, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stopped(t *testing.T, s *stack.Stack) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func start(t *testing.T, s *stack.Stack, spec stack.Spec) *stack.Process {
	t.Helper()
	p, err := s.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func waitForLog(t *testing.T, p *stack.Process, what string) {
	t.Helper()
	eventually(t, "log of "+p.Name+" says "+what, func() bool {
		log, err := p.Log()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log, what)
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// sleeper ends politely, and says so.
const sleeper = `trap 'echo bye; exit 0' TERM; echo up "$@"; while :; do sleep 0.05; done`

func TestStopIsInReverseOrderAndPolite(t *testing.T) {
	t.Parallel()
	s := newStack(t, map[string]string{"sleeper": `trap 'date +%s%N >$1; exit 0' TERM; echo up; while :; do sleep 0.05; done`})
	dir := t.TempDir()
	var stamps []string
	for _, name := range []string{"a", "b", "c"} {
		stamps = append(stamps, filepath.Join(dir, name))
		waitForLog(t, start(t, s, stack.Spec{Name: name, Binary: "sleeper", Args: stamps[len(stamps)-1:]}), "up")
	}
	stopped(t, s)
	last := ""
	for _, path := range []string{stamps[2], stamps[1], stamps[0]} {
		stamp, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("not asked to stop: %v", err)
		}
		if string(stamp) < last {
			t.Errorf("%s ended before one that was started later", path)
		}
		last = string(stamp)
	}
}

func TestStopInsists(t *testing.T) {
	t.Parallel()
	s := newStack(t, map[string]string{"stubborn": `trap '' TERM; echo up; while :; do sleep 0.05; done`, "sleeper": sleeper})
	p := start(t, s, stack.Spec{Name: "stubborn", Binary: "stubborn", Grace: 100 * time.Millisecond})
	waitForLog(t, p, "up")
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "stubborn") {
		t.Errorf("got %v, want that it had to be killed", err)
	}
	state, err := p.Wait(t.Context())
	if err != nil || state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("got %v, %v", state, err)
	}
	// A stopped process wakes up to hear that it is to stop.
	p = start(t, s, stack.Spec{Name: "sleeper", Binary: "sleeper"})
	waitForLog(t, p, "up")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	waitForLog(t, p, "bye")
	stopped(t, s)
}

func TestDeathAtStartIsTold(t *testing.T) {
	t.Parallel()
	s := newStack(t, map[string]string{"broken": `for i in $(seq 100); do echo line $i; done; echo 'listen: address already in use' >&2; exit 3`})
	defer stopped(t, s)
	address, err := s.FreeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Start(t.Context(), stack.Spec{Name: "broken-one", Binary: "broken", Ready: "http://" + address})
	died, ok := errors.AsType[*stack.DiedError](err)
	if !ok || died.Name != "broken-one" || died.State != "exit status 3" {
		t.Fatalf("got %v", err)
	}
	if lines := strings.Split(died.LogTail, "\n"); len(lines) != 12 || lines[0] != "line 90" || lines[11] != "listen: address already in use" {
		t.Errorf("got %q", lines)
	}
	if !strings.Contains(err.Error(), died.LogPath) || !strings.Contains(err.Error(), "already in use") {
		t.Errorf("not told: %v", err)
	}
	if _, err := s.Start(t.Context(), stack.Spec{Name: "x", Binary: "missing"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	s := newStack(t, map[string]string{"sleeper": sleeper})
	defer stopped(t, s)
	address, err := s.FreeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired")
	time.AfterFunc(50*time.Millisecond, func() { cancel(tired) })
	if _, err := s.Start(ctx, stack.Spec{Name: "sleeper", Binary: "sleeper", Ready: "http://" + address}); !errors.Is(err, tired) {
		t.Errorf("got %v", err)
	}
}

func TestWatchTellsOnlyUnaskedDeaths(t *testing.T) {
	t.Parallel()
	s := newStack(t, map[string]string{"sleeper": sleeper})
	defer stopped(t, s)
	ctx, cancel := s.Watch(t.Context())
	defer cancel()
	asked := start(t, s, stack.Spec{Name: "asked", Binary: "sleeper"})
	if err := asked.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := asked.Kill(); err != nil {
		t.Errorf("killing the dead: %v", err)
	}
	again := start(t, s, asked.Spec)
	waitForLog(t, again, "up")
	if log, err := again.Log(); err != nil || strings.Count(log, "up") != 1 {
		t.Errorf("the log of the second has %q of the first, %v", log, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("told: %v", context.Cause(ctx))
	}
	unasked := start(t, s, stack.Spec{Name: "unasked", Binary: "sleeper"})
	if err := syscall.Kill(unasked.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if died, ok := errors.AsType[*stack.DiedError](context.Cause(ctx)); !ok || died.Name != "unasked" || died.State != "signal: killed" {
		t.Errorf("got %v", context.Cause(ctx))
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	s := newStack(t, map[string]string{"job": `echo "out $1"; echo "err $1" >&2; exit $1`})
	defer stopped(t, s)
	ctx, cancel := s.Watch(t.Context())
	defer cancel()
	out, err := s.Run(t.Context(), stack.Spec{Name: "job", Binary: "job", Args: []string{"0"}})
	if err != nil || string(out) != "out 0\n" {
		t.Errorf("got %q, %v", out, err)
	}
	out, err = s.Run(t.Context(), stack.Spec{Name: "job", Binary: "job", Args: []string{"4"}})
	if died, ok := errors.AsType[*stack.DiedError](err); !ok || died.State != "exit status 4" || died.LogTail != "err 4" || string(out) != "out 4\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if ctx.Err() != nil {
		t.Error("the end of a job passed for a death")
	}
}

func TestEnvironmentIsOwn(t *testing.T) { // not parallel: it sets variables
	for _, name := range []string{"EVALONCE_DATABASE_URL", "OPENAI_API_KEY", "PGPASSWORD"} {
		t.Setenv(name, "of the caller")
	}
	t.Setenv("OTEL_SERVICE_NAME", "kept")
	s := newStack(t, map[string]string{"env": "env"})
	defer stopped(t, s)
	out, err := s.Run(t.Context(), stack.Spec{Name: "env", Binary: "env", Env: []string{"EVALONCE_X=1", "EVALONCE_X=2"}})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "of the caller") || !strings.Contains(string(out), "OTEL_SERVICE_NAME=kept\n") || !strings.Contains(string(out), "EVALONCE_X=2\n") || strings.Contains(string(out), "EVALONCE_X=1\n") {
		t.Errorf("got\n%s", out)
	}
}

func TestFreeAddresses(t *testing.T) {
	t.Parallel()
	s := newStack(t, nil)
	defer stopped(t, s)
	another := newStack(t, nil)
	defer stopped(t, another)
	seen := map[string]bool{}
	for i := range 50 {
		address, err := []*stack.Stack{s, another}[i%2].FreeAddress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if seen[address] {
			t.Errorf("%s was given out twice", address)
		}
		seen[address] = true
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("not free: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

const ownerDir = "EVALONCE_TEST_OWNER_DIR"

// own is another process, which starts one of its own and then does nothing.
func own() {
	ctx := context.Background()
	s, err := stack.New(ctx, stack.Options{Bin: os.Getenv(ownerDir), Dir: os.Getenv(ownerDir)})
	if err != nil {
		panic(err)
	}
	var pids []string
	for i := range 2 {
		p, err := s.Start(ctx, stack.Spec{Name: fmt.Sprintf("child-%d", i), Binary: "child"})
		if err != nil {
			panic(err)
		}
		pids = append(pids, strconv.Itoa(p.PID()))
	}
	fmt.Fprintln(os.Stdout, strings.Join(pids, " "))
	select {}
}

func TestNothingOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "child"), []byte("#!/bin/sh\n"+sleeper), 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.CommandContext(t.Context(), exe)
	owner.Env = append(os.Environ(), ownerDir+"="+dir)
	owner.Stderr = os.Stderr
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(line) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	// One of them cannot hear.
	if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(t, pid) })
	}
}

// gone counts what has ended and waits for somebody to notice as gone: an orphan's new parent may be slow at that.
func gone(t *testing.T, pid int) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}
