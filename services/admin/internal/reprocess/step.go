package reprocess

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

const (
	// chunk is how many tickets, or evaluations, a step deals with. Others wait for its commit only where they create a
	// ticket with one of the same contents.
	chunk = 2000
	// gentleChunk is the same while tickets are created: all that a chunk writes to the log, and the processor that it takes,
	// is in the way of theirs. rests is for how many times as long as such a chunk the job rests after it.
	gentleChunk = 100
	rests       = 20
	trafficSpan = 2 * time.Second
	// densest bounds the tickets that one statement may read to find a chunk, where they are spread evenly.
	densest = 50 * chunk
	// narrowest is the smallest window of creation times. Tickets that were created at once are told apart by their ids.
	narrowest = time.Millisecond
	// margin is how much wider a window is than a chunk has been, and growth how much wider it becomes at the most.
	margin = 1.2
	growth = 32
	// beginning is the longest time from the begin of a transaction, which is the time that its tickets were created at,
	// to its first write, from when on it can be seen to be under way. Services end idle transactions after 5 seconds.
	beginning = 15 * time.Second

	settlePause = time.Second            // between two walks over a job's work while some of it is under way
	writersPoll = 200 * time.Millisecond // between two looks for transactions that are not over
	drainPoll   = time.Second
	costPoll    = time.Second
)

// The names of the counts.
const (
	countSeen     = "seen"
	countExamined = "examined"
	countEnqueued = "enqueued"
	countAnswered = "already_answered"
	countQueued   = "already_queued"
	countDead     = "already_dead"
	countRemoved  = "removed"
	countKept     = "kept"
)

type phase string

const (
	begin phase = ""      // nothing is done
	early phase = "early" // over the tickets before the horizon
	wait  phase = "wait"  // for the transactions that may commit others
	late  phase = "late"  // over these
	drain phase = "drain" // all is enqueued
)

// walk is what is being done with the work that waits.
type walk string

const (
	holding     walk = "hold"
	spreading   walk = "spread"
	withdrawing walk = "withdraw"
)

// cursor is where a job is. It is stored.
type cursor struct {
	Phase   phase     `json:"phase,omitempty"`
	Horizon int64     `json:"horizon,omitempty"`
	Total   int64     `json:"total,omitempty"` // tickets of the range when the horizon was drawn
	At      time.Time `json:"at"`              // the last ticket looked at, with ID
	ID      uuid.UUID `json:"id"`
	Window  float64   `json:"window,omitempty"`  // seconds of creation times that the next chunk is looked for in
	Writers int64     `json:"writers,omitempty"` // the transactions to wait for are those before this xid; 0 when they are not known yet

	Walk walk        `json:"walk,omitempty"`
	Key  content.Key `json:"key,omitempty"`  // the last one of the walk
	Busy bool        `json:"busy,omitempty"` // the walk has met work under way
	Held bool        `json:"held,omitempty"` // work is held back

	CallUSD decimal.Decimal `json:"call_usd"`  // a call is likely to cost, for jobs with a maximum
	Costed  time.Time       `json:"costed_at"` // when the cost was last looked at
}

// Step does the next chunk of a job.
func Step(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
	s, err := SpecOf(j)
	if err != nil {
		return jobdb.Progress{}, err
	}
	c, err := cursorOf(j)
	if err != nil {
		return jobdb.Progress{}, err
	}
	var p jobdb.Progress
	switch {
	case j.State == jobdb.Paused:
		p, err = c.hold(ctx, tx, j.ID)
	case j.State == jobdb.Canceled:
		p, err = c.withdraw(ctx, tx, j.ID)
	default:
		p, err = c.run(ctx, tx, j, s)
	}
	if err != nil {
		return jobdb.Progress{}, err
	}
	if p.Cursor, err = json.Marshal(c); err != nil {
		return jobdb.Progress{}, fmt.Errorf("encode the cursor of job %s: %w", j.ID, err)
	}
	return p, nil
}

func cursorOf(j jobdb.Job) (*cursor, error) {
	c := &cursor{}
	if err := json.Unmarshal(j.Cursor, c); err != nil {
		return nil, fmt.Errorf("decode the cursor of job %s: %w", j.ID, err)
	}
	return c, nil
}

func (c *cursor) run(ctx context.Context, tx pgx.Tx, j jobdb.Job, s Spec) (jobdb.Progress, error) {
	if s.MaxCostUSD != nil && c.Phase != begin {
		if reason, err := c.tooDear(ctx, tx, j.ID, *s.MaxCostUSD); err != nil || reason != "" {
			return jobdb.Progress{Pause: reason, Settle: true}, err
		}
	}
	// What is left is spread anew when a job goes on.
	spread := outbox.Spread{From: j.ChangedAt, Length: s.Spread()}
	if c.Held {
		return jobdb.Progress{}, c.spread(ctx, tx, j.ID, spread)
	}
	switch c.Phase {
	case begin:
		return jobdb.Progress{}, c.begin(ctx, tx, s)
	case early, late:
		return c.enqueue(ctx, tx, j, s, spread)
	case wait:
		return c.wait(ctx, tx, s)
	default:
		works, err := outbox.Works(ctx, tx, j.ID)
		return jobdb.Progress{Done: err == nil && !works, Wait: drainPoll}, err
	}
}

func (c *cursor) begin(ctx context.Context, tx pgx.Tx, s Spec) error {
	if s.MaxCostUSD != nil {
		e, err := Preview(ctx, tx, s)
		if err != nil {
			return err
		}
		if n := e.Calls(); n > 0 {
			c.CallUSD = e.CostUSD.DivRound(decimal.NewFromInt(n), 12)
		}
	}
	h, err := ticketdb.DrawHorizon(ctx, tx, s.tickets(nil))
	if err != nil {
		return err
	}
	c.Phase, c.Horizon, c.Total, c.At, c.ID = early, h.XID, h.Tickets, s.From, uuid.Nil
	c.Window = math.Max(narrowest.Seconds(), margin*s.To.Sub(s.From).Seconds()/math.Max(1, float64(h.Tickets)/chunk))
	return nil
}

// enqueue gives work to the next tickets.
func (c *cursor) enqueue(ctx context.Context, tx pgx.Tx, j jobdb.Job, s Spec, spread outbox.Spread) (jobdb.Progress, error) {
	began := time.Now()
	target, filterDigest, err := versions(ctx, tx, s)
	if err != nil {
		return jobdb.Progress{}, err
	}
	most := chunk
	traffic, err := ticketdb.AnyNew(ctx, tx, trafficSpan)
	if err != nil {
		return jobdb.Progress{}, err
	}
	if traffic {
		most = gentleChunk
		// A chunk that a crash of the server takes back is done again, rows and cursor together: nobody needs to wait for the disk.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return jobdb.Progress{}, fmt.Errorf("commit a chunk without waiting: %w", err)
		}
	}
	window := s.tickets(filterDigest)
	if end := c.At.Add(time.Duration(c.Window * float64(time.Second))).Truncate(time.Microsecond); end.Before(s.To) {
		window.To = end
	}
	tickets, err := ticketdb.Scan(ctx, tx, window, ticketdb.Position{CreatedAt: c.At, ID: c.ID}, c.Horizon, c.Phase == early, most)
	if err != nil {
		return jobdb.Progress{}, err
	}
	left := int64(math.MaxInt64)
	if s.Limit > 0 {
		left = s.Limit - j.Counts[countExamined]
	}
	add := map[string]int64{countSeen: int64(len(tickets))}
	var matching []ticketdb.Scanned
	for _, t := range tickets {
		if t.Matches && int64(len(matching)) < left {
			matching = append(matching, t)
		}
	}
	if matching, err = withText(ctx, tx, matching); err != nil {
		return jobdb.Progress{}, err
	}
	if len(matching) > 0 {
		jobs := jobsOf(matching, target.Digest)
		demand := outbox.Demand{VersionID: target.ID, Route: target.Route, Lane: outbox.Bulk}
		found, err := outbox.EnqueueBulk(ctx, tx, demand, j.ID, spread, jobs)
		if err != nil {
			return jobdb.Progress{}, err
		}
		count(add, matching, target.Digest, found)
	}
	c.advance(tickets, most, window.To, s)
	if int64(len(matching)) == left {
		c.Phase = drain
	}
	p := jobdb.Progress{Add: add}
	if traffic {
		p.Rest = rests * time.Since(began)
	}
	return p, nil
}

// withText are those of the tickets that have a text, and keep it until they have work.
func withText(ctx context.Context, tx pgx.Tx, tickets []ticketdb.Scanned) ([]ticketdb.Scanned, error) {
	ids := make([]uuid.UUID, len(tickets))
	for i, t := range tickets {
		ids[i] = t.ID
	}
	held, err := ticketdb.HoldTexts(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tickets, func(t ticketdb.Scanned) bool { return !held[t.ID] }), nil
}

// jobsOf makes one job of each content, in the name of its oldest ticket.
func jobsOf(tickets []ticketdb.Scanned, digest [32]byte) []outbox.Job {
	jobs := make([]outbox.Job, 0, len(tickets))
	has := make(map[content.Hash]bool, len(tickets))
	for _, t := range tickets {
		if !has[t.ContentHash] {
			has[t.ContentHash] = true
			jobs = append(jobs, outbox.Job{Key: content.KeyOf(t.ContentHash, digest), ContentHash: t.ContentHash, TicketID: t.ID})
		}
	}
	return jobs
}

// count adds what has become of each ticket. Of those that share a content that was given work, the first has it and the
// others find it.
func count(add map[string]int64, tickets []ticketdb.Scanned, digest [32]byte, found map[content.Key]outbox.State) {
	enqueued := map[content.Key]bool{}
	for _, t := range tickets {
		key := content.KeyOf(t.ContentHash, digest)
		switch state, was := found[key]; {
		case !was && !enqueued[key]:
			enqueued[key] = true
			add[countEnqueued]++
		case state == outbox.Succeeded:
			add[countAnswered]++
		case state == outbox.Dead:
			add[countDead]++
		default:
			add[countQueued]++
		}
	}
	add[countExamined] += int64(len(tickets))
}

// advance goes on behind a chunk: behind its last ticket when it was full, else behind its window. The next window has a
// little more than a chunk, at the density of this one; what of it is left over is read again.
func (c *cursor) advance(tickets []ticketdb.Scanned, most int, end time.Time, s Spec) {
	if len(tickets) == most {
		last := tickets[len(tickets)-1]
		c.Window = math.Max(narrowest.Seconds(), margin*last.CreatedAt.Sub(c.At).Seconds())
		c.At, c.ID = last.CreatedAt, last.ID
		return
	}
	widest := s.To.Sub(s.From).Seconds() * math.Min(1, densest/math.Max(1, float64(c.Total)))
	c.Window = math.Min(math.Max(narrowest.Seconds(), widest), c.Window*math.Min(growth, margin*float64(most)/math.Max(1, float64(len(tickets)))))
	c.At, c.ID = end, uuid.Nil
	if end.Before(s.To) {
		return
	}
	if c.Phase == late {
		c.Phase = drain
		return
	}
	c.Phase, c.At = wait, s.From
}

// wait looks whether anybody may yet commit a ticket of the range: by then all who can have begun to write, and those who
// had are over.
func (c *cursor) wait(ctx context.Context, tx pgx.Tx, s Spec) (jobdb.Progress, error) {
	over, own, now, err := ticketdb.Writers(ctx, tx, c.Writers)
	switch {
	case err != nil:
		return jobdb.Progress{}, err
	case now.Before(s.To.Add(beginning)):
		return jobdb.Progress{Wait: s.To.Add(beginning).Sub(now)}, nil
	case c.Writers == 0:
		c.Writers = own
	case over:
		c.Phase = late
	default:
		return jobdb.Progress{Wait: writersPoll}, nil
	}
	return jobdb.Progress{}, nil
}

// tooDear says why a job may not go on: what its calls have cost, and what is under way may yet cost, has come to its
// maximum.
func (c *cursor) tooDear(ctx context.Context, tx pgx.Tx, job uuid.UUID, most decimal.Decimal) (reason string, err error) {
	var now time.Time
	if err := tx.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		return "", fmt.Errorf("read the clock: %w", err)
	}
	if now.Sub(c.Costed) < costPoll {
		return "", nil
	}
	calls, err := ledger.CallsOf(ctx, tx, job)
	if err != nil {
		return "", err
	}
	c.Costed = now
	each := c.CallUSD
	if calls.Priced >= enoughCalls {
		each = calls.CostUSD.DivRound(decimal.NewFromInt(calls.Priced), 12)
	}
	underWay := each.Mul(decimal.NewFromInt(calls.UnderWay))
	if calls.CostUSD.Add(underWay).LessThan(most) {
		return "", nil
	}
	return fmt.Sprintf("its calls have cost $%s, and those under way may cost $%s: the maximum is $%s",
		calls.CostUSD.Round(6), underWay.Round(6), most), nil
}
