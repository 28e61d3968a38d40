// Package postgres opens connection pools, runs transactions and reads the server's errors.
//
// [InTx] commits everything that its function did, or nothing, and says which; the one exception, a connection
// that is lost while it waits for the answer to COMMIT, is an error of its own and is never retried.
//
// # Behind PgBouncer
//
// By default every connection prepares a statement when it first runs it, which needs the same server session
// the next time. A pooler in transaction mode that does not track prepared statements breaks this: add
// default_query_exec_mode=cache_describe to the URL, or exec, which also survives changes of the schema.
// Such a pooler refuses start-up parameters that it does not know: leave the timeouts of [Config] zero there, and
// set them with ALTER ROLE … SET.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
)

// Config says where the database is and how long anything there may take. Every zero value leaves the choice to
// the URL, and after it to the server or to the default named here. What the URL says wins over the timeouts.
type Config struct {
	// URL or keyword/value string of libpq's. Its pool_* parameters are read too.
	URL string
	// MaxConns defaults to the number of CPUs, and 4 at least.
	MaxConns int32
	// MinConns are kept open while nothing uses them.
	MinConns int32
	// AppName is what pg_stat_activity shows.
	AppName string
	// StatementTimeout, LockTimeout and IdleInTransactionTimeout are the server's, for all sessions of the pool.
	StatementTimeout         time.Duration
	LockTimeout              time.Duration
	IdleInTransactionTimeout time.Duration
	// ConnectTimeout of one attempt at one host; defaults to 10 s.
	ConnectTimeout time.Duration
	// Tracer sees every statement, with its text: it must not record arguments.
	Tracer pgx.QueryTracer
	// Spans makes [Spans] the tracer, with the process's tracer provider, where there is no other.
	Spans bool
}

const (
	defaultConnectTimeout = 10 * time.Second
	// Connections that were opened together must not all be renewed together.
	lifetimeJitter = 10 * time.Minute
)

// Open returns a pool whose database has answered once. No error of its contains the password.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	poolConfig, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		// The driver's message repeats the string, and can only guess which part of a broken one is the password.
		return nil, errors.New("read database URL: neither postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=… " +
			"with special characters percent-encoded, nor host=… user=… dbname=…, or one of its parameters has an unknown value")
	}
	conn := poolConfig.ConnConfig
	setDefault := func(name, value string) {
		if _, set := conn.RuntimeParams[name]; !set {
			conn.RuntimeParams[name] = value
		}
	}
	if cfg.AppName != "" {
		setDefault("application_name", cfg.AppName)
	}
	for name, timeout := range map[string]time.Duration{
		"statement_timeout":                   cfg.StatementTimeout,
		"lock_timeout":                        cfg.LockTimeout,
		"idle_in_transaction_session_timeout": cfg.IdleInTransactionTimeout,
	} {
		if timeout > 0 {
			// Zero turns a timeout off on the server: what is shorter than its unit rounds up.
			setDefault(name, strconv.FormatInt(max(1, timeout.Milliseconds()), 10))
		}
	}
	switch {
	case cfg.ConnectTimeout > 0:
		conn.ConnectTimeout = cfg.ConnectTimeout
	case conn.ConnectTimeout == 0:
		conn.ConnectTimeout = defaultConnectTimeout
	}
	if cfg.MaxConns > 0 {
		poolConfig.MaxConns = cfg.MaxConns
	}
	if cfg.MinConns > 0 {
		poolConfig.MinConns = min(cfg.MinConns, poolConfig.MaxConns)
	}
	if poolConfig.MaxConnLifetimeJitter == 0 {
		poolConfig.MaxConnLifetimeJitter = lifetimeJitter
	}
	switch {
	case cfg.Tracer != nil:
		conn.Tracer = cfg.Tracer
	case cfg.Spans:
		conn.Tracer = NewSpans(otel.Tracer("github.com/evalonce/evalonce/pkg/postgres"))
	}
	poolConfig.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerUUID(conn.TypeMap())
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open database: %w", withCause(ctx, err))
	}
	return pool, nil
}
