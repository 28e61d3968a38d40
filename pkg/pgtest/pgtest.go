// Package pgtest gives tests and the demo a Postgres of their own.
package pgtest

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of a server.
type Options struct {
	Dir      string
	Fsync    bool
	Port     int
	Settings map[string]string
}

// Server is a running Postgres that ends with the process that started it.
type Server struct{}

// New returns a pool on a migrated database of its own.
func New(t testing.TB) *pgxpool.Pool { t.Fatal(errors.ErrUnsupported); return nil }

// URL returns the address of a migrated database of its own.
func URL(t testing.TB) string { t.Fatal(errors.ErrUnsupported); return "" }

// EmptyURL returns the address of an empty database of its own.
func EmptyURL(t testing.TB) string { t.Fatal(errors.ErrUnsupported); return "" }

// Start starts a server.
func Start(ctx context.Context, opts Options) (*Server, error) { return nil, errors.ErrUnsupported }

// URL is the address of the server's postgres database.
func (s *Server) URL() string { return "" }

// Stop ends the server.
func (s *Server) Stop() error { return nil }

// Restart ends the server in the given mode, "fast" or "immediate", and starts it again on the same port.
func (s *Server) Restart(ctx context.Context, mode string) error { return nil }
