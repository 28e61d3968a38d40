// Package stack runs the product on one machine as it runs anywhere else: every service a process of its own, started
// from its binary, configured by its environment alone, and told to stop by a signal.
//
// What it guarantees:
//
//   - A service has the rights of its own role in the database, and no others.
//   - A process that is returned is ready, and one that does not get there is reported with the end of its log.
//   - Processes end in the reverse order of their start, by SIGTERM, and by SIGKILL after their grace.
//   - None outlives the process that started it by more than some seconds, not even when that one is killed.
//   - What the environment of the starting process says of the product does not reach them.
package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

// Options of a stack.
type Options struct {
	Bin string // directory of the binaries; see Build
	Dir string // holds logs/ and, for a Postgres of the stack's own, postgres/; made when there is none
}

// Stack is a set of processes around one database.
type Stack struct {
	opts  Options
	guard *guard
	died  chan *Process // the first that ended unasked

	mu        sync.Mutex
	processes []*Process // in the order of their start; those that have ended too
	ports     []*os.File // the locks of those that were given out
	database  string
	cleanups  []func(context.Context) error // run in reverse order, when all processes have ended
}

// New returns a stack without any process. Stop ends it.
func New(ctx context.Context, opts Options) (*Stack, error) {
	for _, dir := range []*string{&opts.Bin, &opts.Dir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return nil, fmt.Errorf("start a stack: %w", err)
		}
		*dir = abs
	}
	if err := os.MkdirAll(filepath.Join(opts.Dir, "logs"), 0o755); err != nil { //nolint:gosec // Postgres's user passes through
		return nil, fmt.Errorf("start a stack: %w", err)
	}
	guard, err := startGuard(ctx)
	if err != nil {
		return nil, err
	}
	return &Stack{opts: opts, guard: guard, died: make(chan *Process, 1)}, nil
}

// Stop ends all processes, the last started first, and then Postgres, if it is the stack's own.
func (s *Stack) Stop() error {
	s.mu.Lock()
	processes, cleanups := slices.Clone(s.processes), s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(processes) {
		errs = append(errs, p.Stop())
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	for _, cleanup := range slices.Backward(cleanups) {
		errs = append(errs, cleanup(ctx))
	}
	return errors.Join(append(errs, s.guard.stop(), s.givePortsBack())...)
}

// Watch returns a context that ends, with a *DiedError as cause, when a process ends that nobody told to.
func (s *Stack) Watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case p := <-s.died:
			cancel(p.deathNotice())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// DatabaseURL is the address of the stack's database.
func (s *Stack) DatabaseURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.database
}

// UseDatabase makes the stack work on a database that is there already, and stays.
func (s *Stack) UseDatabase(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.database = url
}

// StartPostgres starts a Postgres that ends with the stack, with durable commits, and returns the directory it lies in.
func (s *Stack) StartPostgres(ctx context.Context) (dir string, err error) {
	_, dir, err = s.StartServer(ctx, "postgres", nil)
	return dir, err
}

// StartServer is StartPostgres with settings of postgresql.conf, in a directory of the given name. Commits are durable
// unless the settings say fsync=off.
func (s *Stack) StartServer(ctx context.Context, name string, settings map[string]string) (server *pgtest.Server, dir string, err error) {
	dir = filepath.Join(s.opts.Dir, name)
	if !reachable(s.opts.Dir) {
		if dir, err = os.MkdirTemp("/var/tmp", "evalonce-postgres-"); err != nil {
			return nil, "", fmt.Errorf("make a directory for Postgres: %w", err)
		}
		s.cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	}
	server, err = pgtest.Start(ctx, pgtest.Options{Dir: dir, Fsync: settings["fsync"] != "off", Settings: settings})
	if err != nil {
		return nil, "", err
	}
	s.cleanup(func(context.Context) error { return server.Stop() })
	s.UseDatabase(server.URL())
	return server, dir, nil
}

// reachable reports whether Postgres, which refuses to be root and then runs as another user, can get at dir.
func reachable(dir string) bool {
	if os.Geteuid() != 0 {
		return true
	}
	for ; ; dir = filepath.Dir(dir) {
		const search = 0o001
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&search == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// Migrate brings the database to the schema of the binaries.
func (s *Stack) Migrate(ctx context.Context) error {
	_, err := s.Run(ctx, Spec{Name: "migrate", Binary: "migrate", Args: []string{"up"}, Env: []string{databaseEnv(s.DatabaseURL())}})
	return err
}

// databaseAs is what tells a service where its database is: under its own role, unless whom the database is used as may
// not take it on.
func (s *Stack) databaseAs(ctx context.Context, role pgtest.Role) string {
	url := s.DatabaseURL()
	if mayNotBe(ctx, url, role) {
		return databaseEnv(url)
	}
	return databaseEnv(pgtest.As(url, role))
}

// mayNotBe is false also when nobody answers: a service that is started then has to come up when somebody does.
func mayNotBe(ctx context.Context, url string, role pgtest.Role) bool {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var member bool
	err = conn.QueryRow(ctx, "SELECT coalesce((SELECT pg_has_role(oid, 'MEMBER') FROM pg_roles WHERE rolname = $1), false)", string(role)).Scan(&member)
	return err == nil && !member
}

func databaseEnv(url string) string { return "EVALONCE_DATABASE_URL=" + url }

func (s *Stack) cleanup(f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// environment is this process's, without what would configure the product or an SDK within it.
func environment(own []string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "EVALONCE_") && !strings.HasPrefix(entry, "OPENAI_") && !strings.HasPrefix(entry, "PG") {
			env = append(env, entry)
		}
	}
	return append(env, own...)
}
