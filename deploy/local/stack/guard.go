package stack

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

//go:embed guard.sh
var guardScript string

// guard is a shell that outlives this process by the seconds it takes to end the processes this one has left behind.
// A signal at the parent's death would need a thread that never ends, and exists on one operating system only.
type guard struct {
	cmd *exec.Cmd

	mu    sync.Mutex
	stdin *os.File
}

func startGuard(ctx context.Context) (*guard, error) {
	childIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the guard of processes: %w", err)
	}
	defer childIn.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", guardScript, "evalonce-guard")
	cmd.Stdin = childIn
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the guard of processes: %w", err), stdin.Close())
	}
	return &guard{cmd: cmd, stdin: stdin}, nil
}

func (g *guard) tell(change string, pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := fmt.Fprintf(g.stdin, "%s%d\n", change, pid); err != nil {
		return fmt.Errorf("tell the guard of processes: %w", err)
	}
	return nil
}

// stop ends the guard. Processes that it still knows of end with it.
func (g *guard) stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := errors.Join(g.stdin.Close(), g.cmd.Wait()); err != nil {
		return fmt.Errorf("stop the guard of processes: %w", err)
	}
	return nil
}
