// Package jobdb owns reprocess_job: long work over what is stored, done in chunks.
//
// A job is claimed by lease, by the database's clock, so that one replica at a time works on it and another goes on when
// that one is gone. A chunk, where the next one begins, and what it adds to the counts are one transaction ([Hold], the
// work, [Step]): after any crash a chunk has happened entirely or not at all, and the counts say which.
//
// [Hold] locks the job until the chunk's end. [Pause], [Resume] and [Cancel] therefore wait for a chunk that is under
// way, and no other begins under the state that they replace. In the order of locks a job comes first, before the work
// that it is about.
package jobdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/jobdb/internal/jobdbsql"
	"github.com/evalonce/evalonce/pkg/telemetry"
)

// Kind says what a job does.
type Kind string

// The kinds.
const (
	Evaluate Kind = "evaluate" // tickets of a range, under another version
	Replay   Kind = "replay"   // dead letters
	Policy   Kind = "policy"   // the active policy, to answers that are stored
)

// State is where a job stands.
type State string

// The states. A failed job is one whose chunk could not be done; it can be resumed.
const (
	Running  State = "running"
	Paused   State = "paused"
	Canceled State = "canceled"
	Done     State = "done"
	Failed   State = "failed"
)

var (
	// ErrNotFound is returned when there is no job of this kind and id.
	ErrNotFound = errors.New("no such job")
	// ErrLost is returned to whoever works on a job that is another's by now, or whose state was changed.
	ErrLost = errors.New("the job's lease is lost")
)

// StateError is returned when a job cannot go from the state it is in to the one asked for.
type StateError struct {
	ID       uuid.UUID
	Is, Want State
}

func (e *StateError) Error() string {
	return fmt.Sprintf("job %s is %s and cannot become %s", e.ID, e.Is, e.Want)
}

// Job is a job as it is stored.
type Job struct {
	ID           uuid.UUID
	Kind         Kind
	Spec         json.RawMessage // what was asked for; never changes
	State        State
	Unsettled    bool            // paused or canceled, and the work that waits is not all held back or gone
	Reason       string          // of a state that no operator asked for, or of the last failure
	Cursor       json.RawMessage // where the next chunk begins; {} at first
	Counts       map[string]int64
	Failures     int // of the chunk that comes next
	CreatedBy    string
	CreatedAt    time.Time
	ChangedAt    time.Time // of the state
	FinishedAt   time.Time // zero while the job may go on
	Lease        uuid.UUID // uuid.Nil when nobody works on it
	TraceContext string
}

// New is a job to be made.
type New struct {
	Kind      Kind
	Spec      any // becomes a JSON object
	CreatedBy string
}

// Insert makes a job, which is due when the transaction commits. It remembers the trace that it is made in.
func Insert(ctx context.Context, tx pgx.Tx, n New) (Job, error) {
	spec, err := json.Marshal(n.Spec)
	if err != nil {
		return Job{}, fmt.Errorf("encode the spec of a job of kind %s: %w", n.Kind, err)
	}
	row, err := jobdbsql.New(tx).InsertJob(ctx, jobdbsql.InsertJobParams{
		Kind: string(n.Kind), Spec: spec, CreatedBy: n.CreatedBy, TraceContext: telemetry.Inject(ctx),
	})
	if err != nil {
		return Job{}, fmt.Errorf("insert a job of kind %s: %w", n.Kind, err)
	}
	return jobOf(row)
}

// Get returns a job, or ErrNotFound.
func Get(ctx context.Context, db jobdbsql.DBTX, kind Kind, id uuid.UUID) (Job, error) {
	row, err := jobdbsql.New(db).GetJob(ctx, jobdbsql.GetJobParams{Kind: string(kind), ID: id})
	return one(row, err, id, "get")
}

// List returns up to most jobs of a kind, in a state where one is given, the newest first, and those alone that are
// older than the one given; uuid.Max is younger than all.
func List(ctx context.Context, db jobdbsql.DBTX, kind Kind, state State, before uuid.UUID, most int) ([]Job, error) {
	rows, err := jobdbsql.New(db).ListJobs(ctx, jobdbsql.ListJobsParams{
		Kind: string(kind), State: string(state), Before: before, Most: int32(most),
	})
	if err != nil {
		return nil, fmt.Errorf("list jobs of kind %s: %w", kind, err)
	}
	jobs := make([]Job, len(rows))
	for i, row := range rows {
		if jobs[i], err = jobOf(row); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// Pause stops a running job before its next chunk. With settle, the job's kind has something to do about the work that
// waits: it is stepped as a paused one until that is done. It reports whether anything changed.
func Pause(ctx context.Context, tx pgx.Tx, kind Kind, id uuid.UUID, settle bool) (j Job, changed bool, err error) {
	return change(ctx, tx, kind, id, Paused, settle, Running)
}

// Resume lets a paused job go on where it was, and one that has failed try its chunk again.
func Resume(ctx context.Context, tx pgx.Tx, kind Kind, id uuid.UUID) (j Job, changed bool, err error) {
	return change(ctx, tx, kind, id, Running, false, Paused, Failed)
}

// Cancel ends a job before its next chunk. For settle see [Pause].
func Cancel(ctx context.Context, tx pgx.Tx, kind Kind, id uuid.UUID, settle bool) (j Job, changed bool, err error) {
	return change(ctx, tx, kind, id, Canceled, settle, Running, Paused, Failed)
}

// Lock returns a job and keeps it as it is until the transaction ends; a chunk that is under way is waited for.
func Lock(ctx context.Context, tx pgx.Tx, kind Kind, id uuid.UUID) (Job, error) {
	row, err := jobdbsql.New(tx).LockJob(ctx, jobdbsql.LockJobParams{Kind: string(kind), ID: id})
	return one(row, err, id, "lock")
}

func change(ctx context.Context, tx pgx.Tx, kind Kind, id uuid.UUID, to State, settle bool, from ...State) (Job, bool, error) {
	j, err := Lock(ctx, tx, kind, id)
	if err != nil || j.State == to {
		return j, false, err
	}
	allowed := false
	for _, s := range from {
		allowed = allowed || j.State == s
	}
	if !allowed {
		return j, false, &StateError{ID: id, Is: j.State, Want: to}
	}
	row, err := jobdbsql.New(tx).ChangeJob(ctx, jobdbsql.ChangeJobParams{ID: id, State: string(to), Unsettled: settle})
	j, err = one(row, err, id, "change")
	return j, err == nil, err
}

func one(row jobdbsql.ReprocessJob, err error, id uuid.UUID, what string) (Job, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return Job{}, fmt.Errorf("job %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Job{}, fmt.Errorf("%s job %s: %w", what, id, err)
	}
	return jobOf(row)
}

func jobOf(row jobdbsql.ReprocessJob) (Job, error) {
	j := Job{
		ID: row.ID, Kind: Kind(row.Kind), Spec: row.Spec, State: State(row.State), Unsettled: row.Unsettled, Reason: row.Reason,
		Cursor: row.Cursor, Failures: int(row.Failures), CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt, ChangedAt: row.ChangedAt,
		TraceContext: row.TraceContext,
	}
	if row.FinishedAt != nil {
		j.FinishedAt = *row.FinishedAt
	}
	if row.LeaseID != nil {
		j.Lease = *row.LeaseID
	}
	if err := json.Unmarshal(row.Counts, &j.Counts); err != nil {
		return Job{}, fmt.Errorf("decode the counts of job %s: %w", row.ID, err)
	}
	return j, nil
}
