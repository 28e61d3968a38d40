package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// Claimed is leased work, with what is already known of its key.
type Claimed struct {
	Lease
	ContentHash  content.Hash
	TicketID     uuid.UUID
	VersionID    string
	Subject      string // as the ticket has it, not canonical
	Message      string
	Attempts     int // this one included
	UnknownCalls int
	Age          time.Duration
	TraceContext string

	// One of three: the key is Answered; or a response of an earlier call has arrived that is to be judged before
	// another is asked for (SavedCallID, SavedResponse); or CallID is the ledger's open row of the call that may now
	// be made.
	Answered      bool
	SavedCallID   uuid.UUID
	SavedResponse []byte
	CallID        uuid.UUID
}

// Claimer claims the work of one route and lane, oldest first. It remembers how far it has come: claimed rows
// leave dead entries at the front of the index, which no vacuum removes while an old snapshot is held, and
// starting behind them keeps a claim as cheap as its batch. Rows that appear further back (a transaction that
// committed late, a retry) are found by starting from the beginning again, at the latest every two seconds, and
// sooner when that is cheap. A Claimer is for one goroutine.
type Claimer struct {
	db     postgres.Beginner
	route  string
	lane   Lane
	worker string
	lease  time.Duration

	from     time.Time // the lowest due time of the last batch; zero starts from the beginning
	rescanAt time.Time // when to start from the beginning again
	now      func() time.Time
}

const (
	rescanInterval = 2 * time.Second
	// rescanShare bounds the time spent in walking over dead entries to 1/20 of all.
	rescanShare = 20
)

// NewClaimer makes a claimer whose leases belong to worker and last for lease.
func NewClaimer(db postgres.Beginner, route string, lane Lane, worker string, lease time.Duration) *Claimer {
	return &Claimer{db: db, route: route, lane: lane, worker: worker, lease: lease, now: time.Now}
}

// Claim leases up to most due rows, and opens a ledger row, in the same commit, for each that needs a call. An
// empty result means that nothing was found from where the claimer started, and that it will start from the
// beginning as soon as that is due.
func (c *Claimer) Claim(ctx context.Context, most int) ([]Claimed, error) {
	if most <= 0 {
		return nil, nil
	}
	began := c.now()
	fromStart := c.from.IsZero() || !began.Before(c.rescanAt)
	from := c.from
	if fromStart {
		from = time.Time{}
	}
	var rows []outboxsql.ClaimRow
	err := postgres.InTx(ctx, c.db, func(ctx context.Context, tx pgx.Tx) error {
		q := outboxsql.New(tx)
		if err := q.PlanClaim(ctx); err != nil {
			return err
		}
		var err error
		rows, err = q.Claim(ctx, outboxsql.ClaimParams{
			Route: c.route, Lane: string(c.lane), FromAt: from, Most: int32(most), Worker: c.worker, LeaseSeconds: c.lease.Seconds(),
		})
		crashpoint.PassIf(len(rows) > 0, crashpoint.ClaimLeased)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim on route %s, lane %s: %w", c.route, c.lane, err)
	}
	if fromStart {
		c.rescanAt = began.Add(min(rescanShare*c.now().Sub(began), rescanInterval))
	}
	claimed := make([]Claimed, len(rows))
	for i, r := range rows {
		if i == 0 || r.AvailableAt.Before(c.from) {
			c.from = r.AvailableAt
		}
		claimed[i] = Claimed{
			Lease:       Lease{Key: content.Key(r.IdempotencyKey), ID: r.LeaseID},
			ContentHash: content.Hash(r.ContentHash), TicketID: r.TicketID, VersionID: r.VersionID,
			Subject: r.Subject, Message: r.Message,
			Attempts: int(r.Attempts), UnknownCalls: int(r.UnknownCalls),
			Age: time.Duration(r.AgeSeconds * float64(time.Second)), TraceContext: r.TraceContext,
			Answered: r.Answered, SavedCallID: r.SavedCallID, SavedResponse: r.SavedResponse, CallID: r.CallID,
		}
	}
	return claimed, nil
}
