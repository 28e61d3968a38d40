package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/ledger/internal/ledgersql"
)

// Decided is an answer that is stored, with what has followed from it.
type Decided struct {
	Key      content.Key
	Answer   evaluation.Answer
	Decision evaluation.Decision
}

// DecisionsAfter returns up to most stored answers in the order of their keys, from the one that follows a key; "" is
// before all. Keys are hashes: the first of them are a random sample of all.
func DecisionsAfter(ctx context.Context, db ledgersql.DBTX, after content.Key, most int) ([]Decided, error) {
	rows, err := ledgersql.New(db).DecisionsAfter(ctx, ledgersql.DecisionsAfterParams{After: string(after), Most: int32(most)})
	if err != nil {
		return nil, fmt.Errorf("read %d decisions: %w", most, err)
	}
	decided := make([]Decided, len(rows))
	for i, row := range rows {
		decided[i] = Decided{
			Key:      content.Key(row.IdempotencyKey),
			Answer:   evaluation.Answer{IsUrgent: row.IsUrgent, Department: row.Department, UrgencyScore: row.UrgencyScore},
			Decision: evaluation.Decision{PolicyVersion: row.PolicyVersion, Priority: row.Priority, Queue: row.Queue},
		}
	}
	return decided, nil
}

// SetDecisions gives stored answers, by their keys, the decisions of one policy. It is the only change that a result ever
// sees.
func SetDecisions(ctx context.Context, tx pgx.Tx, policyID string, decisions []Decided) error {
	p := ledgersql.SetDecisionsParams{PolicyVersion: policyID}
	for _, d := range decisions {
		p.Keys = append(p.Keys, string(d.Key))
		p.Priorities = append(p.Priorities, d.Decision.Priority)
		p.Queues = append(p.Queues, d.Decision.Queue)
	}
	n, err := ledgersql.New(tx).SetDecisions(ctx, p)
	if err != nil {
		return fmt.Errorf("set %d decisions of policy %s: %w", len(decisions), policyID, err)
	}
	if n != int64(len(decisions)) {
		return fmt.Errorf("set decisions of policy %s: %d of %d answers are there", policyID, n, len(decisions))
	}
	return nil
}
