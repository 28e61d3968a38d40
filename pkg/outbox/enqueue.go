package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// Job is work to be done: one key, and the ticket that asked for it first.
type Job struct {
	Key          content.Key
	ContentHash  content.Hash
	TicketID     uuid.UUID
	TraceContext string
}

// Demand says where work goes.
type Demand struct {
	VersionID string
	Route     string
	Lane      Lane
}

// rearmable are the classes of dead letter that may succeed when asked again: attempts spent on transient
// failures. A deterministic failure would fail again, and a call of unknown outcome may already be paid.
func rearmable() []string {
	var classes []string
	for _, c := range []failure.Class{failure.Transient, failure.Throttled, failure.Unknown, failure.Operator, failure.Permanent} {
		if c.Rearmable() {
			classes = append(classes, string(c))
		}
	}
	return classes
}

// Offer is Enqueue's first statement by itself: work for the keys that have neither work nor a result, of jobs whose
// tickets are stored. Keys must be distinct. The keys that were given work come back; the others have some already, or
// a result, or another's transaction has just ended theirs: Enqueue finds out.
func Offer(ctx context.Context, tx pgx.Tx, d Demand, jobs []Job) (inserted map[content.Key]bool, err error) {
	keys, err := outboxsql.New(tx).Enqueue(ctx, enqueueParams(d, jobs))
	if err != nil {
		return nil, fmt.Errorf("offer %d evaluations: %w", len(jobs), err)
	}
	return keySet(keys), nil
}

// Follow locks work against being finished before the transaction ends, so that the one who finishes it sees the
// tickets of this transaction. The keys whose work is there come back, but for work of the bulk lane and for what was buried
// because its text was erased: Enqueue takes that over.
func Follow(ctx context.Context, tx pgx.Tx, keys []content.Key) (followed map[content.Key]bool, err error) {
	found, err := outboxsql.New(tx).Follow(ctx, names(keys))
	if err != nil {
		return nil, fmt.Errorf("follow %d evaluations: %w", len(keys), err)
	}
	followed = make(map[content.Key]bool, len(found))
	for _, row := range found {
		if !row.Bulk && !row.Erased {
			followed[content.Key(row.IdempotencyKey)] = true
		}
	}
	return followed, nil
}

// enqueueRounds bounds how often Enqueue goes after a row that is there at one look and gone at the next. Once is
// what a finish in between costs; more needs a row that is made and deleted again within the same moment.
const enqueueRounds = 4

// Enqueue makes sure that every key has work or a result when the transaction commits. Keys must be distinct, and their
// tickets stored.
// Work that is there already is locked against being finished until then, so that the one who finishes it sees
// the tickets of this transaction; dead work of a re-armable class goes back to pending. Live demand takes work of the
// bulk lane over, which is due now and no job's any more.
//
// Whoever finishes work locks it in the order of the keys, and so do those who follow it. What is found out of that order
// is not waited for: the error matches [postgres.ErrRunAgain] then, and InTx runs the transaction again.
func Enqueue(ctx context.Context, tx pgx.Tx, d Demand, jobs []Job) error {
	return enqueue(ctx, tx, d, jobs, false)
}

// EnqueueMore is Enqueue for a transaction that has followed other work before, so that all it finds is out of order.
func EnqueueMore(ctx context.Context, tx pgx.Tx, d Demand, jobs []Job) error {
	return enqueue(ctx, tx, d, jobs, true)
}

func enqueue(ctx context.Context, tx pgx.Tx, d Demand, jobs []Job, following bool) error {
	q := outboxsql.New(tx)
	missing := jobs
	for range enqueueRounds {
		inserted, err := q.Enqueue(ctx, enqueueParams(d, missing))
		if err != nil {
			return fmt.Errorf("enqueue %d evaluations: %w", len(missing), err)
		}
		existing := without(missing, inserted)
		if len(existing) == 0 {
			return nil
		}
		states, err := q.States(ctx, keysOf(existing))
		if err != nil {
			return fmt.Errorf("read the states of %d evaluations: %w", len(existing), err)
		}
		var followed, dead []string
		answered := make([]string, 0, len(states))
		for _, s := range states {
			switch State(s.State) {
			case Succeeded:
				answered = append(answered, s.IdempotencyKey)
			case Dead:
				dead = append(dead, s.IdempotencyKey)
				followed = append(followed, s.IdempotencyKey)
			case Absent:
			default:
				followed = append(followed, s.IdempotencyKey)
			}
		}
		if len(followed) > 0 {
			if followed, err = follow(ctx, q, d, followed, dead, following); err != nil {
				return err
			}
			following = following || len(followed) > 0
		}
		if missing = without(without(existing, answered), followed); len(missing) == 0 {
			return nil
		}
	}
	return fmt.Errorf("enqueue %d evaluations: their rows come and go", len(missing))
}

// follow locks work that was there, and takes it up where this demand makes it due. All is locked for the followers before
// any of it is locked for a change, so that whoever finishes work has none of it, or has had all that it needs.
func follow(ctx context.Context, q *outboxsql.Queries, d Demand, keys, dead []string, following bool) (followed []string, err error) {
	rows, err := lockToFollow(ctx, q, keys, following)
	if err != nil {
		return nil, fmt.Errorf("follow %d evaluations: %w", len(keys), err)
	}
	wanted := dead
	for _, row := range rows {
		followed = append(followed, row.IdempotencyKey)
		if row.Bulk && d.Lane == Live || row.Erased && !slices.Contains(wanted, row.IdempotencyKey) {
			wanted = append(wanted, row.IdempotencyKey)
		}
	}
	if len(wanted) == 0 {
		return followed, nil
	}
	if _, err := q.Rearm(ctx, outboxsql.RearmParams{Keys: wanted, Classes: rearmable(), Live: d.Lane == Live}); err != nil {
		return nil, fmt.Errorf("re-arm %d evaluations: %w", len(wanted), err)
	}
	return followed, nil
}

// lockToFollow waits for nobody if the transaction follows other work already.
func lockToFollow(ctx context.Context, q *outboxsql.Queries, keys []string, following bool) ([]outboxsql.FollowRow, error) {
	if !following {
		return q.Follow(ctx, keys)
	}
	now, err := q.FollowNow(ctx, keys)
	if postgres.LockNotAvailable(err) {
		return nil, fmt.Errorf("%w: %w", postgres.ErrRunAgain, err)
	}
	rows := make([]outboxsql.FollowRow, len(now))
	for i, row := range now {
		rows[i] = outboxsql.FollowRow(row)
	}
	return rows, err
}

func enqueueParams(d Demand, jobs []Job) outboxsql.EnqueueParams {
	p := outboxsql.EnqueueParams{
		VersionID: d.VersionID, Route: d.Route, Lane: string(d.Lane),
		Keys: keysOf(jobs), ContentHashes: make([][]byte, len(jobs)), TicketIds: make([]string, len(jobs)), TraceContexts: make([]string, len(jobs)),
	}
	for i, j := range jobs {
		p.ContentHashes[i], p.TicketIds[i], p.TraceContexts[i] = j.ContentHash[:], j.TicketID.String(), j.TraceContext
	}
	return p
}

func keysOf(jobs []Job) []string {
	keys := make([]string, len(jobs))
	for i, j := range jobs {
		keys[i] = string(j.Key)
	}
	return keys
}

func names(keys []content.Key) []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	return names
}

func without(jobs []Job, keys []string) []Job {
	if len(keys) == 0 {
		return jobs
	}
	gone := keySet(keys)
	var left []Job
	for _, j := range jobs {
		if !gone[j.Key] {
			left = append(left, j)
		}
	}
	return left
}

// Standing is where a key stands, and why where it is dead.
type Standing struct {
	State  State
	Class  failure.Class
	Reason failure.Reason
	DeadAt time.Time // zero unless dead
}

// Rearmable reports whether the key is dead, and a new ticket makes it due again.
func (s Standing) Rearmable() bool {
	return s.State == Dead && (s.Class.Rearmable() || s.Reason == failure.Erased)
}

// StateOf reads where each key stands, without locks.
func StateOf(ctx context.Context, db outboxsql.DBTX, keys []content.Key) (map[content.Key]Standing, error) {
	rows, err := outboxsql.New(db).States(ctx, names(keys))
	if err != nil {
		return nil, fmt.Errorf("read the states of %d evaluations: %w", len(keys), err)
	}
	states := make(map[content.Key]Standing, len(rows))
	for _, r := range rows {
		s := Standing{State: State(r.State), Class: failure.Class(r.LastClass), Reason: failure.Reason(r.LastReason)}
		if r.DeadAt != nil {
			s.DeadAt = *r.DeadAt
		}
		states[content.Key(r.IdempotencyKey)] = s
	}
	return states, nil
}
