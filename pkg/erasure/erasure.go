// Package erasure takes the texts of tickets out of the database, and leaves everything that is known of them: their
// keys, answers and costs, and the records of what was done.
//
// What it guarantees:
//
//   - When Erase has committed, subject and message of a ticket are gone, and it is marked as erased.
//   - So are the raw responses of its evaluations, and what providers said of errors, unless another ticket that has its
//     text has the same content: these, and the work, are that ticket's from then on.
//   - Work that waits for the text of erased tickets alone goes to the dead letters, with the reason "erased", so that
//     nothing is ever sent for a ticket without a text. A new ticket with the same text takes it up again.
//   - While its text is with the model, or an answer to it waits to be judged, a ticket is not erased: Erase says so, and
//     is asked again later.
//
// A response that comes after its call was taken for lost may arrive when the text is erased. [Sweep] takes it away.
//
// What is kept of the text is its content hash, which says that two texts are equal, and lets somebody who knows a text
// find that it was here. The client's own id of a ticket, external_id, is kept as well: it is a key.
//
// A transaction that erases takes its locks in this order: the contents' erasures, the work by key, the calls, the
// tickets by id. It is the order of all others, who lock tickets last.
package erasure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// Wait says in a word why a ticket cannot be erased yet.
type Wait string

// The words.
const (
	WithTheModel Wait = "with_the_model" // its text is in a call that is under way
	Unjudged     Wait = "unjudged"       // an answer to it is here, and waits to be judged
	NewWork      Wait = "new_work"       // it was given work in this moment
)

// Outcome is what an erasure has come to.
type Outcome struct {
	Erased    []uuid.UUID
	Waiting   map[uuid.UUID]Wait // nothing of these was changed
	Responses int64              // calls whose response, or words on an error, were erased
	Buried    int64              // evaluations that went to the dead letters
}

// Erase erases tickets in the caller's transaction. Those that are erased already, or do not exist, are passed over.
func Erase(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (Outcome, error) {
	done := Outcome{Waiting: map[uuid.UUID]Wait{}}
	tickets, err := withText(ctx, tx, ids)
	if err != nil || len(tickets) == 0 {
		return done, err
	}
	if err := ticketdb.LockErasure(ctx, tx, hashesOf(tickets)); err != nil {
		return done, err
	}
	// Others may have erased them while this one waited.
	if tickets, err = withText(ctx, tx, ids); err != nil || len(tickets) == 0 {
		return done, err
	}
	all, err := outbox.KeysOf(ctx, tx, hashesOf(tickets))
	if err != nil {
		return done, err
	}
	held, err := outbox.LockWork(ctx, tx, keysOf(all))
	if err != nil {
		return done, err
	}
	// What is asked from here on sees the tickets of those who followed the work.
	heirs, err := ticketdb.Heirs(ctx, tx, hashesOf(tickets), idsOf(tickets))
	if err != nil {
		return done, err
	}
	waits, err := waiting(ctx, tx, held, heirs)
	if err != nil {
		return done, err
	}
	tickets = slices.DeleteFunc(tickets, func(t ticketdb.Erasable) bool {
		why, wait := waits[t.ContentHash]
		if wait {
			done.Waiting[t.ID] = why
			delete(all, t.ContentHash)
		}
		return wait
	})
	if len(tickets) == 0 {
		return done, nil
	}
	return done, erase(ctx, tx, tickets, all, heirs, &done)
}

// waiting are the contents without an heir whose work cannot be ended now.
func waiting(
	ctx context.Context, tx pgx.Tx, held map[content.Key]outbox.Locked, heirs map[content.Hash]uuid.UUID,
) (map[content.Hash]Wait, error) {
	waits := map[content.Hash]Wait{}
	var pending []content.Key
	for key, h := range held {
		if _, has := heirs[h.ContentHash]; has {
			continue
		}
		switch h.State {
		case outbox.Processing:
			waits[h.ContentHash] = WithTheModel
		case outbox.Pending:
			pending = append(pending, key)
		case outbox.Absent, outbox.Succeeded, outbox.Dead:
		}
	}
	unjudged, err := ledger.Unjudged(ctx, tx, pending)
	if err != nil {
		return nil, err
	}
	for key := range unjudged {
		if hash := held[key].ContentHash; waits[hash] == "" {
			waits[hash] = Unjudged
		}
	}
	return waits, nil
}

func erase(
	ctx context.Context, tx pgx.Tx, tickets []ticketdb.Erasable, all map[content.Hash][]content.Key, heirs map[content.Hash]uuid.UUID, done *Outcome,
) error {
	ids, last := idsOf(tickets), []content.Key{}
	for hash, keys := range all {
		if _, has := heirs[hash]; !has {
			last = append(last, keys...)
		}
	}
	slices.Sort(last)
	if err := outbox.Bequeath(ctx, tx, keysOf(all), ids, heirs); err != nil {
		return err
	}
	buried, err := outbox.BuryErased(ctx, tx, last)
	if err != nil {
		return err
	}
	done.Buried = int64(len(buried))
	if done.Responses, err = ledger.EraseResponses(ctx, tx, last); err != nil {
		return err
	}
	if err := ticketdb.LockForErasure(ctx, tx, ids); err != nil {
		return err
	}
	// Whoever gave them work since it was locked has committed by now, and nobody does from here on.
	working, err := outbox.Working(ctx, tx, keysOf(all), ids)
	if err != nil {
		return err
	}
	if len(working) > 0 {
		return fmt.Errorf("erase %d tickets: %w", len(ids), &BusyError{Ticket: working[0], Why: NewWork})
	}
	if _, err := ticketdb.EraseTexts(ctx, tx, ids); err != nil {
		return err
	}
	done.Erased = ids
	_, err = webhook.Tell(ctx, tx, buried)
	return err
}

// BusyError is returned where a ticket cannot be erased yet, and nothing of the transaction must stay.
type BusyError struct {
	Ticket uuid.UUID
	Why    Wait
}

func (e *BusyError) Error() string {
	switch e.Why {
	case WithTheModel:
		return fmt.Sprintf("the text of ticket %s is with the model now", e.Ticket)
	case Unjudged:
		return fmt.Sprintf("an answer to ticket %s waits to be judged", e.Ticket)
	default:
		return fmt.Sprintf("ticket %s was given work in this moment", e.Ticket)
	}
}

const (
	// late is how long after an erasure a response may arrive. No call takes as long.
	late = 24 * time.Hour
	// chunk is how many contents are looked after in one transaction.
	chunk = 500
)

// DB is a pool.
type DB interface {
	postgres.Beginner
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Sweep erases responses that came when the texts of their contents had been erased, within the last day, and returns
// their number.
func Sweep(ctx context.Context, db DB) (erased int64, err error) {
	hashes, err := ticketdb.ErasedSince(ctx, db, late)
	if err != nil {
		return 0, err
	}
	for part := range slices.Chunk(hashes, chunk) {
		var n int64
		err := postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
			n, err = strays(ctx, tx, part)
			return err
		})
		if err != nil {
			return erased, err
		}
		erased += n
	}
	return erased, nil
}

func strays(ctx context.Context, tx pgx.Tx, hashes []content.Hash) (int64, error) {
	if err := ticketdb.LockErasure(ctx, tx, hashes); err != nil {
		return 0, err
	}
	heirs, err := ticketdb.Heirs(ctx, tx, hashes, []uuid.UUID{})
	if err != nil {
		return 0, err
	}
	hashes = slices.DeleteFunc(slices.Clone(hashes), func(h content.Hash) bool { _, has := heirs[h]; return has })
	all, err := outbox.KeysOf(ctx, tx, hashes)
	if err != nil {
		return 0, err
	}
	return ledger.EraseResponses(ctx, tx, keysOf(all))
}

func withText(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) ([]ticketdb.Erasable, error) {
	tickets, err := ticketdb.ErasableTickets(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tickets, func(t ticketdb.Erasable) bool { return !t.ErasedAt.IsZero() }), nil
}

func hashesOf(tickets []ticketdb.Erasable) []content.Hash {
	var hashes []content.Hash
	met := make(map[content.Hash]bool, len(tickets))
	for _, t := range tickets {
		if !met[t.ContentHash] {
			met[t.ContentHash] = true
			hashes = append(hashes, t.ContentHash)
		}
	}
	return hashes
}

func idsOf(tickets []ticketdb.Erasable) []uuid.UUID {
	ids := make([]uuid.UUID, len(tickets))
	for i, t := range tickets {
		ids[i] = t.ID
	}
	return ids
}

func keysOf(all map[content.Hash][]content.Key) []content.Key {
	var keys []content.Key
	for _, of := range all {
		keys = append(keys, of...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
