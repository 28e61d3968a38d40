package reprocess

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// Progress is how far a job is. The counts are of tickets up to Dead, and of evaluations from Waiting on.
type Progress struct {
	Phase                                string
	Total, Seen, Examined                int64
	Enqueued, AlreadyAnswered            int64
	AlreadyQueued, AlreadyDead           int64
	Waiting, Held, Processing, Evaluated int64
	Dead, TakenOver, Removed, Kept       int64
	SpentUSD                             decimal.Decimal
	ETA                                  time.Time // zero when it is not known
}

// Counted is what a job has counted itself.
func Counted(j jobdb.Job) (Progress, error) {
	c, err := cursorOf(j)
	if err != nil {
		return Progress{}, err
	}
	p := Progress{
		Phase: phaseOf(j, c), Total: c.Total, Seen: j.Counts[countSeen], Examined: j.Counts[countExamined], Enqueued: j.Counts[countEnqueued],
		AlreadyAnswered: j.Counts[countAnswered], AlreadyQueued: j.Counts[countQueued], AlreadyDead: j.Counts[countDead],
		Removed: j.Counts[countRemoved], Kept: j.Counts[countKept],
	}
	return p, nil
}

func phaseOf(j jobdb.Job, c *cursor) string {
	switch {
	case j.Unsettled:
		return "settling"
	case j.State != jobdb.Running:
		return ""
	case c.Phase == wait:
		return "waiting"
	case c.Phase == drain:
		return "evaluating"
	default:
		return "enqueuing"
	}
}

// Look is what a job has counted and what has become of its work. All statements of the transaction have to see one
// snapshot for the sums to be exact.
func Look(ctx context.Context, tx pgx.Tx, j jobdb.Job, now time.Time) (Progress, error) {
	p, err := Counted(j)
	if err != nil {
		return Progress{}, err
	}
	work, err := outbox.WorkOf(ctx, tx, j.ID)
	if err != nil {
		return Progress{}, err
	}
	calls, err := ledger.CallsOf(ctx, tx, j.ID)
	if err != nil {
		return Progress{}, err
	}
	p.Waiting, p.Held, p.Processing, p.Dead = int64(work.Waiting), int64(work.Held), int64(work.Processing), int64(work.Dead)
	p.Evaluated, p.SpentUSD = calls.Answered, calls.CostUSD
	p.TakenOver = max(0, p.Enqueued-p.Removed-p.Kept-p.Waiting-p.Processing-p.Dead-p.Evaluated)
	p.ETA = eta(j, p, work.LastDueAt, calls.AnsweredLastMinute, now)
	return p, nil
}

// eta is when all is evaluated at the pace of the last minute, and not before the last of it is due.
func eta(j jobdb.Job, p Progress, lastDueAt time.Time, perMinute int64, now time.Time) time.Time {
	left := p.Waiting - p.Held + p.Processing
	if j.State != jobdb.Running || p.Phase != "evaluating" || left == 0 || perMinute == 0 {
		return time.Time{}
	}
	at := now.Add(time.Duration(float64(left) / float64(perMinute) * float64(time.Minute)))
	if lastDueAt.After(at) {
		return lastDueAt
	}
	return at
}
