package process_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/migrations/release"
	"github.com/evalonce/evalonce/pkg/process"
)

// scenarioVariable turns the test binary into a process that Main runs.
const scenarioVariable = "EVALONCE_PROCESS_SCENARIO"

func TestMain(m *testing.M) {
	if scenario := os.Getenv(scenarioVariable); scenario != "" {
		process.Main(scenarios[scenario])
	}
	goleak.VerifyTestMain(m)
}

var scenarios = map[string]func(context.Context, []string, []string, io.Writer, io.Writer) error{
	"fine": func(_ context.Context, args, environ []string, stdout, _ io.Writer) error {
		fmt.Fprintln(stdout, "args:", args)
		for _, entry := range environ {
			if strings.HasPrefix(entry, scenarioVariable+"=") {
				fmt.Fprintln(stdout, entry)
			}
		}
		return nil
	},
	"help": func(context.Context, []string, []string, io.Writer, io.Writer) error {
		return fmt.Errorf("x: %w", flag.ErrHelp)
	},
	"usage": func(context.Context, []string, []string, io.Writer, io.Writer) error {
		return fmt.Errorf("bad flag: %w", process.ErrUsage)
	},
	"failure": func(context.Context, []string, []string, io.Writer, io.Writer) error {
		return errors.New("out of luck")
	},
	"panic": func(context.Context, []string, []string, io.Writer, io.Writer) error { panic("a bug") },
	"graceful": func(ctx context.Context, _, _ []string, stdout, _ io.Writer) error {
		fmt.Fprintln(stdout, "ready")
		<-ctx.Done()
		fmt.Fprintln(stdout, context.Cause(ctx))
		return nil
	},
	"stubborn": func(ctx context.Context, _, _ []string, stdout, _ io.Writer) error {
		fmt.Fprintln(stdout, "ready")
		<-ctx.Done()
		fmt.Fprintln(stdout, "not yet")
		select {}
	},
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for scenario, want := range map[string]struct {
		code           int
		stdout, stderr string
	}{
		"fine":    {0, "args: [-a b]\n" + scenarioVariable + "=fine\n", ""},
		"help":    {0, "", ""},
		"usage":   {2, "", "bad flag: usage"},
		"failure": {1, "", "out of luck"},
		"panic":   {1, "", "panic: a bug"},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			cmd := command(t, scenario, "-a", "b")
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != want.code {
				t.Errorf("exit code %d, want %d", got, want.code)
			}
			if stdout.String() != want.stdout {
				t.Errorf("stdout %q, want %q", &stdout, want.stdout)
			}
			if strings.Count(stderr.String(), want.stderr) != 1 && want.stderr != "" || want.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr %q, want %q once", &stderr, want.stderr)
			}
		})
	}
}

func TestVersionIsToldWithoutRunning(t *testing.T) {
	t.Parallel()
	out, err := command(t, "failure", "--interval=1s", "--version").Output()
	if want := release.Current().String() + "\n"; err != nil || string(out) != want {
		t.Errorf("%q (%v), want %q", out, err, want)
	}
}

func TestASignalEndsTheContextWithItsCause(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			cmd, lines := started(t, "graceful")
			send(t, cmd, sig)
			if want := "received signal: " + sig.String(); lines() != want {
				t.Errorf("the cause is not %q", want)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("exit: %v, want 0", err)
			}
		})
	}
}

func TestASecondSignalEndsTheProcess(t *testing.T) {
	t.Parallel()
	cmd, lines := started(t, "stubborn")
	send(t, cmd, syscall.SIGTERM)
	if got := lines(); got != "not yet" {
		t.Fatalf("after the first signal: %q", got)
	}
	send(t, cmd, syscall.SIGINT)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit code %d, want 130", got)
	}
}

func command(t *testing.T, scenario string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), scenarioVariable+"="+scenario)
	return cmd
}

// started returns a process that is ready, and its next line of output.
func started(t *testing.T, scenario string) (cmd *exec.Cmd, line func() string) {
	t.Helper()
	cmd = command(t, scenario)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(stdout)
	line = func() string {
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(line, "\n")
	}
	if got := line(); got != "ready" {
		t.Fatalf("first line %q", got)
	}
	return cmd, line
}

func send(t *testing.T, cmd *exec.Cmd, sig os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
