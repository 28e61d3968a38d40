// Package postgres opens connection pools, runs transactions and reads the server's errors.
//
// [InTx] commits everything that its function did, or nothing, and says which; the one exception, a connection
// that is lost while it waits for the answer to COMMIT, is an error of its own and is never retried.
//
// # Behind PgBouncer
//
// A pooler in transaction mode gives each transaction any session of the server. [Open] finds out that one answers:
// it knows the session under a name of its own. The connections of the pool then need nothing of a session:
//
//   - Statements are described once and sent as a whole, for nothing prepared is there the next time. Where the pooler
//     keeps track of prepared statements, default_query_exec_mode=cache_statement in the URL prepares them all the same.
//   - The timeouts are set in the same round trip as BEGIN, for the transaction alone. So a transaction is begun by
//     [InTx] or [BeginTx]. A statement outside of one is bounded by this process: it gives up after the statement
//     timeout, and has the server cancel it.
//   - What else the URL sets at start-up has to be known to the pooler, which refuses it otherwise.
//
// A pooler in session mode is taken for one of these, which is slower and right.
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
	setDefault := func(name, value string) (done bool) {
		_, set := conn.RuntimeParams[name]
		if !set {
			conn.RuntimeParams[name] = value
		}
		return !set
	}
	if cfg.AppName != "" {
		setDefault("application_name", cfg.AppName)
	}
	for name, timeout := range map[string]time.Duration{
		statementTimeout:         cfg.StatementTimeout,
		lockTimeout:              cfg.LockTimeout,
		idleInTransactionTimeout: cfg.IdleInTransactionTimeout,
	} {
		if timeout <= 0 {
			continue
		}
		// Zero turns a timeout off on the server: what is shorter than its unit rounds up.
		if !setDefault(name, strconv.FormatInt(max(1, timeout.Milliseconds()), 10)) && name == statementTimeout {
			cfg.StatementTimeout = 0 // the URL's counts
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
	pool, pooled, err := connect(ctx, poolConfig)
	if err == nil && !pooled {
		return pool, nil
	}
	if err == nil {
		pool.Close()
	} else if !refusedByPooler(err) {
		return nil, fmt.Errorf("open database: %w", withCause(ctx, err))
	}
	behindPooler(poolConfig, cfg)
	if pool, _, err = connect(ctx, poolConfig); err != nil {
		return nil, fmt.Errorf("open database: %w", withCause(ctx, err))
	}
	return pool, nil
}

// connect opens a pool, and asks once who answers.
func connect(ctx context.Context, config *pgxpool.Config) (pool *pgxpool.Pool, pooled bool, err error) {
	if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, false, err
	}
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		pooled, err = answeredByPooler(ctx, conn.Conn())
		return err
	})
	if err != nil {
		pool.Close()
		return nil, false, err
	}
	return pool, pooled, nil
}
