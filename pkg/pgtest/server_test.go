package pgtest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestServerKeepsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	opts := Options{Dir: openTempDir(t), Fsync: true, Settings: map[string]string{"application_name": "it's"}}
	server, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	address := server.URL()
	execute(t, address, "CREATE TABLE kept AS SELECT 42 AS n")
	before := connect(t, address)

	if err := server.Restart(t.Context(), Immediate); err != nil {
		t.Fatal(err)
	}
	if err := before.Ping(t.Context()); err == nil {
		t.Error("a session outlived the crash of its server")
	}
	if got := query[int](t, address, "SELECT n FROM kept"); got != 42 {
		t.Errorf("after a crash n = %d, want 42", got)
	}
	if log := server.logTail(); !strings.Contains(log, "automatic recovery in progress") {
		t.Errorf("the restart was no crash; the log ends with:\n%s", log)
	}
	for setting, want := range map[string]string{"fsync": "on", "full_page_writes": "on", "application_name": "it's"} {
		if got := query[string](t, address, "SHOW "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
	if _, err := pgx.Connect(t.Context(), address); err == nil {
		t.Fatal("the server answers after Stop")
	}
	if err := server.Restart(t.Context(), Fast); err == nil {
		t.Error("Restart after Stop succeeded")
	}

	again, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, again)
	if got := query[int](t, again.URL(), "SELECT n FROM kept"); got != 42 {
		t.Errorf("under a second server n = %d, want 42", got)
	}
}

func TestServerRestartsAfterItsProcessWasKilled(t *testing.T) {
	t.Parallel()
	server := NewServer(t, Options{})
	execute(t, server.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	pid, _, _ := strings.Cut(readFile(t, filepath.Join(server.dir, "data", "postmaster.pid")), "\n")
	postmaster, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(postmaster, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is gone", func() bool {
		c, err := pgx.Connect(t.Context(), server.URL())
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err != nil
	})
	// Backends notice the death of their parent at their own pace, and a start is refused before they have.
	eventually(t, "the server restarts", func() bool { return server.Restart(t.Context(), Immediate) == nil })
	if got := query[int](t, server.URL(), "SELECT n FROM kept"); got != 42 {
		t.Errorf("n = %d, want 42", got)
	}
}

func TestStopRemovesATemporaryDirectory(t *testing.T) {
	t.Parallel()
	server := NewServer(t, Options{})
	for setting, want := range map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"} {
		if got := query[string](t, server.URL(), "SHOW "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server.dir); !os.IsNotExist(err) {
		t.Errorf("stat %s: %v, want that it does not exist", server.dir, err)
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for name, test := range map[string]struct {
		opts Options
		want string
	}{
		"setting": {Options{Settings: map[string]string{"work_mem": "plenty"}}, `invalid value for parameter "work_mem"`},
		"port":    {Options{Port: taken.Addr().(*net.TCPAddr).Port}, "the port is taken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := Start(t.Context(), test.opts)
			if err == nil {
				_ = server.Stop()
				t.Fatal("the server started")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not say %q", err, test.want)
			}
		})
	}
}

func TestStartTriesAnotherPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ports := []int{taken.Addr().(*net.TCPAddr).Port}
	server, err := start(t.Context(), Options{}, means{port: func() (int, error) {
		if len(ports) == 0 {
			return freePort(t.Context())
		}
		port := ports[0]
		ports = ports[1:]
		return port, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, server)
	if got := query[int](t, server.URL(), "SELECT 1"); got != 1 {
		t.Error("the server does not answer")
	}
}
