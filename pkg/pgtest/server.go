package pgtest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed supervisor.sh
var supervisorScript string

// Mode is how a server goes down.
type Mode string

// The modes.
const (
	Fast      Mode = "fast"      // sessions are ended, transactions rolled back, everything written
	Immediate Mode = "immediate" // as after a crash: the next start recovers from the log
)

// Bounds of what can hang only when the machine does.
const (
	initTimeout     = 2 * time.Minute
	startTimeout    = time.Minute
	stopTimeout     = time.Minute
	bindTries       = 5
	logTailInErrors = 2000
)

// Options of a server.
type Options struct {
	// Dir holds the data directory and the logs, and stays when the server ends; a second server may continue
	// there. Empty means a directory in memory where there is one, which ends with the server.
	Dir string
	// Fsync makes commits durable. Without it a crash of the machine, but not of the server, loses data.
	Fsync bool
	// Port on the loopback interface; 0 means any free one.
	Port int
	// Settings of postgresql.conf, which win over the defaults of this package.
	Settings map[string]string
}

// Server is a running Postgres. It listens on the loopback interface only and trusts whoever reaches it.
//
// It never outlives the process that started it, however that ends: a supervising shell in a process group of its
// own holds the read end of a pipe, and takes the server down when the other end is closed. The owner needs no
// goroutine for that, no thread, and no signal that exists on one operating system only.
type Server struct {
	port   int
	dir    string
	owner  serverOwner
	sup    *exec.Cmd
	stdin  *os.File // writes modes; its end is the end of the server
	stdout *os.File // reads answers

	logFrom int64 // where the log of the last start begins
}

// Start makes a data directory where there is none, starts a server and waits until it accepts connections. The
// server ends with Stop or with this process, whichever comes first; ctx bounds only the start.
func Start(ctx context.Context, opts Options) (*Server, error) {
	return start(ctx, opts, means{})
}

// means replace, where given, how a server gets what it needs.
type means struct {
	dataDir func(path string) error // in place of initdb
	port    func() (int, error)     // in place of one that is free
}

func start(ctx context.Context, opts Options, by means) (_ *Server, err error) {
	bin, err := defaultSearchPath().find()
	if err != nil {
		return nil, err
	}
	owner, err := findServerOwner()
	if err != nil {
		return nil, err
	}
	dir, err := makeServerDir(opts.Dir, owner)
	if err != nil {
		return nil, err
	}
	temporary := opts.Dir == ""
	defer func() {
		if err != nil && temporary {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	data := filepath.Join(dir, "data")
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); errors.Is(err, os.ErrNotExist) {
		if by.dataDir == nil {
			by.dataDir = func(path string) error { return initdb(ctx, bin, path, opts.Fsync, owner) }
		}
		if err := by.dataDir(data); err != nil {
			return nil, err
		}
	}
	if by.port == nil {
		by.port = func() (int, error) { return freePort(ctx) }
	}
	if opts.Port != 0 {
		by.port = func() (int, error) { return opts.Port, nil }
	}
	s := &Server{dir: dir, owner: owner}
	if err := s.configure(data, opts, by.port); err != nil {
		return nil, err
	}
	err = s.supervise(ctx, filepath.Join(bin, "pg_ctl"), temporary)
	// Nothing reserves a free port between its choice and the server's bind.
	for try := 1; errors.Is(err, errPortTaken) && opts.Port == 0 && try < bindTries; try++ {
		if err = s.configure(data, opts, by.port); err == nil {
			err = s.Restart(ctx, Fast)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start Postgres on port %d: %w", s.port, err), s.Stop())
	}
	return s, nil
}

// URL is the address of the server's maintenance database, as superuser.
func (s *Server) URL() string { return s.databaseURL("postgres") }

func (s *Server) databaseURL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// Restart takes the server down in the given mode and starts it again at the same address. A server that has gone
// down by itself is started.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if s.stdin == nil {
		return errors.New("restart Postgres: it is stopped")
	}
	s.logFrom = s.logSize()
	if _, err := fmt.Fprintln(s.stdin, mode); err != nil {
		return fmt.Errorf("restart Postgres: %w", err)
	}
	if err := s.awaitAnswer(ctx); err != nil {
		return fmt.Errorf("restart Postgres: %w", err)
	}
	return nil
}

// Stop takes the server down and waits for its end. Stopping it again does nothing.
func (s *Server) Stop() error {
	if s.stdin == nil {
		return nil
	}
	_ = s.stdin.Close()
	s.stdin = nil
	defer s.stdout.Close()
	// Only the supervisor holds the other end: the end of its output is its own.
	_ = s.stdout.SetReadDeadline(time.Now().Add(stopTimeout))
	for {
		if _, err := s.stdout.Read(make([]byte, 64)); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				_ = syscall.Kill(-s.sup.Process.Pid, syscall.SIGKILL)
			}
			break
		}
	}
	if err := s.sup.Wait(); err != nil {
		return fmt.Errorf("stop Postgres: %w", err)
	}
	return nil
}

// supervise starts the server under its supervisor. Whatever it returns, Stop ends what it started.
func (s *Server) supervise(ctx context.Context, pgCtl string, temporary bool) error {
	mode, isTemporary := Fast, "no"
	if temporary {
		mode, isTemporary = Immediate, "yes"
	}
	childIn, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer childIn.Close()
	stdout, childOut, err := os.Pipe()
	if err != nil {
		return errors.Join(err, stdin.Close())
	}
	defer childOut.Close()
	s.sup = exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", supervisorScript, "evalonce-postgres",
		pgCtl, s.dir, string(mode), isTemporary)
	s.sup.Stdin, s.sup.Stdout = childIn, childOut
	s.owner.own(s.sup)
	s.logFrom = s.logSize()
	if err := s.sup.Start(); err != nil {
		return errors.Join(err, stdin.Close(), stdout.Close())
	}
	s.stdin, s.stdout = stdin, stdout
	return s.awaitAnswer(ctx)
}

var errPortTaken = errors.New("the port is taken")

// awaitAnswer waits without a goroutine, so that a test that looks for leaks finds none of this package.
func (s *Server) awaitAnswer(ctx context.Context) error {
	deadline := time.Now().Add(startTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := s.stdout.SetReadDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.stdout.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReaderSize(s.stdout, 16).ReadString('\n')
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("wait for the server: %w", err)
	}
	if line == "up\n" {
		return nil
	}
	log := s.logTail()
	if strings.Contains(log, "Address already in use") {
		return errPortTaken
	}
	return fmt.Errorf("the server did not come up; its log ends with:\n%s", log)
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "postgres.log") }

func (s *Server) logSize() int64 {
	info, err := os.Stat(s.logPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logTail is the end of what the server has logged since it was last told to start.
func (s *Server) logTail() string {
	log, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	log = log[min(s.logFrom, int64(len(log))):]
	return strings.TrimSpace(string(log[max(0, len(log)-logTailInErrors):]))
}

func initdb(ctx context.Context, bin, dataDir string, sync bool, owner serverOwner) error {
	ctx, cancel := context.WithTimeoutCause(ctx, initTimeout, errors.New("initdb took too long"))
	defer cancel()
	args := []string{
		"--pgdata", dataDir, "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--no-locale", "--no-instructions",
	}
	if !sync {
		// Small segments make the copy of a data directory a third smaller.
		args = append(args, "--no-sync", "--wal-segsize", "1")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), args...)
	owner.own(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, os.ErrPermission) && owner.credential != nil {
			return fmt.Errorf("initdb: %w: Postgres does not run as root, and user %s cannot reach its binaries", err, owner.name)
		}
		return fmt.Errorf("initdb in %s: %w\n%s", dataDir, err, out)
	}
	// What this package sets is in a file of its own, written anew at every start.
	conf, err := os.OpenFile(filepath.Join(dataDir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	_, err = conf.WriteString("\ninclude_if_exists 'evalonce.conf'\n")
	if err = errors.Join(err, conf.Close()); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	return nil
}

// configure takes a port and writes the settings.
func (s *Server) configure(dataDir string, opts Options, port func() (int, error)) (err error) {
	if s.port, err = port(); err != nil {
		return err
	}
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"max_connections":         "400",
	}
	if !opts.Fsync {
		// Commits still wait for the log to be written, so that order and group commit stay what they are in
		// production; only the disk is not asked.
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	for name, value := range opts.Settings {
		settings[name] = value
	}
	settings["port"] = strconv.Itoa(s.port)
	names := make([]string, 0, len(settings))
	for name := range settings {
		names = append(names, name)
	}
	slices.Sort(names)
	var conf strings.Builder
	for _, name := range names {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	path := filepath.Join(dataDir, "evalonce.conf")
	if err := os.WriteFile(path, []byte(conf.String()), 0o600); err != nil {
		return fmt.Errorf("write Postgres settings: %w", err)
	}
	return s.owner.give(path)
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
