// Package ledger owns model_call, the record of every request that left or may have left for a provider, and
// evaluation_result, the answers that were bought with them.
//
// A call's row is committed before its request may leave, and one row never sends twice; so what a provider can
// have billed is never more than what is written here. A response that arrived is stored whatever becomes of it.
// Of two results for one key the first written stays.
package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger/internal/ledgersql"
	"github.com/evalonce/evalonce/pkg/route"
)

// Outcome is what became of a call.
type Outcome string

// The outcomes a call is closed with; the table says what each means.
const (
	Unsent   Outcome = "unsent"
	Failed   Outcome = "failed"
	Unknown  Outcome = "unknown"
	Saved    Outcome = "saved"
	Rejected Outcome = "rejected"
	Answered Outcome = "answered"
)

// Closure closes one call.
type Closure struct {
	CallID            uuid.UUID
	Outcome           Outcome
	Failure           *failure.Failure // nil for Unsent, Saved and Answered
	HTTPStatus        int              // 0 when there was none
	ProviderRequestID string
	ServedModel       string
	Usage             *evaluation.Usage // nil when the provider told none
	CostUSD           decimal.Decimal   // of Usage
	Response          []byte            // nil when none arrived
	TraceID           string
}

// Close writes what became of calls. A call that is closed already changes only from unknown to what its late
// response says, and from saved to what its response was judged to be.
func Close(ctx context.Context, tx pgx.Tx, closures []Closure) error {
	if len(closures) == 0 {
		return nil
	}
	var p ledgersql.CloseCallsParams
	for _, c := range closures {
		p.Ids = append(p.Ids, c.CallID)
		p.Outcomes = append(p.Outcomes, string(c.Outcome))
		class, reason, detail := "", "", ""
		if c.Failure != nil {
			class, reason, detail = string(c.Failure.Class), string(c.Failure.Reason), c.Failure.Detail
		}
		p.Classes = append(p.Classes, class)
		p.Reasons = append(p.Reasons, reason)
		p.Errors = append(p.Errors, detail)
		p.HTTPStatuses = append(p.HTTPStatuses, int32(c.HTTPStatus))
		p.ProviderRequestIds = append(p.ProviderRequestIds, c.ProviderRequestID)
		p.ServedModels = append(p.ServedModels, c.ServedModel)
		usage, cost := evaluation.Usage{InputTokens: -1, CachedInputTokens: -1, OutputTokens: -1, ReasoningTokens: -1}, ""
		if c.Usage != nil {
			usage, cost = *c.Usage, c.CostUSD.String()
		}
		p.InputTokens = append(p.InputTokens, usage.InputTokens)
		p.CachedInputTokens = append(p.CachedInputTokens, usage.CachedInputTokens)
		p.OutputTokens = append(p.OutputTokens, usage.OutputTokens)
		p.ReasoningTokens = append(p.ReasoningTokens, usage.ReasoningTokens)
		p.CostsUSD = append(p.CostsUSD, cost)
		p.Responses = append(p.Responses, c.Response)
		p.TraceIds = append(p.TraceIds, c.TraceID)
	}
	q := ledgersql.New(tx)
	err := q.PlanClose(ctx, "off")
	if err == nil {
		_, err = q.CloseCalls(ctx, p)
	}
	if err == nil {
		err = q.PlanClose(ctx, "on")
	}
	if err != nil {
		return fmt.Errorf("close %d model calls: %w", len(closures), err)
	}
	return nil
}

// SettleCharges charges calls what they cost, now that they are closed, and returns what that changes, for
// [route.Charge] in the same transaction. Calls that no budget made charged are left alone, and those that are open or
// of unknown outcome keep the worst case.
func SettleCharges(ctx context.Context, tx pgx.Tx, calls []uuid.UUID) ([]route.Delta, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	rows, err := ledgersql.New(tx).SettleCharges(ctx, calls)
	if err != nil {
		return nil, fmt.Errorf("settle the charges of %d model calls: %w", len(calls), err)
	}
	deltas := make([]route.Delta, len(rows))
	for i, r := range rows {
		deltas[i] = route.Delta{Route: r.Route, OpenedAt: r.OpenedAt, USD: r.USD}
	}
	return deltas, nil
}

// UnknownCalls returns the calls of a key whose outcome nobody knows, the oldest first, but for recalled ones: their
// answers are to be bought again, whatever became of them.
func UnknownCalls(ctx context.Context, db ledgersql.DBTX, key content.Key) ([]uuid.UUID, error) {
	ids, err := ledgersql.New(db).UnknownCalls(ctx, string(key))
	if err != nil {
		return nil, fmt.Errorf("list the unknown calls of %s: %w", key, err)
	}
	return ids, nil
}

// TriedFor returns how long ago each key was called first, since its calls were last recalled. Keys that were not called
// yet are missing.
func TriedFor(ctx context.Context, tx pgx.Tx, keys []content.Key) (map[content.Key]time.Duration, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	rows, err := ledgersql.New(tx).TriedFor(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("look for the first calls of %d keys: %w", len(keys), err)
	}
	tried := make(map[content.Key]time.Duration, len(rows))
	for _, r := range rows {
		tried[content.Key(r.IdempotencyKey)] = time.Duration(r.Seconds * float64(time.Second))
	}
	return tried, nil
}

// Result is an answer, with what explains it.
type Result struct {
	Key           content.Key
	ContentHash   content.Hash
	TicketID      uuid.UUID
	VersionID     string
	Answer        evaluation.Answer
	Decision      evaluation.Decision
	ModelVersion  string // as served
	PromptVersion string
	CallID        uuid.UUID
}

// Save writes results. Of two for one key the first stays; the number written comes back.
func Save(ctx context.Context, tx pgx.Tx, results []Result) (int, error) {
	if len(results) == 0 {
		return 0, nil
	}
	var p ledgersql.SaveResultsParams
	for _, r := range results {
		p.Keys = append(p.Keys, string(r.Key))
		p.ContentHashes = append(p.ContentHashes, r.ContentHash[:])
		p.TicketIds = append(p.TicketIds, r.TicketID)
		p.VersionIds = append(p.VersionIds, r.VersionID)
		p.IsUrgent = append(p.IsUrgent, r.Answer.IsUrgent)
		p.Departments = append(p.Departments, r.Answer.Department)
		p.UrgencyScores = append(p.UrgencyScores, r.Answer.UrgencyScore)
		p.ModelVersions = append(p.ModelVersions, r.ModelVersion)
		p.PromptVersions = append(p.PromptVersions, r.PromptVersion)
		p.PolicyVersions = append(p.PolicyVersions, r.Decision.PolicyVersion)
		p.Priorities = append(p.Priorities, r.Decision.Priority)
		p.Queues = append(p.Queues, r.Decision.Queue)
		p.ModelCallIds = append(p.ModelCallIds, r.CallID)
	}
	written, err := ledgersql.New(tx).SaveResults(ctx, p)
	if err != nil {
		return 0, fmt.Errorf("save %d results: %w", len(results), err)
	}
	return len(written), nil
}

// EnsurePartitions makes the ledger's partitions of this month and the given number of next ones.
func EnsurePartitions(ctx context.Context, db ledgersql.DBTX, monthsAhead int) (made int, err error) {
	n, err := ledgersql.New(db).EnsurePartitions(ctx, int32(monthsAhead))
	if err != nil {
		return 0, fmt.Errorf("make the partitions of model_call: %w", err)
	}
	return int(n), nil
}
