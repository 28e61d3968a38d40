package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger/internal/ledgersql"
)

// Recall sets the calls of dead letters aside, so that their answers may be bought again. The caller has locked the dead
// letters and revives them. A recalled call counts for nothing when it is decided whether another may be made: its
// response is not judged, its unknown outcome is not counted, its age is nobody's. A response of it that comes after all
// still closes it, and is still a result where it is an answer; it buries nothing.
func Recall(ctx context.Context, tx pgx.Tx, replay uuid.UUID, keys []content.Key) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := ledgersql.New(tx).Recall(ctx, ledgersql.RecallParams{Replay: replay, Keys: names(keys)}); err != nil {
		return fmt.Errorf("recall the calls of %d keys: %w", len(keys), err)
	}
	return nil
}

// Reopen makes the newest response that was no answer, of each key whose dead letter the caller has locked, one that is
// to be judged by the next claim. The keys that have such a response come back.
func Reopen(ctx context.Context, tx pgx.Tx, keys []content.Key) (map[content.Key]bool, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	reopened, err := ledgersql.New(tx).Reopen(ctx, names(keys))
	if err != nil {
		return nil, fmt.Errorf("reopen the responses of %d keys: %w", len(keys), err)
	}
	set := make(map[content.Key]bool, len(reopened))
	for _, k := range reopened {
		set[content.Key(k)] = true
	}
	return set, nil
}

func names(keys []content.Key) []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	return names
}

// Call is a call as the ledger has it.
type Call struct {
	ID                uuid.UUID
	Attempt           int
	Outcome           Outcome
	Class             failure.Class
	Reason            failure.Reason
	Detail            string
	StartedAt         time.Time
	FinishedAt        time.Time // zero while it is open
	HTTPStatus        int
	ProviderRequestID string
	ServedModel       string
	InputTokens       int64
	OutputTokens      int64
	CostUSD           *decimal.Decimal // nil when not known
	TraceID           string
	Late              bool
	RecalledBy        uuid.UUID // uuid.Nil unless recalled
	Response          []byte    // the beginning
	ResponseBytes     int64     // of the whole
}

// History returns up to most calls of a key, the oldest first, with so much of each response.
func History(ctx context.Context, db ledgersql.DBTX, key content.Key, most, responseBytes int) ([]Call, error) {
	rows, err := ledgersql.New(db).History(ctx, ledgersql.HistoryParams{Key: string(key), Most: int32(most), ResponseBytes: int32(responseBytes)})
	if err != nil {
		return nil, fmt.Errorf("list the calls of %s: %w", key, err)
	}
	calls := make([]Call, len(rows))
	for i, r := range rows {
		c := Call{
			ID: r.ID, Attempt: int(r.Attempt), Outcome: Outcome(r.Outcome), Class: failure.Class(r.Class), Reason: failure.Reason(r.Reason), Detail: r.Error,
			StartedAt: r.StartedAt, HTTPStatus: int(r.HTTPStatus), ProviderRequestID: r.ProviderRequestID, ServedModel: r.ServedModel,
			InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, CostUSD: r.CostUSD, TraceID: r.TraceID, Late: r.Late,
			Response: r.Response, ResponseBytes: r.ResponseBytes,
		}
		if r.FinishedAt != nil {
			c.FinishedAt = *r.FinishedAt
		}
		if r.RecalledBy != nil {
			c.RecalledBy = *r.RecalledBy
		}
		calls[i] = c
	}
	return calls, nil
}
