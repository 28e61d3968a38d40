// Package pgtest gives every test a migrated Postgres database of its own, and starts throw-away servers.
//
// A test process starts one server, at the first database that one of its tests asks for, and clones its databases
// from a migrated template: 0.2 s once, then 30 ms for each. EVALONCE_TEST_DATABASE_URL names a server to be used
// instead; its role has to be a superuser. Databases are dropped when their test ends, whoever is still connected.
//
// The binaries are those of $PG_BIN, or the first found in PATH, among the distribution's or in an npm package
// under the checkout. No server and no data directory outlives the process that started it, not even when it is
// killed, and nothing of this package runs in the background of a test that looks for leaked goroutines.
package pgtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/postgres"
)

// External is the environment variable that names a server to be used in place of own ones.
const External = "EVALONCE_TEST_DATABASE_URL"

const databaseTimeout = time.Minute

// New returns a pool on a migrated database of the test's own. Both end with the test.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Pool(t, URL(t))
}

// URL returns the address of a migrated database of the test's own, which ends with the test.
func URL(t testing.TB) string {
	t.Helper()
	shared := sharedServer(t)
	return clone(t, shared.url, shared.template)
}

// EmptyURL returns the address of a database of the test's own without any schema.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return clone(t, sharedServer(t).url, "template0")
}

// NewServer starts a server for this test alone, to be restarted, stopped or filled to the brim. NewDatabase
// makes migrated databases on it.
func NewServer(t testing.TB, opts Options) *Server {
	t.Helper()
	server, err := startFromTemplate(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// NewDatabase returns the address of a new migrated database, which ends with the server.
func (s *Server) NewDatabase(ctx context.Context) (string, error) {
	template, err := ensureTemplate(ctx, s.URL())
	if err != nil {
		return "", err
	}
	_, address, err := createDatabase(ctx, s.URL(), template)
	return address, err
}

// Pool returns a pool that ends with the test, and fails a test that still holds one of its connections then.
func Pool(t testing.TB, address string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: address, AppName: "pgtest"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			pool.Close()
		}()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("the test ended without giving back all connections of its pool")
		}
	})
	return pool
}

func clone(t testing.TB, serverURL, template string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), databaseTimeout)
	defer cancel()
	name, address, err := createDatabase(ctx, serverURL, template)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
		defer cancel()
		if err := dropDatabase(ctx, serverURL, name); err != nil {
			t.Error(err)
		}
	})
	return address
}

type shared struct {
	url, template string
	server        *Server // referenced for as long as the process lives; nil for an external one
}

// startShared is a variable of the package because a test process, in which nothing runs before the first test or
// after the last, has no other place for what its tests share.
var startShared = sync.OnceValues(func() (shared, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), initTimeout, errors.New("the test Postgres took too long"))
	defer cancel()
	s := shared{url: os.Getenv(External)}
	if s.url == "" {
		server, err := startFromTemplate(ctx, Options{})
		if err != nil {
			return shared{}, err
		}
		s.url, s.server = server.URL(), server
	}
	var err error
	s.template, err = ensureTemplate(ctx, s.url)
	return s, err
})

func sharedServer(t testing.TB) shared {
	t.Helper()
	s, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
