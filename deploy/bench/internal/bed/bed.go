// Package bed is what the measurements lie on: one Postgres with durable commits on a real disk, a database of its own
// for each run, filled with work by statements over sets, and the product's processes around it.
//
// All who are measured get the same server with the same settings, and a database that was vacuumed, analysed and
// checkpointed after it was filled. Nothing of it outlives the process that started it.
package bed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

// Settings are those of the server on any machine; Buffers has another. A server of Postgres's defaults would checkpoint
// in the middle of every run.
func Settings() map[string]string {
	return map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"max_wal_size": "8GB", "checkpoint_timeout": "30min", "maintenance_work_mem": "512MB",
		"autovacuum_naptime": "10s",
	}
}

// Buffers is the setting for the server's own cache: a quarter of the machine's memory, as Postgres's documentation has it.
const Buffers = "shared_buffers"

// BuffersOf is its value for a machine. Where the memory is not known, Postgres has its default.
func BuffersOf(memoryBytes int64) string {
	const least = 128 << 20
	return fmt.Sprintf("%dMB", max(least, memoryBytes/4)>>20)
}

// Bed is a server and processes.
type Bed struct {
	*stack.Stack
	server *pgtest.Server
}

// Start starts a server in a directory of the stack's, which ends with the stack.
func Start(ctx context.Context, s *stack.Stack, name string, settings map[string]string) (*Bed, error) {
	server, _, err := s.StartServer(ctx, name, settings)
	if err != nil {
		return nil, err
	}
	return &Bed{Stack: s, server: server}, nil
}

// Describe returns the server's version, and its settings as it has them.
func (b *Bed) Describe(ctx context.Context) (version string, settings map[string]string, err error) {
	conn, err := pgx.Connect(ctx, b.server.URL())
	if err != nil {
		return "", nil, fmt.Errorf("ask Postgres for its settings: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", nil, fmt.Errorf("ask Postgres for its version: %w", err)
	}
	settings = map[string]string{}
	for _, name := range append(slices.Sorted(maps.Keys(Settings())), Buffers) {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return "", nil, fmt.Errorf("ask Postgres for %s: %w", name, err)
		}
		settings[name] = value
	}
	return version, settings, nil
}

// Database is a database for one run.
type Database struct {
	URL  string
	Pool *pgxpool.Pool
	bed  *Bed
}

func versionOf(name, route string) evaluation.Version {
	return evaluation.Version{
		ID: "bench-" + name, PromptVersion: "1", Provider: "openai", Model: "none", Prompt: "Sort the ticket. " + name, MaxOutputTokens: 100,
		Departments: []evaluation.Department{{Name: "billing", Description: "invoices"}, {Name: "shipping", Description: "parcels"}},
		Route:       route, MaxUnknownCalls: evaluation.DefaultMaxUnknownCalls,
	}.WithDefaults()
}

// The routes. Each has a version of its name; that of Main is the active one.
const (
	Main  = "main"
	Other = "other"
)

// NextVersion is the id of one more version on the main route.
const NextVersion = "bench-next"

// conns is enough for whatever this process does in a database at once.
const conns = 64

// NewDatabase makes a migrated database in which the versions are registered.
func (b *Bed) NewDatabase(ctx context.Context) (*Database, error) {
	address, err := b.server.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	d := &Database{URL: address, bed: b}
	if d.Pool, err = postgres.Open(ctx, postgres.Config{URL: address, MaxConns: conns, AppName: "bench"}); err != nil {
		return nil, err
	}
	err = postgres.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, v := range []evaluation.Version{versionOf(Main, Main), versionOf(Other, Other), versionOf("next", Main)} {
			if _, err := versiondb.Register(ctx, tx, v, "bench"); err != nil {
				return err
			}
		}
		return versiondb.Promote(ctx, tx, versionOf(Main, Main).ID, "", "bench")
	})
	if err != nil {
		return nil, errors.Join(err, d.Drop(ctx))
	}
	b.UseDatabase(address)
	return d, nil
}

// Use makes the stack's next processes work on this database.
func (d *Database) Use() { d.bed.UseDatabase(d.URL) }

// Settle makes all that was written before a thing of the past: no checkpoint, vacuum or analysis of it falls into the
// run.
func (d *Database) Settle(ctx context.Context) error {
	// Of the tables that are ours: the catalogs are settled as they are made.
	rows, err := d.Pool.Query(ctx, "SELECT quote_ident(relname) FROM pg_stat_user_tables")
	if err != nil {
		return fmt.Errorf("settle a database: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("settle a database: %w", err)
	}
	for _, statement := range []string{"VACUUM (ANALYZE) " + strings.Join(tables, ", "), "CHECKPOINT"} {
		if _, err := d.Pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("settle a database: %s: %w", statement, err)
		}
	}
	return nil
}

// Count is the result of a query for one number.
func (d *Database) Count(ctx context.Context, sql string, args ...any) (n int, err error) {
	if err := d.Pool.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count: %w", err)
	}
	return n, nil
}

// Drop ends the database.
func (d *Database) Drop(ctx context.Context) error {
	d.Pool.Close()
	ctx = context.WithoutCancel(ctx)
	u, err := url.Parse(d.URL)
	if err != nil {
		return fmt.Errorf("drop a database: %w", err)
	}
	name := pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize()
	conn, err := pgx.Connect(ctx, d.bed.server.URL())
	if err != nil {
		return fmt.Errorf("drop a database: %w", err)
	}
	_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("drop a database: %w", err)
	}
	return nil
}
