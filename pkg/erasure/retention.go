package erasure

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/erasure/internal/erasuresql"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// Least is the shortest retention: what is younger may be under way.
const Least = 24 * time.Hour

const (
	responses = "response"
	tickets   = "ticket"

	responseWindow = 2000 // calls of one transaction
	ticketWindow   = 500
)

// OldResponses takes the raw responses from calls that were opened longer ago than the retention, and are judged. Answers
// and costs stay. What it returns was done, also beside an error.
func OldResponses(ctx context.Context, db postgres.Beginner, retention time.Duration) (erased int64, err error) {
	return walk(ctx, db, responses, retention, func(ctx context.Context, tx pgx.Tx, after uuid.UUID, before time.Time) (part, error) {
		e, err := ledger.EraseOldResponses(ctx, tx, after, before, responseWindow)
		return part{next: e.Next, more: e.Next != uuid.Nil, erased: e.Erased, left: e.Left}, err
	})
}

// OldTexts erases the tickets that were created longer ago than the retention, as [Erase] does. Those that have to wait are
// looked at again the next time.
func OldTexts(ctx context.Context, db postgres.Beginner, retention time.Duration) (erased int64, err error) {
	return walk(ctx, db, tickets, retention, func(ctx context.Context, tx pgx.Tx, after uuid.UUID, before time.Time) (part, error) {
		due, next, more, err := ticketdb.OldTexts(ctx, tx, after, before, ticketWindow)
		if err != nil {
			return part{}, err
		}
		done, err := Erase(ctx, tx, due)
		return part{next: next, more: more, erased: int64(len(done.Erased)), left: len(done.Waiting) > 0}, err
	})
}

// part is what one transaction of a walk has come to.
type part struct {
	next   uuid.UUID // the last that was looked at
	more   bool      // there was one
	erased int64
	left   bool // something that is due had to stay
}

// walk goes on from where the walk before it has ended, in the order of identifiers, which is that of time. Each part
// commits with its progress; where something had to stay, the next walk begins there.
func walk(
	ctx context.Context, db postgres.Beginner, subject string, retention time.Duration,
	do func(ctx context.Context, tx pgx.Tx, after uuid.UUID, before time.Time) (part, error),
) (erased int64, err error) {
	var at *uuid.UUID
	stuck := false
	for {
		var p part
		err := postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			q := erasuresql.New(tx)
			marks, err := q.LockMark(ctx, subject)
			if err != nil || len(marks) == 0 {
				p = part{}
				return err
			}
			after := marks[0].LastID
			if at != nil {
				after = *at
			}
			if p, err = do(ctx, tx, after, marks[0].At.Add(-retention)); err != nil || !p.more || stuck || p.left {
				return err
			}
			return q.SaveMark(ctx, erasuresql.SaveMarkParams{Subject: subject, LastID: p.next})
		})
		var busy *BusyError
		if errors.As(err, &busy) {
			return erased, nil // the next walk comes by again
		}
		if err != nil {
			return erased, err
		}
		erased += p.erased
		if !p.more {
			return erased, nil
		}
		at, stuck = &p.next, stuck || p.left
	}
}
