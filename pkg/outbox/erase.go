package outbox

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// KeysOf returns the keys of contents, under all versions that there are.
func KeysOf(ctx context.Context, db outboxsql.DBTX, hashes []content.Hash) (map[content.Hash][]content.Key, error) {
	rows, err := outboxsql.New(db).KeysOf(ctx, rawHashes(hashes))
	if err != nil {
		return nil, fmt.Errorf("compute the keys of %d contents: %w", len(hashes), err)
	}
	keys := make(map[content.Hash][]content.Key, len(hashes))
	for _, r := range rows {
		h := content.Hash(r.ContentHash)
		keys[h] = append(keys[h], content.Key(r.IdempotencyKey))
	}
	return keys, nil
}

// Locked is work that is locked, until the transaction ends, against whoever would claim, finish or follow it.
type Locked struct {
	ContentHash content.Hash
	State       State // Succeeded where its answer is here already: the next claim ends it without a call
}

// LockWork locks the work that there is of keys, in their order. Statements that follow see what was stored by those who
// followed it.
func LockWork(ctx context.Context, tx pgx.Tx, keys []content.Key) (map[content.Key]Locked, error) {
	rows, err := outboxsql.New(tx).LockWork(ctx, names(keys))
	if err != nil {
		return nil, fmt.Errorf("lock the work of %d keys: %w", len(keys), err)
	}
	held := make(map[content.Key]Locked, len(rows))
	for _, r := range rows {
		h := Locked{ContentHash: content.Hash(r.ContentHash), State: State(r.Status)}
		if r.Answered {
			h.State = Succeeded
		}
		held[content.Key(r.IdempotencyKey)] = h
	}
	return held, nil
}

// Bequeath makes locked work of some tickets that of their contents' heirs.
func Bequeath(ctx context.Context, tx pgx.Tx, keys []content.Key, tickets []uuid.UUID, heirs map[content.Hash]uuid.UUID) error {
	if len(heirs) == 0 {
		return nil
	}
	p := outboxsql.BequeathParams{Keys: names(keys), TicketIds: tickets}
	for h, id := range heirs {
		p.ContentHashes, p.Heirs = append(p.ContentHashes, h[:]), append(p.Heirs, id)
	}
	if err := outboxsql.New(tx).Bequeath(ctx, p); err != nil {
		return fmt.Errorf("bequeath the work of %d tickets: %w", len(tickets), err)
	}
	return nil
}

// BuryErased takes locked work whose text is erased to the dead letters, and returns the keys that were buried by it, or
// by another erasure before. A new ticket with the same text takes such work up again.
func BuryErased(ctx context.Context, tx pgx.Tx, keys []content.Key) (buried []content.Key, err error) {
	rows, err := outboxsql.New(tx).BuryErased(ctx, names(keys))
	if err != nil {
		return nil, fmt.Errorf("bury the work of %d keys: %w", len(keys), err)
	}
	for _, r := range rows {
		if r.Erased {
			buried = append(buried, content.Key(r.IdempotencyKey))
		}
	}
	return buried, nil
}

// Working returns those of the tickets that work to come, or under way, names, of these keys. It locks nothing.
func Working(ctx context.Context, tx pgx.Tx, keys []content.Key, tickets []uuid.UUID) ([]uuid.UUID, error) {
	working, err := outboxsql.New(tx).WorkOf(ctx, outboxsql.WorkOfParams{Keys: names(keys), TicketIds: tickets})
	if err != nil {
		return nil, fmt.Errorf("look for the work of %d tickets: %w", len(tickets), err)
	}
	return working, nil
}

func rawHashes(hashes []content.Hash) [][]byte {
	raw := make([][]byte, len(hashes))
	for i := range hashes {
		raw[i] = hashes[i][:]
	}
	return raw
}
