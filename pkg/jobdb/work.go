package jobdb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/jobdb/internal/jobdbsql"
)

// Progress is what a chunk has come to.
type Progress struct {
	Cursor json.RawMessage  // where the next chunk begins; nil leaves it
	Add    map[string]int64 // is added to the counts
	// Done says that there is no further chunk: of a job that is paused or canceled, that nothing is unsettled any more.
	Done bool
	// Pause, when it is not empty, pauses the job for this reason; Settle as for [Pause].
	Pause  string
	Settle bool
	// Wait is the time until the next chunk. A job that waits is given back.
	Wait time.Duration
	// Rest is the time until the next chunk of a job that is kept, for the sake of others: moments, far less than a lease.
	Rest time.Duration
}

// Claim leases a job of these kinds that is due, if there is one. Those that have waited longest come first.
func Claim(ctx context.Context, db jobdbsql.DBTX, worker string, kinds []Kind, lease time.Duration) (j Job, ok bool, err error) {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	rows, err := jobdbsql.New(db).ClaimJob(ctx, jobdbsql.ClaimJobParams{Worker: worker, LeaseSeconds: lease.Seconds(), Kinds: names})
	if err != nil {
		return Job{}, false, fmt.Errorf("claim a job: %w", err)
	}
	if len(rows) == 0 {
		return Job{}, false, nil
	}
	j, err = jobOf(rows[0])
	return j, err == nil, err
}

// Hold locks a job for the chunk that comes, and returns it as it is now. ErrLost says that there is nothing to be done
// under this lease.
func Hold(ctx context.Context, tx pgx.Tx, id, lease uuid.UUID) (Job, error) {
	rows, err := jobdbsql.New(tx).HoldJob(ctx, jobdbsql.HoldJobParams{ID: id, Lease: lease})
	return held(rows, err, id, "hold")
}

// Step records what a chunk of a job that is held has come to. The lease is kept for another such time, unless the job
// waits, ends or is paused.
func Step(ctx context.Context, tx pgx.Tx, j Job, p Progress, lease time.Duration) (Job, error) {
	counts := make(map[string]int64, len(j.Counts)+len(p.Add))
	for name, n := range j.Counts {
		counts[name] = n
	}
	for name, n := range p.Add {
		counts[name] += n
	}
	encoded, err := json.Marshal(counts)
	if err != nil {
		return Job{}, fmt.Errorf("encode the counts of job %s: %w", j.ID, err)
	}
	cursor := p.Cursor
	if cursor == nil {
		cursor = j.Cursor
	}
	params := jobdbsql.StepJobParams{
		ID: j.ID, Lease: j.Lease, Cursor: cursor, Counts: encoded, State: string(j.State), Unsettled: j.Unsettled,
		WaitSeconds: p.Wait.Seconds(), LeaseSeconds: lease.Seconds(),
	}
	switch {
	case j.Unsettled:
		params.Reason, params.Unsettled = j.Reason, !p.Done
	case p.Done:
		params.State = string(Done)
	case p.Pause != "":
		params.State, params.Reason, params.Unsettled = string(Paused), p.Pause, p.Settle
	}
	params.Keep = p.Wait == 0 && (params.State == string(Running) || params.Unsettled)
	rows, err := jobdbsql.New(tx).StepJob(ctx, params)
	return held(rows, err, j.ID, "step")
}

// Fail gives a job back whose chunk could not be done, to be tried again after the delay; at the last failure that a
// chunk may have, the job has failed. It returns the job as it is then.
func Fail(ctx context.Context, db jobdbsql.DBTX, id, lease uuid.UUID, reason string, delay time.Duration, most int) (Job, error) {
	rows, err := jobdbsql.New(db).FailJob(ctx, jobdbsql.FailJobParams{
		ID: id, Lease: lease, Reason: reason, DelaySeconds: delay.Seconds(), MostFailures: int32(most),
	})
	return held(rows, err, id, "fail")
}

// Release gives a job back as it is.
func Release(ctx context.Context, db jobdbsql.DBTX, id, lease uuid.UUID) error {
	if err := jobdbsql.New(db).ReleaseJob(ctx, jobdbsql.ReleaseJobParams{ID: id, Lease: lease}); err != nil {
		return fmt.Errorf("release job %s: %w", id, err)
	}
	return nil
}

func held(rows []jobdbsql.ReprocessJob, err error, id uuid.UUID, what string) (Job, error) {
	if err != nil {
		return Job{}, fmt.Errorf("%s job %s: %w", what, id, err)
	}
	if len(rows) == 0 {
		return Job{}, fmt.Errorf("%s job %s: %w", what, id, ErrLost)
	}
	return jobOf(rows[0])
}
