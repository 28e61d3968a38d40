package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// Spread is the time over which a job's work becomes due. Where in it is a matter of the key, so that work that is
// spread again comes in the same order.
type Spread struct {
	From   time.Time
	Length time.Duration
}

// EnqueueBulk gives every key that has neither work nor a result work on the bulk lane, in the name of a job, and says
// where each of the others stands; the keys that were given work are not among these. Keys must be distinct and their
// tickets stored.
//
// However many do this with the same keys at once, and whoever else asks for them, a key is given work by one of them:
// the others wait for its commit, and find the work.
func EnqueueBulk(ctx context.Context, tx pgx.Tx, d Demand, job uuid.UUID, spread Spread, jobs []Job) (found map[content.Key]State, err error) {
	q := outboxsql.New(tx)
	if err := q.PlanBulk(ctx); err != nil {
		return nil, fmt.Errorf("plan to enqueue %d evaluations for job %s: %w", len(jobs), job, err)
	}
	found = map[content.Key]State{}
	missing := jobs
	for range enqueueRounds {
		if len(missing) == 0 {
			return found, nil
		}
		p := outboxsql.EnqueueBulkParams{
			VersionID: d.VersionID, Route: d.Route, JobID: job, SpreadFrom: spread.From, SpreadSeconds: spread.Length.Seconds(),
			Keys: keysOf(missing), ContentHashes: make([][]byte, len(missing)), TicketIds: make([]uuid.UUID, len(missing)),
		}
		for i, j := range missing {
			p.ContentHashes[i], p.TicketIds[i] = j.ContentHash[:], j.TicketID
		}
		inserted, err := q.EnqueueBulk(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("enqueue %d evaluations for job %s: %w", len(missing), job, err)
		}
		existing := without(missing, inserted)
		if len(existing) == 0 {
			return found, nil
		}
		states, err := q.States(ctx, keysOf(existing))
		if err != nil {
			return nil, fmt.Errorf("read the states of %d evaluations: %w", len(existing), err)
		}
		known := make([]string, 0, len(states))
		for _, s := range states {
			if State(s.State) != Absent {
				found[content.Key(s.IdempotencyKey)] = State(s.State)
				known = append(known, s.IdempotencyKey)
			}
		}
		missing = without(existing, known)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("enqueue %d evaluations for job %s: their rows come and go", len(missing), job)
	}
	return found, nil
}

// Page is the part of a job's work that was looked at: what follows after Next, unless that is empty.
type Page struct {
	Next       content.Key
	Changed    int // held back, or made due
	Processing int // under way; it may wait again
	Removed    int
	Kept       int // all that a ticket has: it stays, due now, and the job's no longer
}

// HoldBack keeps up to most evaluations that wait in the name of a job from becoming due, from the key after the one given.
func HoldBack(ctx context.Context, tx pgx.Tx, job uuid.UUID, after content.Key, most int) (Page, error) {
	row, err := outboxsql.New(tx).HoldJobWork(ctx, outboxsql.HoldJobWorkParams{JobID: job, After: string(after), Most: int64(most)})
	if err != nil {
		return Page{}, fmt.Errorf("hold back the work of job %s: %w", job, err)
	}
	return Page{Next: content.Key(row.Next), Changed: int(row.Held), Processing: int(row.Processing)}, nil
}

// SpreadOut makes due again what HoldBack has held back.
func SpreadOut(ctx context.Context, tx pgx.Tx, job uuid.UUID, spread Spread, after content.Key, most int) (Page, error) {
	row, err := outboxsql.New(tx).SpreadJobWork(ctx, outboxsql.SpreadJobWorkParams{
		JobID: job, After: string(after), Most: int64(most), SpreadFrom: spread.From, SpreadSeconds: spread.Length.Seconds(),
	})
	if err != nil {
		return Page{}, fmt.Errorf("spread the work of job %s: %w", job, err)
	}
	return Page{Next: content.Key(row.Next), Changed: int(row.Spread)}, nil
}

// Withdraw removes up to most evaluations that wait in the name of a job and that nobody else has asked for. It waits
// for tickets that are being created with the same content, which take the work over.
func Withdraw(ctx context.Context, tx pgx.Tx, job uuid.UUID, after content.Key, most int) (Page, error) {
	q := outboxsql.New(tx)
	rows, err := q.JobWorkPage(ctx, outboxsql.JobWorkPageParams{JobID: job, After: string(after), Most: int32(most)})
	if err != nil {
		return Page{}, fmt.Errorf("read the work of job %s: %w", job, err)
	}
	var page Page
	var waiting []string
	for _, row := range rows {
		switch State(row.Status) {
		case Pending:
			waiting = append(waiting, row.IdempotencyKey)
		case Processing:
			page.Processing++
		default:
		}
	}
	if len(rows) == most {
		page.Next = content.Key(rows[len(rows)-1].IdempotencyKey)
	}
	if len(waiting) == 0 {
		return page, nil
	}
	locked, err := q.LockJobWork(ctx, outboxsql.LockJobWorkParams{JobID: job, Keys: waiting})
	if err != nil {
		return Page{}, fmt.Errorf("lock %d evaluations of job %s: %w", len(waiting), job, err)
	}
	removed, err := q.RemoveJobWork(ctx, locked)
	if err != nil {
		return Page{}, fmt.Errorf("remove %d evaluations of job %s: %w", len(locked), job, err)
	}
	// What was claimed meanwhile is under way, or somebody else's by now.
	page.Processing += len(waiting) - len(locked)
	page.Removed, page.Kept = int(removed.Removed), int(removed.Kept)
	return page, nil
}

// JobWork is what is left of a job's work.
type JobWork struct {
	Waiting    int
	Held       int // of those that wait: held back
	Processing int
	Dead       int
	LastDueAt  time.Time // when all that waits and is not held back is due; zero when nothing is
}

// WorkOf counts what is left of a job's work.
func WorkOf(ctx context.Context, db outboxsql.DBTX, job uuid.UUID) (JobWork, error) {
	row, err := outboxsql.New(db).JobWork(ctx, job)
	if err != nil {
		return JobWork{}, fmt.Errorf("count the work of job %s: %w", job, err)
	}
	w := JobWork{Waiting: int(row.Pending), Held: int(row.Held), Processing: int(row.Processing), Dead: int(row.Dead)}
	if row.Pending > row.Held {
		w.LastDueAt = row.LastDueAt
	}
	return w, nil
}

// Works reports whether any of a job's work waits or is under way.
func Works(ctx context.Context, db outboxsql.DBTX, job uuid.UUID) (bool, error) {
	works, err := outboxsql.New(db).JobWorks(ctx, job)
	if err != nil {
		return false, fmt.Errorf("look for work of job %s: %w", job, err)
	}
	return works, nil
}
