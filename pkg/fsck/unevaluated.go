package fsck

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/fsck/internal/fscksql"
)

// Ticket is a ticket that nothing will ever be said of: what the first check finds, with what mending it takes.
type Ticket struct {
	ID           uuid.UUID
	ContentHash  content.Hash
	TraceContext string
}

// Unevaluated looks at a page of up to most tickets, newest first, from the one before the id given, and returns
// those that have neither work nor a result under any version. Tickets older than the window are left out; a window
// of zero leaves out none. Next is where the following page starts, and ok is false when there is none.
//
// A ticket's age is that of its id, which is in order of time, so that a page costs what it holds and a walk over all
// tickets needs no long statement. The look-ups are by key, a few microseconds for each ticket.
func Unevaluated(ctx context.Context, db fscksql.DBTX, window time.Duration, before uuid.UUID, most int) (tickets []Ticket, next uuid.UUID, ok bool, err error) {
	p := fscksql.UnevaluatedParams{Before: before, Most: int32(most)}
	if window > 0 {
		seconds := window.Seconds()
		p.WindowSeconds = &seconds
	}
	rows, err := fscksql.New(db).Unevaluated(ctx, p)
	if err != nil {
		return nil, uuid.Nil, false, fmt.Errorf("look for unevaluated tickets before %s: %w", before, err)
	}
	for _, r := range rows {
		if r.PageEnd {
			next, ok = r.ID, true
			continue
		}
		tickets = append(tickets, Ticket{ID: r.ID, ContentHash: content.Hash(r.ContentHash), TraceContext: r.TraceContext})
	}
	return tickets, next, ok, nil
}
