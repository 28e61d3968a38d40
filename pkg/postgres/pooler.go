package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The server's names of the timeouts.
const (
	statementTimeout         = "statement_timeout"
	lockTimeout              = "lock_timeout"
	idleInTransactionTimeout = "idle_in_transaction_session_timeout"
)

// settingsOfTx is where a connection that leads to a pooler keeps what is set at each BEGIN.
const settingsOfTx = "evalonce/settings"

// Pooled reports whether a pooler stands between a pool of [Open]'s and the server. Nothing that lives in a session can
// be had through it, such as LISTEN.
func Pooled(ctx context.Context, pool *pgxpool.Pool) (pooled bool, err error) {
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		_, pooled = settings(conn)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("ask for a pooler: %w", withCause(ctx, err))
	}
	return pooled, nil
}

// BeginTx begins a transaction that has the timeouts of its pool also behind a pooler. Its end gives the connection back.
func BeginTx(ctx context.Context, db Beginner, opts pgx.TxOptions) (pgx.Tx, error) {
	pool, ok := db.(*pgxpool.Pool)
	if !ok {
		return db.BeginTx(ctx, opts)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if set, pooled := settings(conn); pooled && opts.BeginQuery == "" {
		opts.BeginQuery = begin(opts) + set
	}
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return &leasedTx{Tx: tx, conn: conn}, nil
}

// leasedTx is a transaction that has its connection for itself.
type leasedTx struct {
	pgx.Tx
	conn *pgxpool.Conn // nil once given back
}

func (t *leasedTx) Commit(ctx context.Context) error {
	defer t.release()
	return t.Tx.Commit(ctx)
}

func (t *leasedTx) Rollback(ctx context.Context) error {
	defer t.release()
	return t.Tx.Rollback(ctx)
}

func (t *leasedTx) release() {
	if t.conn != nil {
		t.conn.Release()
		t.conn = nil
	}
}

func begin(opts pgx.TxOptions) string {
	sql := "begin"
	if opts.IsoLevel != "" {
		sql += " isolation level " + string(opts.IsoLevel)
	}
	if opts.AccessMode != "" {
		sql += " " + string(opts.AccessMode)
	}
	if opts.DeferrableMode != "" {
		sql += " " + string(opts.DeferrableMode)
	}
	return sql
}

func settings(conn *pgxpool.Conn) (set string, pooled bool) {
	set, pooled = conn.Conn().PgConn().CustomData()[settingsOfTx].(string)
	return set, pooled
}

// answeredByPooler compares the session that works with the one that was promised at the start: a pooler, which is asked
// to cancel statements in the server's place, gives its clients names of its own.
func answeredByPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return false, err
	}
	return pid != conn.PgConn().PID(), nil
}

// refusedByPooler reports whether the start-up was refused as PgBouncer refuses parameters that it does not know. It says
// the same of much else, and then says it again.
func refusedByPooler(err error) bool {
	const protocolViolation = "08P01"
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == protocolViolation
}

// behindPooler has the connections ask for nothing that lives in a session.
func behindPooler(config *pgxpool.Config, cfg Config) {
	conn := config.ConnConfig
	if !strings.Contains(cfg.URL, "default_query_exec_mode") {
		conn.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	var set strings.Builder
	for _, name := range [...]string{statementTimeout, lockTimeout, idleInTransactionTimeout} {
		if value, ok := conn.RuntimeParams[name]; ok {
			fmt.Fprintf(&set, "; set local %s = '%s'", name, strings.ReplaceAll(value, "'", "''"))
			delete(conn.RuntimeParams, name)
		}
	}
	afterConnect := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[settingsOfTx] = set.String()
		return afterConnect(ctx, conn)
	}
	if cfg.StatementTimeout > 0 {
		bound := &deadline{timeout: cfg.StatementTimeout}
		if conn.Tracer == nil {
			conn.Tracer = bound
		} else {
			conn.Tracer = multitracer.New(bound, conn.Tracer)
		}
	}
}

// deadline bounds statements outside of transactions, as whose tracer it lends them its context.
type deadline struct{ timeout time.Duration }

var (
	_ pgx.QueryTracer = (*deadline)(nil)
	_ pgx.BatchTracer = (*deadline)(nil)
)

type deadlineKey struct{}

func (d *deadline) start(ctx context.Context, conn *pgx.Conn) context.Context {
	const outside = 'I'
	if conn.PgConn().TxStatus() != outside {
		return ctx
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("the statement took longer than %s", d.timeout))
	return context.WithValue(ctx, deadlineKey{}, cancel)
}

func (d *deadline) end(ctx context.Context) {
	if cancel, ok := ctx.Value(deadlineKey{}).(context.CancelFunc); ok {
		cancel()
	}
}

// TraceQueryStart implements [pgx.QueryTracer].
func (d *deadline) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return d.start(ctx, conn)
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (d *deadline) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	d.end(ctx)
}

// TraceBatchStart implements [pgx.BatchTracer].
func (d *deadline) TraceBatchStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return d.start(ctx, conn)
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (d *deadline) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (d *deadline) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	d.end(ctx)
}
