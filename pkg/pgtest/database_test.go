package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/migrations"
)

func TestEveryTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	first, second := URL(t), URL(t)
	execute(t, first, "CREATE TABLE mine ()")
	if query[bool](t, second, "SELECT to_regclass('mine') IS NOT NULL") {
		t.Error("a table of one database is in another")
	}
	status, err := migrations.Status(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	if len(status) == 0 {
		t.Error("no migrations")
	}
	for _, migration := range status {
		if !migration.Applied {
			t.Errorf("migration %s is not applied", migration.Name)
		}
	}
	if n := query[int](t, EmptyURL(t), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
		t.Errorf("an empty database has %d tables", n)
	}
}

func TestDatabaseIsDroppedWhoeverIsConnected(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("test", func(t *testing.T) {
		pool := New(t)
		if err := pool.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
		// Not a cleanup, which would come before the database's: a session that nobody closes.
		if _, err := pgx.Connect(t.Context(), pool.Config().ConnString()); err != nil {
			t.Fatal(err)
		}
	})
	left := query[bool](t, sharedServer(t).url, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = '"+name+"')")
	if left {
		t.Errorf("database %s outlived its test", name)
	}
}

func TestTemplateIsMadeOnceAndMadeAnewWhenUnfinished(t *testing.T) {
	t.Parallel()
	server, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, server)
	fingerprint, err := migrations.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	// As a process that was killed in the middle leaves it.
	execute(t, server.URL(), "CREATE DATABASE evalonce_template_"+fingerprint[:16])

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := server.NewDatabase(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := query[int](t, server.URL(), "SELECT count(*) FROM pg_database WHERE datname LIKE 'evalonce_test_%'"); n != 4 {
		t.Errorf("%d databases, want 4", n)
	}
	address, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if applied, err := migrations.Up(t.Context(), address); err != nil || len(applied) != 0 {
		t.Errorf("a clone lacks %v (%v)", applied, err)
	}
}

func TestTemplateDirectoryIsMadeOnceAndReplacesOldOnes(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	for _, stale := range []string{"template-of-old-migrations", "template-unfinished"} {
		if err := os.MkdirAll(filepath.Join(cache, stale, "base"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	targets := [3]string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "c")}
	var wg sync.WaitGroup
	for _, target := range targets {
		wg.Go(func() {
			if err := copyTemplate(t.Context(), cache, target); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	identity := func(target string) string {
		// The control file has the system identifier, which every initdb makes anew.
		return readFile(t, filepath.Join(target, "global", "pg_control"))
	}
	if identity(targets[0]) != identity(targets[1]) || identity(targets[0]) != identity(targets[2]) {
		t.Error("the template was made more than once")
	}
	key, err := templateKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "template-*"))
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(cache, "template-"+key); len(left) != 1 || left[0] != want {
		t.Errorf("templates %v, want only %s", left, want)
	}
}

func TestExternalServerIsUsed(t *testing.T) {
	t.Parallel()
	server := NewServer(t, Options{})
	if os.Getenv(External) == server.URL() {
		t.Fatal("unreachable: the server is new")
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEveryTestHasItsOwnMigratedDatabase$", "-test.v")
	other.Env = append(os.Environ(), External+"="+server.URL(), "PG_BIN=/nonexistent")
	out, err := other.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := query[int](t, server.URL(), "SELECT count(*) FROM pg_database WHERE datname LIKE 'evalonce_test_%'"); n != 0 {
		t.Errorf("%d databases are left", n)
	}
	if n := query[int](t, server.URL(), "SELECT count(*) FROM pg_stat_database WHERE datname = 'postgres' AND xact_commit > 0"); n != 1 {
		t.Error("the server was not used")
	}
}
