package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ledger/internal/ledgersql"
)

// Unjudged returns those of the keys that have a response which is yet to be judged.
func Unjudged(ctx context.Context, tx pgx.Tx, keys []content.Key) (map[content.Key]bool, error) {
	rows, err := ledgersql.New(tx).Unjudged(ctx, names(keys))
	if err != nil {
		return nil, fmt.Errorf("look for unjudged responses of %d keys: %w", len(keys), err)
	}
	unjudged := make(map[content.Key]bool, len(rows))
	for _, k := range rows {
		unjudged[content.Key(k)] = true
	}
	return unjudged, nil
}

// EraseResponses takes the responses, and what providers said of errors, from all calls of keys. What the calls cost and
// came to stays.
func EraseResponses(ctx context.Context, tx pgx.Tx, keys []content.Key) (int64, error) {
	n, err := ledgersql.New(tx).EraseResponses(ctx, names(keys))
	if err != nil {
		return 0, fmt.Errorf("erase the responses of %d keys: %w", len(keys), err)
	}
	return n, nil
}

// ErasedResponses is what a look at old calls has come to.
type ErasedResponses struct {
	Next   uuid.UUID // the last call that was looked at; nil when there was none
	Erased int64
	Left   bool // there are responses that wait to be judged
}

// EraseOldResponses looks at up to window calls behind an id, in the order of their ids, that were opened before an
// instant, and takes from those that are judged their responses.
func EraseOldResponses(ctx context.Context, tx pgx.Tx, after uuid.UUID, before time.Time, window int) (ErasedResponses, error) {
	row, err := ledgersql.New(tx).EraseOldResponses(ctx, ledgersql.EraseOldResponsesParams{After: after, Before: before, WindowSize: int32(window)})
	if err != nil {
		return ErasedResponses{}, fmt.Errorf("erase old responses: %w", err)
	}
	return ErasedResponses{Next: row.Last, Erased: row.Erased, Left: row.LeftOver}, nil
}
