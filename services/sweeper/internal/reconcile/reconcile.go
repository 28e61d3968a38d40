// Package reconcile gives work to tickets that have none: the backstop behind the promise that a ticket and its
// evaluation are born together. It finds nothing unless somebody wrote to the tables by hand, restored a part of
// them, or a release had a fault.
//
// A ticket is given work under the active version when it has neither work nor a result under any version. One that
// an older version answered, or is working on, or buried, is left alone: to evaluate it again would spend money that
// nobody asked to spend, and is what reprocessing is for.
//
// The youngest ticket needs no grace. A ticket, and the work or the result that it was born with, become visible at
// once, by one commit; work that ends becomes a result by one commit, too; and each page is one statement, which
// sees one snapshot.
package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

const (
	page  = 2000 // tickets looked at by one statement
	chunk = 500  // evaluations of one insert
)

// Run walks over the tickets of the window, newest first, and returns how many it gave work to; a window of zero has
// all tickets. Several may run at once: none gives work to a ticket that another has given work to. What Run returns
// was done, also beside an error, which matches versiondb.ErrNoActive when there was something to be done and no
// version to do it under.
func Run(ctx context.Context, db *pgxpool.Pool, window time.Duration) (reconciled int, err error) {
	before := uuid.Max
	for {
		missing, next, ok, err := fsck.Unevaluated(ctx, db, window, before, page)
		if err != nil || !ok {
			return reconciled, err
		}
		if len(missing) > 0 {
			n, err := mend(ctx, db, window, before)
			reconciled += n
			if err != nil {
				return reconciled, err
			}
		}
		before = next
	}
}

// mend gives work to what is missing on one page.
func mend(ctx context.Context, db postgres.Beginner, window time.Duration, before uuid.UUID) (mended int, err error) {
	err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		// One at a time, and the page is read again: two that both found a ticket could else give it work under two
		// versions, when another is promoted between them.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('evalonce/sweeper/reconcile'))"); err != nil {
			return fmt.Errorf("wait for another sweeper: %w", err)
		}
		missing, _, _, err := fsck.Unevaluated(ctx, tx, window, before, page)
		if err != nil {
			return err
		}
		if missing, err = withText(ctx, tx, missing); err != nil {
			return err
		}
		mended = len(missing)
		if mended == 0 {
			return nil
		}
		active, err := versiondb.GetActive(ctx, tx)
		if err != nil {
			return err
		}
		demand := outbox.Demand{VersionID: active.ID, Route: active.Route, Lane: outbox.Bulk}
		for jobs := jobsOf(missing, active.Digest); len(jobs) > 0; {
			n := min(chunk, len(jobs))
			if err := outbox.Enqueue(ctx, tx, demand, jobs[:n]); err != nil {
				return err
			}
			jobs = jobs[n:]
		}
		crashpoint.Pass(crashpoint.SweepReconciled)
		return nil
	})
	if err != nil {
		return 0, err
	}
	crashpoint.PassIf(mended > 0, crashpoint.SweepReconcileCommitted)
	return mended, nil
}

// withText are those of the tickets that have a text, and keep it until they have work.
func withText(ctx context.Context, tx pgx.Tx, tickets []fsck.Ticket) ([]fsck.Ticket, error) {
	ids := make([]uuid.UUID, len(tickets))
	for i, t := range tickets {
		ids[i] = t.ID
	}
	held, err := ticketdb.HoldTexts(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tickets, func(t fsck.Ticket) bool { return !held[t.ID] }), nil
}

// jobsOf makes one job of each content, in the name of its oldest ticket. They are in key order, as everyone takes
// the locks of several keys.
func jobsOf(newestFirst []fsck.Ticket, digest [32]byte) []outbox.Job {
	jobs := make([]outbox.Job, 0, len(newestFirst))
	at := make(map[content.Hash]int, len(newestFirst))
	for _, t := range newestFirst {
		job := outbox.Job{Key: content.KeyOf(t.ContentHash, digest), ContentHash: t.ContentHash, TicketID: t.ID, TraceContext: t.TraceContext}
		if i, ok := at[t.ContentHash]; ok {
			jobs[i] = job
			continue
		}
		at[t.ContentHash] = len(jobs)
		jobs = append(jobs, job)
	}
	slices.SortFunc(jobs, func(a, b outbox.Job) int { return cmp.Compare(a.Key, b.Key) })
	return jobs
}
