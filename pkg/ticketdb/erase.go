package ticketdb

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ticketdb/internal/ticketdbsql"
)

// Erasable is a ticket as far as its erasure is concerned.
type Erasable struct {
	ID          uuid.UUID
	ClientID    string
	ContentHash content.Hash
	ErasedAt    time.Time // zero while it has its text
}

// ErasableTickets returns those of the tickets that there are, in the order of their ids, whichever clients' they are.
func ErasableTickets(ctx context.Context, db ticketdbsql.DBTX, ids []uuid.UUID) ([]Erasable, error) {
	rows, err := ticketdbsql.New(db).Erasable(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look up %d tickets: %w", len(ids), err)
	}
	tickets := make([]Erasable, len(rows))
	for i, r := range rows {
		tickets[i] = Erasable{ID: r.ID, ClientID: r.ClientID, ContentHash: content.Hash(r.ContentHash)}
		if r.ErasedAt != nil {
			tickets[i].ErasedAt = *r.ErasedAt
		}
	}
	return tickets, nil
}

// LockErasure makes the transaction the only one that erases texts of these contents. It belongs before all other locks.
func LockErasure(ctx context.Context, tx pgx.Tx, hashes []content.Hash) error {
	if err := ticketdbsql.New(tx).LockErasure(ctx, rawHashes(hashes)); err != nil {
		return fmt.Errorf("wait for other erasures of %d contents: %w", len(hashes), err)
	}
	return nil
}

// LockForErasure waits for those who are giving the tickets work ([HoldTexts]), and keeps others from it.
func LockForErasure(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) error {
	if _, err := ticketdbsql.New(tx).LockForErasure(ctx, ids); err != nil {
		return fmt.Errorf("lock %d tickets: %w", len(ids), err)
	}
	return nil
}

// Heirs returns a ticket with the text for each content that has one beside the tickets given. Within LockErasure it
// stays one.
func Heirs(ctx context.Context, tx pgx.Tx, hashes []content.Hash, beside []uuid.UUID) (map[content.Hash]uuid.UUID, error) {
	rows, err := ticketdbsql.New(tx).Heirs(ctx, ticketdbsql.HeirsParams{ContentHashes: rawHashes(hashes), Ids: beside})
	if err != nil {
		return nil, fmt.Errorf("look for other tickets of %d contents: %w", len(hashes), err)
	}
	heirs := make(map[content.Hash]uuid.UUID, len(rows))
	for _, r := range rows {
		heirs[content.Hash(r.ContentHash)] = r.ID
	}
	return heirs, nil
}

// EraseTexts takes subject and message from tickets, for good.
func EraseTexts(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (int64, error) {
	n, err := ticketdbsql.New(tx).EraseTexts(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("erase the text of %d tickets: %w", len(ids), err)
	}
	return n, nil
}

// HoldTexts returns those of stored tickets that have their text, and keeps it until the transaction ends. Whoever gives
// work to tickets that are not its own must hold them first: nothing is sent for a ticket without a text.
func HoldTexts(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	rows, err := ticketdbsql.New(tx).HoldTexts(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("hold the texts of %d tickets: %w", len(ids), err)
	}
	held := make(map[uuid.UUID]bool, len(rows))
	for _, id := range rows {
		held[id] = true
	}
	return held, nil
}

// OldTexts looks at up to window tickets behind an id, in the order of their ids, and returns those that have a text and
// are older than an instant. Next is the last that was looked at, and ok is false when there was none.
func OldTexts(ctx context.Context, db ticketdbsql.DBTX, after uuid.UUID, before time.Time, window int) (due []uuid.UUID, next uuid.UUID, ok bool, err error) {
	rows, err := ticketdbsql.New(db).OldTexts(ctx, ticketdbsql.OldTextsParams{After: after, Before: before, WindowSize: int32(window)})
	if err != nil {
		return nil, uuid.Nil, false, fmt.Errorf("look for old texts: %w", err)
	}
	for _, r := range rows {
		if r.Due {
			due = append(due, r.ID)
		} else {
			next, ok = r.ID, true
		}
	}
	return due, next, ok, nil
}

// ErasedSince returns the contents of which a text was erased within the time before now.
func ErasedSince(ctx context.Context, db ticketdbsql.DBTX, within time.Duration) ([]content.Hash, error) {
	rows, err := ticketdbsql.New(db).ErasedSince(ctx, within.Seconds())
	if err != nil {
		return nil, fmt.Errorf("look for erased texts: %w", err)
	}
	hashes := make([]content.Hash, len(rows))
	for i, r := range rows {
		hashes[i] = content.Hash(r)
	}
	return hashes, nil
}

func rawHashes(hashes []content.Hash) [][]byte {
	raw := make([][]byte, len(hashes))
	for i := range hashes {
		raw[i] = hashes[i][:]
	}
	return raw
}
