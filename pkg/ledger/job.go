package ledger

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/ledger/internal/ledgersql"
)

// JobCalls is what the calls of a job have come to.
type JobCalls struct {
	Answered           int64 // evaluations
	AnsweredLastMinute int64
	Priced             int64 // calls whose cost is known
	CostUSD            decimal.Decimal
	UnderWay           int64 // calls that have cost, or may yet cost, what is not known
}

// CallsOf sums up the calls of a job.
func CallsOf(ctx context.Context, db ledgersql.DBTX, job uuid.UUID) (JobCalls, error) {
	row, err := ledgersql.New(db).JobCalls(ctx, job)
	if err != nil {
		return JobCalls{}, fmt.Errorf("sum up the calls of job %s: %w", job, err)
	}
	return JobCalls{
		Answered: row.Answered, AnsweredLastMinute: row.AnsweredLastMinute, Priced: row.Priced, CostUSD: row.CostUSD, UnderWay: row.UnderWay,
	}, nil
}

// Use is what the calls of a version took on the average, of those that were paid.
type Use struct {
	Calls                                        int64
	CostUSD                                      decimal.Decimal
	InputTokens, CachedInputTokens, OutputTokens float64
	Seconds                                      float64
	BusiestMinute                                int64 // calls in the minute that had the most of them
}

// RecentUse looks at the newest calls in the ledger, up to most, and returns by version what they took.
func RecentUse(ctx context.Context, db ledgersql.DBTX, most int) (map[string]Use, error) {
	rows, err := ledgersql.New(db).RecentUse(ctx, int32(most))
	if err != nil {
		return nil, fmt.Errorf("average the newest %d calls: %w", most, err)
	}
	uses := make(map[string]Use, len(rows))
	for _, r := range rows {
		uses[r.VersionID] = Use{
			Calls: r.Calls, CostUSD: r.CostUSD, InputTokens: r.InputTokens, CachedInputTokens: r.CachedInputTokens,
			OutputTokens: r.OutputTokens, Seconds: r.Seconds, BusiestMinute: r.BusiestMinute,
		}
	}
	return uses, nil
}
