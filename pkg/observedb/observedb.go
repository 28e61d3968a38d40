// Package observedb owns queue_snapshot and sweep_run: what is measured of the tables, once for the whole fleet, and what
// the last sweep has come to. It looks into Postgres' own statistics, too.
package observedb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/observedb/internal/observedbsql"
)

// LockStale takes the snapshot's row until the transaction ends, when the snapshot is older than age and nobody else has
// it. It reports false otherwise: then there is nothing to do.
func LockStale(ctx context.Context, tx pgx.Tx, age time.Duration) (bool, error) {
	rows, err := observedbsql.New(tx).LockStale(ctx, age.Seconds())
	if err != nil {
		return false, fmt.Errorf("look whether the snapshot is too old: %w", err)
	}
	return len(rows) > 0, nil
}

// Save writes a snapshot, as of the beginning of the transaction.
func Save(ctx context.Context, tx pgx.Tx, data json.RawMessage) error {
	if err := observedbsql.New(tx).SaveSnapshot(ctx, data); err != nil {
		return fmt.Errorf("save a snapshot: %w", err)
	}
	return nil
}

// Latest returns the newest snapshot and its age; nil when none has been taken.
func Latest(ctx context.Context, db observedbsql.DBTX) (data json.RawMessage, age time.Duration, err error) {
	row, err := observedbsql.New(db).LatestSnapshot(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read the newest snapshot: %w", err)
	}
	if !row.Taken {
		return nil, 0, nil
	}
	return row.Data, seconds(row.AgeSeconds), nil
}

// RecordSweep writes down what a sweep that has just ended has come to.
func RecordSweep(ctx context.Context, db observedbsql.DBTX, took time.Duration, ok bool, counts map[string]int64) error {
	encoded, err := json.Marshal(counts)
	if err == nil {
		err = observedbsql.New(db).RecordSweep(ctx, observedbsql.RecordSweepParams{TookSeconds: took.Seconds(), Ok: ok, Counts: encoded})
	}
	if err != nil {
		return fmt.Errorf("record a sweep: %w", err)
	}
	return nil
}

// Sweep is the last one.
type Sweep struct {
	OK     bool
	Age    time.Duration // since one has ended well
	Counts map[string]int64
}

// LastSweep returns the last sweep.
func LastSweep(ctx context.Context, db observedbsql.DBTX) (Sweep, error) {
	row, err := observedbsql.New(db).LastSweep(ctx)
	if err != nil {
		return Sweep{}, fmt.Errorf("read what the last sweep has come to: %w", err)
	}
	s := Sweep{OK: row.Ok, Age: seconds(row.AgeSeconds)}
	if err := json.Unmarshal(row.Counts, &s.Counts); err != nil {
		return Sweep{}, fmt.Errorf("read what the last sweep has counted: %w", err)
	}
	return s, nil
}

func seconds(s float64) time.Duration { return max(0, time.Duration(s*float64(time.Second))) }

// OldestTransaction is the age of the oldest transaction that keeps dead rows of this database from being removed. Roles
// see their own transactions; those of others with pg_read_all_stats.
func OldestTransaction(ctx context.Context, db observedbsql.DBTX) (time.Duration, error) {
	var age float64
	err := db.QueryRow(ctx, `
		SELECT coalesce(extract(epoch FROM clock_timestamp() - min(began)), 0)::float8 FROM (
		  SELECT a.xact_start AS began FROM pg_stat_activity a
		  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		    AND a.backend_type <> 'autovacuum worker'
		  UNION ALL
		  SELECT p.prepared FROM pg_prepared_xacts p WHERE p.database = current_database()
		) held`).Scan(&age)
	if err != nil {
		return 0, fmt.Errorf("look for the oldest transaction: %w", err)
	}
	return seconds(age), nil
}

// Table is what Postgres knows of a table.
type Table struct {
	Name       string
	Live, Dead int64 // rows, estimated
	Bytes      int64 // with its indexes
}

// Tables returns what Postgres knows of tables.
func Tables(ctx context.Context, db observedbsql.DBTX, names []string) ([]Table, error) {
	rows, err := db.Query(ctx, `
		SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid)
		FROM pg_stat_user_tables s
		WHERE s.relid = ANY (ARRAY(SELECT to_regclass(n)::oid FROM unnest($1::text[]) n))
		ORDER BY 1`, names)
	if err != nil {
		return nil, fmt.Errorf("read the statistics of %d tables: %w", len(names), err)
	}
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
		err = row.Scan(&t.Name, &t.Live, &t.Dead, &t.Bytes)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the statistics of %d tables: %w", len(names), err)
	}
	return tables, nil
}
