// Package migrations brings a database to the schema that this build of the services expects.
//
// Migrations are the SQL files beside this one, embedded, and applied in the order of their numbers, each in a
// transaction of its own unless the file says otherwise. Any number of processes may call [Up] at once: a session
// lock lets one of them migrate, the others wait and find nothing left to do. Such a lock needs a session, so the
// URL must lead to Postgres itself or to a pooler in session mode; one in transaction mode is refused. [Missing] and
// [MissingAt] take any.
//
// There is no way down. A change is expanded, then migrated, then contracted, so that the services of the release
// before keep working on the new schema; going back means to run the old services on it.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// Waiting for another process to finish its migrations: as long as building an index on a large table may take.
const (
	lockPollSeconds = 1
	lockPolls       = 600
)

// A statement that waits for a table's lock makes everybody wait who comes after it. Better to fail, and to be run
// again, than to stop the services. A migration that has to wait longer sets its own lock_timeout.
const lockTimeout = "10s"

var errUnreadableURL = errors.New("read database URL: neither postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=… " +
	"with special characters percent-encoded, nor host=… user=… dbname=…, or one of its parameters has an unknown value")

// Migration is one step of the schema, and whether a database has taken it.
type Migration struct {
	Name      string // its file's
	Applied   bool
	AppliedAt time.Time // zero while it is not applied
}

// Up applies, in order, every migration that the database lacks, and returns the names of those that it applied
// itself; they stay applied when a later one fails. Calling it again continues where it stopped.
func Up(ctx context.Context, url string) (applied []string, err error) {
	db, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockPollSeconds, lockPolls))
	if err != nil {
		return nil, fmt.Errorf("make migration lock: %w", err)
	}
	provider, err := newProvider(db, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		return names(partial.Applied), fmt.Errorf("apply migration %s: %w", partial.Failed.Source.Path, partial.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("apply migrations: %w", err)
	}
	return names(results), nil
}

// Status returns all migrations of this build in order. It waits for nobody and writes nothing.
func Status(ctx context.Context, url string) (status []Migration, err error) {
	db, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	store, err := database.NewStore(database.DialectPostgres, goose.DefaultTablename)
	if err != nil {
		return nil, fmt.Errorf("read migration status: %w", err)
	}
	var versioned bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", store.Tablename()).Scan(&versioned); err != nil {
		return nil, fmt.Errorf("read migration status: %w", err)
	}
	for _, source := range provider.ListSources() {
		migration := Migration{Name: source.Path}
		if versioned {
			row, err := store.GetMigration(ctx, db, source.Version)
			if err != nil && !errors.Is(err, database.ErrVersionNotFound) {
				return nil, fmt.Errorf("read migration status of %s: %w", source.Path, err)
			}
			if row != nil && row.IsApplied {
				migration.Applied, migration.AppliedAt = true, row.Timestamp
			}
		}
		status = append(status, migration)
	}
	return status, nil
}

// MissingAt is [Missing] of the database at an address.
func MissingAt(ctx context.Context, url string) ([]string, error) {
	config, err := parse(url)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("read which migrations are applied: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return Missing(ctx, conn)
}

// Querier is a connection, a pool or a transaction of pgx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Missing returns the names of the migrations of this build that a database lacks, in order. It needs to read
// goose_db_version and nothing else. Migrations of a later release are none of its business.
func Missing(ctx context.Context, db Querier) ([]string, error) {
	applied, err := appliedIn(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read which migrations are applied: %w", err)
	}
	list, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var missing []string
	for _, name := range list { // in the order of their numbers, which have the same number of digits
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("read the number of migration %s: %w", name, err)
		}
		if !applied[version] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// appliedIn are the numbers of the migrations that a database has taken.
func appliedIn(ctx context.Context, db Querier) (map[int64]bool, error) {
	rows, err := db.Query(ctx, "SELECT DISTINCT ON (version_id) version_id, is_applied FROM "+goose.DefaultTablename+" ORDER BY version_id, id DESC")
	applied := map[int64]bool{}
	if err == nil {
		var version int64
		var is bool
		_, err = pgx.ForEachRow(rows, []any{&version, &is}, func() error {
			applied[version] = is
			return nil
		})
	}
	const undefinedTable = "42P01"
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == undefinedTable {
		return nil, nil // not even the first
	}
	return applied, err
}

// Fingerprint differs between any two sets of migrations: the name under which a migrated database can be kept and
// cloned.
func Fingerprint() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%d:%s%d:", len(name), name, len(content))
		hash.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read embedded migrations: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func open(ctx context.Context, url string) (*sql.DB, error) {
	config, err := parse(url)
	if err != nil {
		return nil, err
	}
	if err := refuseShared(ctx, config); err != nil {
		return nil, err
	}
	return stdlib.OpenDB(*config, stdlib.OptionAfterConnect(configure)), nil
}

func parse(url string) (*pgx.ConnConfig, error) {
	if strings.TrimSpace(url) == "" {
		return nil, errors.New("the database URL is empty")
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// The driver's message repeats the string, and can only guess which part of a broken one is the password.
		return nil, errUnreadableURL
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "evalonce-migrate"
	}
	// Whoever only reads may ask a pooler in transaction mode, where nothing stays prepared.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return config, nil
}

var errShared = errors.New("a pooler in transaction mode answers at the database URL, and a migration needs a session of its own: " +
	"name Postgres itself")

// refuseShared fails where another client is lent the session that this one has worked in.
func refuseShared(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	session := func(of *pgx.Conn) (pid uint32, err error) {
		if err = of.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			err = fmt.Errorf("look for a pooler: %w", err)
		}
		return pid, err
	}
	own, err := session(conn)
	if err != nil || own == conn.PgConn().PID() { // a pooler gives its clients names of its own
		return err
	}
	other, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("look for a pooler: %w", err)
	}
	defer func() { _ = other.Close(context.WithoutCancel(ctx)) }()
	if _, err := other.Exec(ctx, "BEGIN"); err != nil { // so that it keeps what it is lent
		return fmt.Errorf("look for a pooler: %w", err)
	}
	theirs, err := session(other)
	if err == nil && theirs == own {
		return errShared
	}
	if err != nil {
		return err
	}
	again, err := session(conn)
	if err == nil && again != own {
		return errShared
	}
	return err
}

// configure sets what the URL did not, by statement and not at start-up: a pooler refuses start-up parameters that
// it does not know.
func configure(ctx context.Context, conn *pgx.Conn) error {
	for _, setting := range []struct{ name, value string }{
		{"lock_timeout", lockTimeout},
		// Whatever the role's or the server's limit is meant for, building an index may take longer.
		{"statement_timeout", "0"},
		// goose stores the time of a migration without its zone.
		{"timezone", "UTC"},
	} {
		if _, set := conn.Config().RuntimeParams[setting.name]; set {
			continue
		}
		if _, err := conn.Exec(ctx, "SELECT set_config($1, $2, false)", setting.name, setting.value); err != nil {
			return fmt.Errorf("set %s: %w", setting.name, err)
		}
	}
	return nil
}

func newProvider(db *sql.DB, options ...goose.ProviderOption) (*goose.Provider, error) {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		append(options, goose.WithDisableGlobalRegistry(true))...)
	if err != nil {
		return nil, fmt.Errorf("read embedded migrations: %w", err)
	}
	return provider, nil
}

func names(results []*goose.MigrationResult) []string {
	list := make([]string, 0, len(results))
	for _, result := range results {
		list = append(list, result.Source.Path)
	}
	return list
}
