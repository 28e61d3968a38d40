package peer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// The loops of the limit: batches as large as a claim of the product's, and as many at once as it has transactions.
const (
	statementLoops = 4
	statementBatch = 500
	statementLease = 5 * time.Minute
)

// DrainByStatements drains the backlog of the main route by the product's very statements, and by nothing else: claim a
// batch, which opens its calls in the ledger; then, in one transaction, delete it, close the calls and write the results.
// No provider, no goroutine for each call, no heartbeat. It is the most that this schema allows on this machine.
func DrainByStatements(ctx context.Context, db *bed.Database, n int) (perSecond float64, err error) {
	var done atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range statementLoops {
		claimer := outbox.NewClaimer(db.Pool, bed.Main, outbox.Live, fmt.Sprintf("loop %d", i), statementLease)
		g.Go(func() error {
			for done.Load() < int64(n) {
				batch, err := claimer.Claim(ctx, statementBatch)
				if err != nil {
					return err
				}
				if err := finish(ctx, db, batch); err != nil {
					return err
				}
				done.Add(int64(len(batch)))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("drain by statements: %w", err)
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// What a call came to: as much text as a provider's answer has.
const response = `{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion","created":1741569952,"model":"gpt-5-mini-2025-08-07",` +
	`"choices":[{"index":0,"message":{"role":"assistant","content":"{\"is_urgent\":0.82,\"urgency_score\":0.71,\"department\":\"billing\"}"},` +
	`"finish_reason":"stop"}],"usage":{"prompt_tokens":280,"completion_tokens":20,"total_tokens":300}}`

func finish(ctx context.Context, db *bed.Database, batch []outbox.Claimed) error {
	if len(batch) == 0 {
		return nil
	}
	leases := make([]outbox.Lease, len(batch))
	closures := make([]ledger.Closure, len(batch))
	results := make([]ledger.Result, len(batch))
	usage := evaluation.Usage{InputTokens: 280, OutputTokens: 20}
	answer := evaluation.Answer{IsUrgent: 0.82, UrgencyScore: 0.71, Department: "billing"}
	for i, c := range batch {
		leases[i] = c.Lease
		closures[i] = ledger.Closure{
			CallID: c.CallID, Outcome: ledger.Answered, HTTPStatus: 200, ProviderRequestID: "req_5f3c8a3b0f2e4d8c9a7b",
			ServedModel: "gpt-5-mini-2025-08-07", Usage: &usage, CostUSD: decimal.Zero, Response: []byte(response),
		}
		results[i] = ledger.Result{
			Key: c.Key, ContentHash: c.ContentHash, TicketID: c.TicketID, VersionID: c.VersionID,
			Answer: answer, Decision: evaluation.Decision{PolicyVersion: "builtin-1", Priority: "urgent", Queue: "billing"},
			ModelVersion: "gpt-5-mini-2025-08-07", PromptVersion: "1", CallID: c.CallID,
		}
	}
	return postgres.InTx(ctx, db.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := outbox.PlanKeys(ctx, tx); err != nil {
			return err
		}
		if _, err := outbox.Finish(ctx, tx, leases); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, closures); err != nil {
			return err
		}
		if _, err := ledger.Save(ctx, tx, results); err != nil {
			return err
		}
		return outbox.EndClaims(ctx, tx, []uuid.UUID{batch[0].ClaimID})
	})
}
