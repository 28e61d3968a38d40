// Package outbox owns evaluation_outbox: the work of EvalOnce and its dead letters.
//
// Delivery is at least once: work is leased, and a lease that is not extended in time goes to another worker.
// The effect is exactly once by the evaluation key: there is one row per key while there is work, none once
// there is a result, and every change that a worker makes is fenced by the lease it holds. Times are the
// database's; callers pass durations.
//
// Statements that lock several rows take them in key order. The life of an evaluation, statement by statement,
// is told in README.md.
package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// Lane separates traffic that someone waits for from bulk work.
type Lane string

// The lanes.
const (
	Live Lane = "live"
	Bulk Lane = "bulk"
)

// State is where the evaluation of a key stands. Absent means neither work nor a result.
type State string

// The states, as the table and the ticket_evaluation view spell them.
const (
	Absent     State = ""
	Pending    State = "pending"
	Processing State = "processing"
	Succeeded  State = "succeeded"
	Dead       State = "dead"
)

// Lease is the right to change one row. It is lost, silently, once it has expired and was reclaimed.
type Lease struct {
	Key   content.Key
	ID    uuid.UUID
	Place pgtype.TID // where the row was put when it was leased, to find it by; not valid when that is not known
}

func split(leases []Lease) (keys []string, ids []uuid.UUID) {
	keys, ids = make([]string, len(leases)), make([]uuid.UUID, len(leases))
	for i, l := range leases {
		keys[i], ids[i] = string(l.Key), l.ID
	}
	return keys, ids
}

// Keys turns rows of keys into a set.
func keySet(keys []string) map[content.Key]bool {
	set := make(map[content.Key]bool, len(keys))
	for _, k := range keys {
		set[content.Key(k)] = true
	}
	return set
}

// Retry puts leased work back to pending.
type Retry struct {
	Lease
	Delay   time.Duration
	Refund  bool // the attempt does not count
	Unknown bool // a call of unknown outcome is counted
	Failure *failure.Failure
}

// PutBack returns work to pending, due after its delay. Rows whose lease is lost are left alone; the keys of
// the others come back.
func PutBack(ctx context.Context, tx pgx.Tx, retries []Retry) (map[content.Key]bool, error) {
	if len(retries) == 0 {
		return nil, nil
	}
	var p outboxsql.RetryParams
	for _, r := range retries {
		p.Keys = append(p.Keys, string(r.Key))
		p.Leases = append(p.Leases, r.ID)
		p.DelaySeconds = append(p.DelaySeconds, r.Delay.Seconds())
		p.Refunds = append(p.Refunds, r.Refund)
		p.Unknowns = append(p.Unknowns, r.Unknown)
		p.Classes = append(p.Classes, string(r.Failure.Class))
		p.Reasons = append(p.Reasons, string(r.Failure.Reason))
		p.Errors = append(p.Errors, r.Failure.Detail)
	}
	keys, err := outboxsql.New(tx).Retry(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("put %d evaluations back: %w", len(retries), err)
	}
	return keySet(keys), nil
}

// RefundTrip gives back the attempts that the failures cost which opened the breaker of a route, and returns how much
// work that was. Work that they sent to the dead letters is due again. It belongs into the transaction that opened it.
func RefundTrip(ctx context.Context, tx pgx.Tx, route string) (refunded int, err error) {
	q := outboxsql.New(tx)
	if err := q.PlanWalk(ctx); err != nil {
		return 0, fmt.Errorf("refund the attempts that route %s has cost: %w", route, err)
	}
	keys, err := q.RefundTrip(ctx, route)
	if err != nil {
		return 0, fmt.Errorf("refund the attempts that route %s has cost: %w", route, err)
	}
	return len(keys), nil
}

// Burial sends leased work to the dead letters.
type Burial struct {
	Lease
	Unknown bool // a call of unknown outcome is counted
	Failure *failure.Failure
}

// Bury makes dead letters of work whose lease holds, and, where the verdict is permanent, of work that waits with no
// lease at all: one on a response that came late is as final as any. Work whose result is here is finished instead.
// The keys buried come back.
func Bury(ctx context.Context, tx pgx.Tx, burials []Burial) (map[content.Key]bool, error) {
	if len(burials) == 0 {
		return nil, nil
	}
	var p outboxsql.BuryParams
	for _, b := range burials {
		p.Keys = append(p.Keys, string(b.Key))
		p.Leases = append(p.Leases, b.ID)
		p.Unknowns = append(p.Unknowns, b.Unknown)
		p.Classes = append(p.Classes, string(b.Failure.Class))
		p.Reasons = append(p.Reasons, string(b.Failure.Reason))
		p.Errors = append(p.Errors, b.Failure.Detail)
	}
	q := outboxsql.New(tx)
	if err := q.LockForBurial(ctx, p.Keys); err != nil {
		return nil, fmt.Errorf("lock %d evaluations to bury: %w", len(burials), err)
	}
	keys, err := q.Bury(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("bury %d evaluations: %w", len(burials), err)
	}
	return keySet(keys), nil
}

// PlanKeys has the statements of a transaction look rows up by their keys, whatever the planner knows of the tables. It
// belongs before those of a settlement.
func PlanKeys(ctx context.Context, tx pgx.Tx) error {
	if err := outboxsql.New(tx).PlanKeys(ctx); err != nil {
		return fmt.Errorf("plan lookups: %w", err)
	}
	return nil
}

// Finish deletes work whose result is written in the same transaction, and must come before anything in it that
// looks up the tickets served: a follower that committed first is then seen, and one that comes later finds the
// result. Work that another worker holds by now stays. The keys deleted come back.
func Finish(ctx context.Context, tx pgx.Tx, leases []Lease) (map[content.Key]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	q := outboxsql.New(tx)
	finished := make(map[content.Key]bool, len(leases))
	placed, err := finishPlaced(ctx, q, leases)
	if err != nil {
		return nil, fmt.Errorf("finish %d evaluations: %w", len(leases), err)
	}
	for _, key := range placed {
		finished[content.Key(key)] = true
	}
	if len(placed) == len(leases) {
		return finished, nil
	}
	keys, ids := split(slices.DeleteFunc(slices.Clone(leases), func(l Lease) bool { return finished[l.Key] }))
	owned, err := q.Finish(ctx, outboxsql.FinishParams{Keys: keys, Leases: ids})
	if err != nil {
		return nil, fmt.Errorf("finish %d evaluations by their keys: %w", len(keys), err)
	}
	var moved []string
	for _, o := range owned {
		finished[content.Key(o.IdempotencyKey)] = true
		if !o.Deleted {
			moved = append(moved, o.IdempotencyKey)
		}
	}
	if len(moved) > 0 {
		if err := q.FinishMoved(ctx, moved); err != nil {
			return nil, fmt.Errorf("finish %d evaluations that have moved: %w", len(moved), err)
		}
	}
	return finished, nil
}

// finishPlaced finishes what is still in its place.
func finishPlaced(ctx context.Context, q *outboxsql.Queries, leases []Lease) ([]string, error) {
	var p outboxsql.FinishPlacedParams
	for _, l := range leases {
		if l.Place.Valid {
			p.Keys, p.Leases, p.Places = append(p.Keys, string(l.Key)), append(p.Leases, l.ID), append(p.Places, l.Place)
		}
	}
	if len(p.Keys) == 0 {
		return nil, nil
	}
	return q.FinishPlaced(ctx, p)
}

// Release gives back work that never started: its attempt is refunded and its open call closed as unsent.
func Release(ctx context.Context, tx pgx.Tx, leases []Lease) (map[content.Key]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	keys, ids := split(leases)
	released, err := outboxsql.New(tx).Release(ctx, outboxsql.ReleaseParams{Keys: keys, Leases: ids})
	if err != nil {
		return nil, fmt.Errorf("release %d evaluations: %w", len(leases), err)
	}
	return keySet(released), nil
}

// Extend is the heartbeat: it prolongs all of a worker's leases in one statement that waits for nobody, and
// returns those that are lost.
func Extend(ctx context.Context, db outboxsql.DBTX, worker string, leases []Lease, lease time.Duration) (lost []uuid.UUID, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	keys, ids := split(leases)
	lost, err = outboxsql.New(db).Extend(ctx, outboxsql.ExtendParams{Worker: worker, Keys: keys, Leases: ids, LeaseSeconds: lease.Seconds()})
	if err != nil {
		return nil, fmt.Errorf("extend %d leases: %w", len(leases), err)
	}
	return lost, nil
}

// Held is a lease as the table has it.
type Held struct {
	Lease
	Route  string
	CallID uuid.UUID // of the open call; uuid.Nil when there is none
}

// Leased returns all leases of a worker, those too that it does not know of: of a claim whose COMMIT was never answered.
func Leased(ctx context.Context, db outboxsql.DBTX, worker string) ([]Held, error) {
	rows, err := outboxsql.New(db).Leased(ctx, worker)
	if err != nil {
		return nil, fmt.Errorf("read the leases of %s: %w", worker, err)
	}
	held := make([]Held, len(rows))
	for i, r := range rows {
		held[i] = Held{Lease: Lease{Key: content.Key(r.IdempotencyKey), ID: r.LeaseID, Place: r.Place}, Route: r.Route, CallID: r.CallID}
	}
	return held, nil
}
