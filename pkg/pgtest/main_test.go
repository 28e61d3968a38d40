package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// ownerVariable turns the test binary into a process that owns a server and waits to be ended.
const ownerVariable = "EVALONCE_PGTEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) != "" {
		os.Exit(own())
	}
	goleak.VerifyTestMain(m)
}

func own() int {
	server, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, server.URL(), server.dir)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	// Without Stop: the server is left to whatever happens when its owner is gone.
	return 0
}

func TestServerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*exec.Cmd, func() error) error{
		"killed":   func(cmd *exec.Cmd, _ func() error) error { return cmd.Process.Signal(syscall.SIGKILL) },
		"returned": func(_ *exec.Cmd, closeStdin func() error) error { return closeStdin() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := exec.CommandContext(t.Context(), os.Args[0])
			owner.Env = append(os.Environ(), ownerVariable+"=1")
			owner.Stderr = os.Stderr
			stdin, err := owner.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
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
			address, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
			// A session that is in use does not keep the server either.
			conn := connect(t, address)
			if err := end(owner, stdin.Close); err != nil {
				t.Fatal(err)
			}
			_ = owner.Wait()
			eventually(t, "the server ends", func() bool {
				c, err := pgx.Connect(t.Context(), address)
				if err == nil {
					_ = c.Close(t.Context())
				}
				return err != nil
			})
			eventually(t, "its directory is removed", func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err)
			})
			if err := conn.Ping(t.Context()); err == nil {
				t.Error("a session outlived its server")
			}
		})
	}
}

func stopAtEnd(t *testing.T, server *Server) {
	t.Helper()
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, address, sql string) {
	t.Helper()
	conn := connect(t, address)
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func query[T any](t *testing.T, address, sql string) T {
	t.Helper()
	var value T
	if err := connect(t, address).QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// openTempDir is a temporary directory that the server's user can reach, unlike the testing package's.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "evalonce-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "postgres")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}
