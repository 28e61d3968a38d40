package bed

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Backlog is work to be put into a database, each with a ticket of its own.
type Backlog struct {
	Count int
	First int           // number of the first ticket; no two backlogs of a database may overlap
	Route string        // Main or Other
	Lane  string        // live, unless told otherwise
	DueIn time.Duration // of retries that are scheduled for later; 0 for work that is due
	Idle  bool          // tickets alone, without work
}

// work is the table of it.
const work = "evaluation_outbox"

// largeBacklog is where indexes are made anew after the rows, and not along with them.
const largeBacklog = 1_000_000

//go:embed tickets.sql
var insertTickets string

//go:embed work.sql
var insertWork string

// Fill puts work into the database, and settles it. The backlogs are the work of one moment, in the order of their
// numbers.
func (d *Database) Fill(ctx context.Context, backlogs ...Backlog) error {
	total := 0
	for _, b := range backlogs {
		total += b.Count
	}
	g, ctx2 := errgroup.WithContext(ctx)
	for table, insert := range map[string]string{"ticket": insertTickets, work: insertWork} {
		g.Go(func() error { return d.fillTable(ctx2, table, insert, backlogs, total >= largeBacklog) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("fill a database with %d evaluations: %w", total, err)
	}
	return d.Settle(ctx)
}

// fillTable works in one session, in which no foreign key is checked row by row: the tables are filled side by side.
func (d *Database) fillTable(ctx context.Context, table, insert string, backlogs []Backlog, large bool) error {
	return pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica; SET LOCAL synchronous_commit = off"); err != nil {
			return err
		}
		rebuild := func(context.Context) error { return nil }
		if large {
			var err error
			if rebuild, err = dropIndexes(ctx, tx, table); err != nil {
				return err
			}
		}
		for _, b := range backlogs {
			if b.Idle && table == work {
				continue
			}
			lane := b.Lane
			if lane == "" {
				lane = "live"
			}
			args := pgx.NamedArgs{
				"first": b.First, "count": b.Count, "version": versionOf(b.Route, b.Route).ID, "lane": lane, "due_seconds": b.DueIn.Seconds(),
			}
			if _, err := tx.Exec(ctx, insert, args); err != nil {
				return err
			}
		}
		return rebuild(ctx)
	})
}

// dropIndexes drops the indexes and the keys of a table, but for a key that others refer to, and returns what makes them
// again: a tree that is built from sorted rows takes a fraction of the time of one that grows by millions of keys in
// random order.
func dropIndexes(ctx context.Context, tx pgx.Tx, table string) (rebuild func(context.Context) error, err error) {
	rows, err := tx.Query(ctx, `
		SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', c.conrelid::regclass, c.conname),
		       format('ALTER TABLE %s ADD CONSTRAINT %I %s', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
		FROM pg_constraint c
		WHERE c.conrelid = $1::regclass AND c.contype IN ('p', 'u')
		  AND NOT EXISTS (SELECT FROM pg_constraint f WHERE f.contype = 'f' AND f.confrelid = $1::regclass)
		UNION ALL
		SELECT format('DROP INDEX %s', i.indexrelid::regclass), pg_get_indexdef(i.indexrelid)
		FROM pg_index i
		WHERE i.indrelid = $1::regclass AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u'))`, table)
	if err != nil {
		return nil, err
	}
	type change struct{ Drop, Make string }
	changes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[change])
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if _, err := tx.Exec(ctx, c.Drop); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		for _, c := range changes {
			if _, err := tx.Exec(ctx, c.Make); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
