package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/ledger/internal/ledgersql"
)

const (
	// recentMost and savingsMost bound how far back is looked, so that it costs the same whatever the ledger holds.
	recentMost  = 100_000
	savingsMost = 10_000
	// RecentWindow is what a rate of calls is taken over.
	RecentWindow = 5 * time.Minute
)

// Recent is what the newest calls under one version have come to.
type Recent struct {
	VersionID string
	// Of the window.
	Window                  time.Duration // RecentWindow, or less when more calls were made than are looked at
	Calls, Answered, Failed int64
	// Of the calls looked at, which may not reach back to the beginning of the day, or of the month.
	DayUSD, MonthUSD         decimal.Decimal
	DayPartial, MonthPartial bool
}

// RecentCalls looks at the newest calls of this month.
func RecentCalls(ctx context.Context, db ledgersql.DBTX) ([]Recent, error) {
	rows, err := ledgersql.New(db).Recent(ctx, ledgersql.RecentParams{Most: recentMost, WindowSeconds: RecentWindow.Seconds()})
	if err != nil {
		return nil, fmt.Errorf("look at the newest calls: %w", err)
	}
	recent := make([]Recent, len(rows))
	for i, r := range rows {
		recent[i] = Recent{
			VersionID: r.VersionID, Window: time.Duration(r.WindowSeconds * float64(time.Second)), Calls: r.Calls, Answered: r.Answered, Failed: r.Failed,
			DayUSD: r.DayUSD, MonthUSD: r.MonthUSD, DayPartial: r.DayPartial, MonthPartial: r.Capped,
		}
	}
	return recent, nil
}

// Saving is what tickets of the last day did without calls of their own, on one route.
type Saving struct {
	Route               string
	Tickets             int64 // with a result
	AnsweredWithoutCall int64
	CallUSD             decimal.Decimal // what the others' calls have cost on average; 0 when none is known
}

// Savings looks at the newest ten thousand tickets of the last 24 hours.
func Savings(ctx context.Context, db ledgersql.DBTX) ([]Saving, error) {
	rows, err := ledgersql.New(db).Savings(ctx, savingsMost)
	if err != nil {
		return nil, fmt.Errorf("look for what was saved: %w", err)
	}
	savings := make([]Saving, len(rows))
	for i, r := range rows {
		savings[i] = Saving{Route: r.Route, Tickets: r.Tickets, AnsweredWithoutCall: r.AnsweredWithoutCall, CallUSD: r.CallUSD}
	}
	return savings, nil
}
