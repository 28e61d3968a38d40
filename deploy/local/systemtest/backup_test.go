package systemtest

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

// servers is a place for Postgres servers that the tests make of one another.
type servers struct {
	t   *testing.T
	dir string
}

func newServers(t *testing.T) servers {
	t.Helper()
	dir, err := os.MkdirTemp("", "evalonce-servers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// Postgres may run as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return servers{t: t, dir: dir}
}

func (s servers) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

// primary starts a server of that name, with a migrated database.
func (s servers) primary(name string, settings map[string]string) (server *pgtest.Server, database string) {
	s.t.Helper()
	server = pgtest.NewServer(s.t, pgtest.Options{Dir: s.path(name), Settings: settings})
	database, err := server.NewDatabase(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return server, database
}

// backUp makes a base backup of a running server for another name. It is what pg_basebackup does, which not every package of
// Postgres has.
func (s servers) backUp(db *pgxpool.Pool, from, to string) {
	s.t.Helper()
	conn, err := db.Acquire(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(s.t.Context(), "SELECT pg_backup_start('test', fast => true)"); err != nil {
		s.t.Fatal(err)
	}
	s.copyRunning(from, to)
	var label string
	if err := conn.QueryRow(s.t.Context(), "SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)").Scan(&label); err != nil {
		s.t.Fatal(err)
	}
	s.put(to, "backup_label", label)
}

// copyRunning copies a data directory that changes meanwhile.
func (s servers) copyRunning(from, to string) {
	s.t.Helper()
	source := s.path(from, "data")
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		if !entry.IsDir() && (strings.HasPrefix(name, "postmaster.") || strings.HasPrefix(name, "pg_wal"+string(filepath.Separator))) {
			return nil
		}
		if err := copyEntry(path, s.path(to, "data", name)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("copy the server %s: %v", from, err)
	}
}

// copyEntry copies a file, or makes a directory, for the same owner.
func copyEntry(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if err := os.MkdirAll(to, info.Mode().Perm()); err != nil {
			return err
		}
		return giveAs(info, to)
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, source)
	return errors.Join(err, copied.Close(), giveAs(info, to))
}

func giveAs(info fs.FileInfo, path string) error {
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return os.Lchown(path, int(owner.Uid), int(owner.Gid))
}

// put writes a file into a data directory.
func (s servers) put(name, file, text string) {
	s.t.Helper()
	path := s.path(name, "data", file)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.give(path, name)
}

// give makes a path belong to whom a server runs as.
func (s servers) give(path, name string) {
	s.t.Helper()
	info, err := os.Stat(s.path(name, "data"))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := giveAs(info, path); err != nil {
		s.t.Fatal(err)
	}
}

// start starts a server from what is there by that name, and returns where it has the same database as another server.
func (s servers) start(name string, settings map[string]string, database string) (server *pgtest.Server, address string) {
	s.t.Helper()
	server, err := pgtest.Start(s.t.Context(), pgtest.Options{Dir: s.path(name), Settings: settings})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			s.t.Error(err)
		}
	})
	here, err := url.Parse(server.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	there, err := url.Parse(database)
	if err != nil {
		s.t.Fatal(err)
	}
	here.Path = there.Path
	return server, here.String()
}

// following are the settings of a streaming replica of a server.
func following(t *testing.T, primary string) map[string]string {
	t.Helper()
	config, err := pgx.ParseConfig(primary)
	if err != nil {
		t.Fatal(err)
	}
	conninfo := []string{"host=" + config.Host, "port=" + strconv.Itoa(int(config.Port)), "user=" + config.User}
	return map[string]string{"primary_conninfo": strings.Join(conninfo, " ")}
}
