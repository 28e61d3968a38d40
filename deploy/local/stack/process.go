package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds of waiting.
const (
	readyTimeout   = 30 * time.Second
	readyPoll      = 20 * time.Millisecond
	probeTimeout   = 5 * time.Second
	defaultGrace   = 10 * time.Second
	cleanupTimeout = time.Minute
)

// Spec says how a process is started.
type Spec struct {
	Name   string // of the process and of its log
	Binary string // in Options.Bin
	Args   []string
	Env    []string      // NAME=value
	Ready  string        // URL that answers 200 when the process is ready; "" for one that is at once
	Grace  time.Duration // between SIGTERM and SIGKILL; 10 s when 0
}

// Process is a process of a stack. Once it has ended, Start with its Spec starts it again.
type Process struct {
	Spec

	stack   *Stack
	cmd     *exec.Cmd
	log     string // path
	logFrom int64
	asked   atomic.Bool   // to end
	ended   chan struct{} // closed once it has been waited for
}

// DiedError is the end of a process that was expected to live, or to succeed.
type DiedError struct {
	Name    string
	State   string // such as "exit status 1" or "signal: killed"
	LogPath string
	LogTail string
}

func (e *DiedError) Error() string {
	return fmt.Sprintf("%s has ended: %s; %s", e.Name, e.State, theLog(e.LogPath, e.LogTail))
}

func theLog(path, tail string) string {
	if tail == "" {
		return "its log, " + path + ", is empty"
	}
	return "its log, " + path + ", ends with:\n" + tail
}

// Start starts a process and returns when it is ready. Whatever Start returns, Stop of the stack ends it.
func (s *Stack) Start(ctx context.Context, spec Spec) (*Process, error) {
	p, err := s.launch(ctx, spec, nil, false)
	if err != nil {
		return nil, err
	}
	if err := p.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// Run runs a process to its end, which has to be a success, and returns its standard output.
func (s *Stack) Run(ctx context.Context, spec Spec) ([]byte, error) {
	var stdout bytes.Buffer
	p, err := s.launch(ctx, spec, &stdout, true)
	if err != nil {
		return nil, err
	}
	state, err := p.Wait(ctx)
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	if !state.Success() {
		return stdout.Bytes(), p.deathNotice()
	}
	return stdout.Bytes(), nil
}

// launch starts a process. The end of a job is its purpose, not a death, however soon it comes.
func (s *Stack) launch(ctx context.Context, spec Spec, stdout io.Writer, job bool) (*Process, error) {
	if spec.Grace == 0 {
		spec.Grace = defaultGrace
	}
	p := &Process{Spec: spec, stack: s, log: filepath.Join(s.opts.Dir, "logs", spec.Name+".log"), ended: make(chan struct{})}
	p.asked.Store(job)
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil {
		p.logFrom = info.Size()
	}
	// The process ends by signals alone: the context is that of its start.
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(s.opts.Bin, spec.Binary), spec.Args...)
	p.cmd.Env = environment(spec.Env)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's signals are this process's affair
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := s.guard.tell("+", p.PID()); err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // says what the state says
		_ = s.guard.tell("-", p.PID())
		if !p.asked.Load() {
			select {
			case s.died <- p:
			default: // another was first
			}
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	return p, nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	if p.Ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready within %s", readyTimeout))
	defer cancel()
	client := newClient()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		if answers(ctx, client, p.Ready) {
			return nil
		}
		select {
		case <-p.ended:
			return p.deathNotice()
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w; %s", p.Name, context.Cause(ctx), theLog(p.log, p.LogTail()))
		case <-tick.C:
		}
	}
}

// newClient returns one that leaves no connection behind: whoever it asks may be killed at any time.
func newClient() *http.Client {
	return &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
}

func answers(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// PID is the operating system's name of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Command is what was started, for what this type does not offer. Whoever signals through it ends the process unasked.
func (p *Process) Command() *exec.Cmd { return p.cmd }

// Signal sends a signal, such as SIGSTOP and SIGCONT. A process that ends after another signal than those was asked to.
func (p *Process) Signal(signal syscall.Signal) error {
	if signal != syscall.SIGSTOP && signal != syscall.SIGCONT {
		p.asked.Store(true)
	}
	if err := p.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %v to %s: %w", signal, p.Name, err)
	}
	return nil
}

// Kill ends the process as a crash of the machine would, and waits for its end.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	<-p.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop asks the process to end, insists after its grace, and waits. That it had to insist is an error.
func (p *Process) Stop() error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // a stopped one does not hear
	grace := time.NewTimer(p.Grace)
	defer grace.Stop()
	select {
	case <-p.ended:
		return nil
	case <-grace.C:
		return errors.Join(fmt.Errorf("stop %s: still there %s after SIGTERM, killed", p.Name, p.Grace), p.Kill())
	}
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the process's end.
func (p *Process) Wait(ctx context.Context) (*os.ProcessState, error) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the end of %s: %w", p.Name, context.Cause(ctx))
	}
}

func (p *Process) deathNotice() error {
	<-p.ended
	return &DiedError{Name: p.Name, State: p.cmd.ProcessState.String(), LogPath: p.log, LogTail: p.LogTail()}
}

// LogPath is where the process's output goes, behind that of its predecessors of the same name.
func (p *Process) LogPath() string { return p.log }

// Log is what the process has put out so far.
func (p *Process) Log() (string, error) {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return "", fmt.Errorf("read the log of %s: %w", p.Name, err)
	}
	return string(data[min(p.logFrom, int64(len(data))):]), nil
}

const tailLines = 12

// LogTail is the last lines of the log.
func (p *Process) LogTail() string {
	log, err := p.Log()
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
