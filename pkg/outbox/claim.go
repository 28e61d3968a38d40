package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// Claimed is leased work, with what is already known of its key.
type Claimed struct {
	Lease
	ClaimID      uuid.UUID // of all that was claimed with it: see [EndClaims]
	Lane         Lane
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
	SavedReason   failure.Reason // why that response was no answer when it was judged before; empty when it was not
	CallID        uuid.UUID

	// Of a call that was claimed within an allowance: the tokens estimated from its size, and whether its row in the
	// ledger is charged, so that it has to be settled.
	Tokens  float64
	Charged bool
}

// Allowance bounds what the calls of a claim may take together, and says what is left when the claim has taken its part.
type Allowance struct {
	Calls      int
	Tokens     float64          // as expected; +Inf without a limit
	TokensFull bool             // Tokens are as many as they ever get: the first call may take more
	TokenRatio float64          // tokens expected for one estimated from the size
	Budget     *decimal.Decimal // for the worst that the calls may cost; nil without a budget
	FixedBytes int              // of a request, beside the version's prompt and departments and the ticket

	Short *Short // the first work that had no room; nil when all that was due had
}

// Short is what a call would take that had no room.
type Short struct {
	Tokens     float64 // as expected
	USD        decimal.Decimal
	OverBudget bool // it is the budget that had no room
}

// take subtracts what the claimed calls take.
func (a *Allowance) take(rows []outboxsql.ClaimWithinRow) {
	for _, r := range rows {
		if r.CallID == uuid.Nil {
			continue
		}
		a.Calls--
		a.Tokens -= r.Tokens * a.TokenRatio
		a.TokensFull = false
		if a.Budget != nil {
			left := a.Budget.Sub(r.USD)
			a.Budget = &left
		}
	}
	if h := rows[0]; h.ShortTokens > 0 {
		a.Short = &Short{
			Tokens: h.ShortTokens * a.TokenRatio, USD: h.ShortUSD, OverBudget: a.Budget != nil && h.ShortUSD.GreaterThan(*a.Budget),
		}
	}
}

// Claimer claims the work of one route and lane, oldest first. It remembers how far it has come: claimed rows
// leave dead entries at the front of the index, which no vacuum removes while an old snapshot is held, and
// starting behind them keeps a claim as cheap as its batch. Rows that appear further back (a transaction that
// committed late, work that was given back) are found by starting from the beginning again. That takes a fiftieth of the
// time at the most: it happens at once where little lies there, and every few seconds where a snapshot keeps a million of
// dead entries. A Claimer is for one goroutine.
type Claimer struct {
	db     postgres.Beginner
	route  string
	lane   Lane
	worker string
	lease  time.Duration

	after  position  // of the last row claimed; zero starts from the beginning
	lookAt time.Time // when to start from the beginning again
	passed bool      // the last claim did not start there, and had less than was asked of it
	now    func() time.Time
}

// position is a row's place in the order of claims.
type position struct {
	at  time.Time
	key string
}

// lookShare bounds the time spent in walking over what lies behind the last claim to a fiftieth of all.
const lookShare = 50

// NewClaimer makes a claimer whose leases belong to worker and last for lease.
func NewClaimer(db postgres.Beginner, route string, lane Lane, worker string, lease time.Duration) *Claimer {
	return &Claimer{db: db, route: route, lane: lane, worker: worker, lease: lease, now: time.Now}
}

// Claim leases up to most due rows, and opens a ledger row, in the same commit, for each that needs a call. An
// empty result means that nothing was found from where the claimer started; [Claimer.Unseen] says when it is worth to
// ask again.
func (c *Claimer) Claim(ctx context.Context, most int) ([]Claimed, error) {
	if most <= 0 {
		return nil, nil
	}
	began := c.now()
	after := c.start(began)
	claim := uuid.New()
	var rows []outboxsql.ClaimRow
	err := postgres.InTx(ctx, c.db, func(ctx context.Context, tx pgx.Tx) error {
		q := outboxsql.New(tx)
		if err := q.PlanClaim(ctx); err != nil {
			return err
		}
		var err error
		rows, err = q.Claim(ctx, outboxsql.ClaimParams{
			Route: c.route, Lane: string(c.lane), AfterAt: after.at, AfterKey: after.key, Most: int32(most), Worker: c.worker, LeaseSeconds: c.lease.Seconds(),
			Claim: claim, CheckSeconds: c.checkSeconds(),
		})
		crashpoint.PassIf(len(rows) > 0, crashpoint.ClaimLeased)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim on route %s, lane %s: %w", c.route, c.lane, err)
	}
	c.advance(began, after, rows, most)
	return c.claimed(claim, rows), nil
}

// ClaimWithin is Claim in the caller's transaction, for calls that must not take more than a allows. Work whose answer
// is known takes nothing of it. The claimer goes on from where it came also when the transaction is not committed, and
// finds what it left when it starts from the beginning again.
func (c *Claimer) ClaimWithin(ctx context.Context, tx pgx.Tx, most int, a *Allowance) ([]Claimed, error) {
	most = min(most, a.Calls)
	if most <= 0 {
		return nil, nil
	}
	began := c.now()
	after := c.start(began)
	claim := uuid.New()
	q := outboxsql.New(tx)
	if err := q.PlanWalk(ctx); err != nil {
		return nil, fmt.Errorf("claim on route %s, lane %s: %w", c.route, c.lane, err)
	}
	within, err := q.ClaimWithin(ctx, outboxsql.ClaimWithinParams{
		Route: c.route, Lane: string(c.lane), AfterAt: after.at, AfterKey: after.key, Most: int32(most), Worker: c.worker, LeaseSeconds: c.lease.Seconds(),
		Claim: claim, CheckSeconds: c.checkSeconds(),
		Tokens: a.Tokens, TokensFull: a.TokensFull, TokenRatio: a.TokenRatio, Budget: a.Budget, FixedBytes: int32(a.FixedBytes),
	})
	if err != nil {
		return nil, fmt.Errorf("claim on route %s, lane %s: %w", c.route, c.lane, err)
	}
	charged := a.Budget != nil
	a.take(within)
	var rows []outboxsql.ClaimRow
	for _, r := range within {
		if r.Claimed {
			rows = append(rows, outboxsql.ClaimRow{
				IdempotencyKey: r.IdempotencyKey, ContentHash: r.ContentHash, TicketID: r.TicketID, VersionID: r.VersionID,
				Attempts: r.Attempts, UnknownCalls: r.UnknownCalls, AvailableAt: r.AvailableAt, LeaseID: r.LeaseID, TraceContext: r.TraceContext,
				AgeSeconds: r.AgeSeconds, Answered: r.Answered, SavedCallID: r.SavedCallID, SavedResponse: r.SavedResponse, SavedReason: r.SavedReason, CallID: r.CallID,
				Subject: r.Subject, Message: r.Message,
			})
		}
	}
	crashpoint.PassIf(len(rows) > 0, crashpoint.ClaimLeased)
	c.advance(began, after, rows, most)
	all := c.claimed(claim, rows)
	for i := range all {
		if all[i].CallID != uuid.Nil {
			all[i].Tokens, all[i].Charged = within[i].Tokens, charged
		}
	}
	return all, nil
}

// checkSeconds is how long after a claim its leases are looked at first.
func (c *Claimer) checkSeconds() float64 { return min(c.lease, checkInterval).Seconds() }

// start is where a claim that begins now starts: at the beginning, the zero position, when that is due.
func (c *Claimer) start(now time.Time) position {
	if !now.Before(c.lookAt) {
		return position{}
	}
	return c.after
}

// advance remembers how far a claim has come.
func (c *Claimer) advance(began time.Time, after position, rows []outboxsql.ClaimRow, most int) {
	if after == (position{}) {
		c.lookAt = began.Add(lookShare * c.now().Sub(began))
	}
	for i, r := range rows {
		p := position{r.AvailableAt, r.IdempotencyKey}
		if i == 0 || p.at.After(c.after.at) || p.at.Equal(c.after.at) && p.key > c.after.key {
			c.after = p
		}
	}
	c.passed = after != position{} && len(rows) < most
}

// Unseen is how long it takes until there may be work that the last claim has passed over, when it had less than was asked
// of it; zero when it has seen all that there was.
func (c *Claimer) Unseen() time.Duration {
	if !c.passed {
		return 0
	}
	return max(1, c.lookAt.Sub(c.now()))
}

func (c *Claimer) claimed(claim uuid.UUID, rows []outboxsql.ClaimRow) []Claimed {
	claimed := make([]Claimed, len(rows))
	for i, r := range rows {
		claimed[i] = Claimed{
			Lease: Lease{Key: content.Key(r.IdempotencyKey), ID: r.LeaseID, Place: r.Place}, ClaimID: claim, Lane: c.lane,
			ContentHash: content.Hash(r.ContentHash), TicketID: r.TicketID, VersionID: r.VersionID,
			Subject: r.Subject, Message: r.Message,
			Attempts: int(r.Attempts), UnknownCalls: int(r.UnknownCalls),
			Age: time.Duration(r.AgeSeconds * float64(time.Second)), TraceContext: r.TraceContext,
			Answered: r.Answered, SavedCallID: r.SavedCallID, SavedResponse: r.SavedResponse, SavedReason: failure.Reason(r.SavedReason), CallID: r.CallID,
		}
	}
	return claimed
}
