package ticketdb

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ticketdb/internal/ticketdbsql"
)

// NoWork is the state, in a filter, of a ticket that has neither work nor an answer.
const NoWork = "none"

// Range selects tickets: of a half-open range of creation times, and, where one is given, by filter.
type Range struct {
	From, To time.Time
	ClientID string
	// States are those of the evaluation under the filter's version: pending, processing, succeeded, dead or NoWork.
	States []string
	// Department is that of the answer under the filter's version, or else of the newest other one.
	Department string
	// OnlyMissing selects those that no version has answered.
	OnlyMissing bool
	// Digest is the filter's version, nil where none is meant: then no ticket has a state but NoWork.
	Digest []byte
}

// Horizon divides the tickets of a range in two parts, each ticket being in one of them for ever: those written by a
// transaction that was over when the horizon was drawn, and those that may still have been on their way.
type Horizon struct {
	XID     int64
	At      time.Time // by the database's clock
	Tickets int64     // of the range and the client, that were visible
}

// DrawHorizon draws a horizon now.
func DrawHorizon(ctx context.Context, db ticketdbsql.DBTX, r Range) (Horizon, error) {
	row, err := ticketdbsql.New(db).RangeHorizon(ctx, ticketdbsql.RangeHorizonParams{CreatedFrom: r.From, CreatedTo: r.To, ClientID: r.ClientID})
	if err != nil {
		return Horizon{}, fmt.Errorf("draw a horizon: %w", err)
	}
	return Horizon{XID: row.Horizon, At: row.At, Tickets: row.Tickets}, nil
}

// Writers reports whether all transactions are over whose xid is below one, and the xid of this transaction: whoever had
// begun to write before it has a lower one.
func Writers(ctx context.Context, db ticketdbsql.DBTX, xid int64) (over bool, own int64, now time.Time, err error) {
	row, err := ticketdbsql.New(db).RangeOver(ctx, xid)
	if err != nil {
		return false, 0, time.Time{}, fmt.Errorf("look for transactions before %d: %w", xid, err)
	}
	return row.Over, row.OwnXid, row.At, nil
}

// AnyNew reports whether a ticket was created, by its identifier, within such a time before now.
func AnyNew(ctx context.Context, db ticketdbsql.DBTX, within time.Duration) (bool, error) {
	some, err := ticketdbsql.New(db).AnyNew(ctx, within.Seconds())
	if err != nil {
		return false, fmt.Errorf("look for new tickets: %w", err)
	}
	return some, nil
}

// Scanned is a ticket of a range.
type Scanned struct {
	Position
	ContentHash content.Hash
	Matches     bool // the filter
}

// Scan returns up to most tickets of a range that come after a position, in the order of creation, and of one side of the
// horizon alone.
func Scan(ctx context.Context, db ticketdbsql.DBTX, r Range, after Position, horizon int64, before bool, most int) ([]Scanned, error) {
	rows, err := ticketdbsql.New(db).ScanRange(ctx, ticketdbsql.ScanRangeParams{
		States: orEmpty(r.States), FilterDigest: r.Digest, Department: r.Department, OnlyMissing: r.OnlyMissing,
		AfterAt: after.CreatedAt, AfterID: after.ID, CreatedTo: r.To, ClientID: r.ClientID, Horizon: horizon, BeforeHorizon: before, Most: int32(most),
	})
	if err != nil {
		return nil, fmt.Errorf("scan the tickets created from %s to %s: %w", after.CreatedAt.Format(time.RFC3339Nano), r.To.Format(time.RFC3339Nano), err)
	}
	tickets := make([]Scanned, len(rows))
	for i, row := range rows {
		tickets[i] = Scanned{Position: Position{CreatedAt: row.CreatedAt, ID: row.ID}, ContentHash: content.Hash(row.ContentHash), Matches: row.Matches}
	}
	return tickets, nil
}

// Count is what evaluating a range under a version comes to. Contents are distinct; those that are neither answered, nor
// queued, nor dead take a call each.
type Count struct {
	Tickets, Contents, Answered, Queued, Dead int64
	// CallBytes is the length of a ticket's text, on the average of the calls.
	CallBytes float64
}

// Calls is how many calls it takes.
func (c Count) Calls() int64 { return c.Contents - c.Answered - c.Queued - c.Dead }

// CountRange counts, for the version of a digest, up to most tickets of a range, those created first; all, when most is
// 0. It sets what its plan needs for the rest of the transaction.
func CountRange(ctx context.Context, tx pgx.Tx, r Range, target []byte, most int64) (Count, error) {
	q := ticketdbsql.New(tx)
	if err := q.PlanRange(ctx); err != nil {
		return Count{}, fmt.Errorf("prepare to count a range: %w", err)
	}
	row, err := q.CountRange(ctx, ticketdbsql.CountRangeParams{
		CreatedFrom: r.From, CreatedTo: r.To, ClientID: r.ClientID, States: orEmpty(r.States), Department: r.Department,
		OnlyMissing: r.OnlyMissing, FilterDigest: r.Digest, TargetDigest: target, Most: most,
	})
	if err != nil {
		return Count{}, fmt.Errorf("count the tickets created from %s to %s: %w", r.From.Format(time.RFC3339Nano), r.To.Format(time.RFC3339Nano), err)
	}
	return Count{
		Tickets: row.Tickets, Contents: row.Contents, Answered: row.Answered, Queued: row.Queued, Dead: row.Dead, CallBytes: row.CallBytes,
	}, nil
}

// orEmpty is because a nil array is NULL, whose cardinality is not 0.
func orEmpty(states []string) []string {
	if states == nil {
		return []string{}
	}
	return states
}
