// Package compare holds a version against another one, or against the truth, by the answers that are stored.
//
// A comparison sees all tables as they are at one moment, changes nothing and calls nobody. What it holds in memory does
// not grow with the tickets that it looks at, but with the truth and with the disagreements that it is asked for. Its
// transaction has ended before the first message is sent, so that a slow reader holds no snapshot.
package compare

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const (
	// statementTimeout is long because a range may hold years.
	statementTimeout = 10 * time.Minute
	// rawBatch bounds the raw responses that are held at a time.
	rawBatch = 25
)

// Request is what is to be compared. Either OtherVersionID or Truth is given.
type Request struct {
	VersionID      string
	OtherVersionID string
	Truth          []Truth
	Selection      comparison.Selection
	// Worst is how many disagreements are sent.
	Worst int
}

// Run compares, and sends the summary and then the worst disagreements. It returns [versiondb.ErrNotFound] and
// [comparison.ErrSampleNotFound] for what does not exist.
func Run(ctx context.Context, db *pgxpool.Pool, r Request, send func(*adminv1.CompareResponse) error) error {
	var summary *adminv1.Comparison
	var worst []disagreement
	err := comparison.InSnapshot(ctx, db, statementTimeout, func(ctx context.Context, s comparison.Snapshot) (err error) {
		summary, worst, err = compare(ctx, s, r)
		return err
	})
	if err != nil {
		return err
	}
	if err := send(&adminv1.CompareResponse{Content: &adminv1.CompareResponse_Summary{Summary: summary}}); err != nil {
		return err
	}
	return sendWorst(ctx, db, worst, send)
}

func compare(ctx context.Context, s comparison.Snapshot, r Request) (*adminv1.Comparison, []disagreement, error) {
	version, err := versiondb.Get(ctx, s.Tx(), r.VersionID)
	if err != nil {
		return nil, nil, err
	}
	policy, err := activePolicy(ctx, s.Tx())
	if err != nil {
		return nil, nil, err
	}
	summary := &adminv1.Comparison{
		VersionId: r.VersionID, OtherVersionId: r.OtherVersionID, PolicyId: policy.id, UrgentThreshold: policy.urgentThreshold,
		Coverage: &adminv1.Coverage{},
	}
	t := newTally(policy, r.Worst)
	for _, d := range version.Departments {
		t.departments.know(d.Name, false)
	}
	if r.OtherVersionID == "" {
		err = againstTruth(ctx, s, r, version, t, summary)
	} else {
		err = againstVersion(ctx, s, r, version, t, summary)
	}
	if err != nil {
		return nil, nil, err
	}
	if r.Selection.SampleID != "" && r.Selection.Named == nil {
		sample, err := comparison.GetSample(ctx, s.Tx(), r.Selection.SampleID)
		if err != nil {
			return nil, nil, err
		}
		summary.MissingTickets = int64(sample.Tickets) - summary.Tickets
	}
	t.conclude(summary)
	return summary, t.worst.sorted(), nil
}

func againstVersion(ctx context.Context, s comparison.Snapshot, r Request, version versiondb.Stored, t *tally, summary *adminv1.Comparison) error {
	other, err := versiondb.Get(ctx, s.Tx(), r.OtherVersionID)
	if err != nil {
		return err
	}
	for _, d := range other.Departments {
		t.departments.know(d.Name, true)
	}
	summary.OtherCoverage = &adminv1.Coverage{}
	for pair, err := range s.Pairs(ctx, r.Selection, version.Digest, &other.Digest) {
		if err != nil {
			return err
		}
		summary.Tickets++
		cover(summary.Coverage, pair.Side.State)
		cover(summary.OtherCoverage, pair.Other.State)
		if pair.Side.State == outbox.Succeeded && pair.Other.State == outbox.Succeeded {
			t.pair(pair)
		}
	}
	if summary.Expense, err = expense(ctx, s, r.Selection, version); err != nil {
		return err
	}
	summary.OtherExpense, err = expense(ctx, s, r.Selection, other)
	return err
}

func againstTruth(ctx context.Context, s comparison.Snapshot, r Request, version versiondb.Stored, t *tally, summary *adminv1.Comparison) (err error) {
	index := newIndex(r.Truth)
	names := index.names()
	if r.Selection.SampleID != "" {
		if _, err := comparison.GetSample(ctx, s.Tx(), r.Selection.SampleID); err != nil {
			return err
		}
	}
	r.Selection.Named = &names
	for pair, err := range s.Pairs(ctx, r.Selection, version.Digest, nil) {
		if err != nil {
			return err
		}
		summary.Tickets++
		cover(summary.Coverage, pair.Side.State)
		index.match(pair)
	}
	summary.Truth = index.conclude(t.truth)
	summary.Expense, err = expense(ctx, s, r.Selection, version)
	return err
}

func cover(c *adminv1.Coverage, state outbox.State) {
	switch state {
	case outbox.Succeeded:
		c.Answered++
	case outbox.Pending, outbox.Processing:
		c.Waiting++
	case outbox.Dead:
		c.Dead++
	case outbox.Absent:
		c.Unasked++
	}
}

func expense(ctx context.Context, s comparison.Snapshot, of comparison.Selection, version versiondb.Stored) (*adminv1.Expense, error) {
	e, err := s.Expense(ctx, of, version.Digest)
	if err != nil {
		return nil, fmt.Errorf("version %s: %w", version.ID, err)
	}
	shown := &adminv1.Expense{
		Answers: e.Answers, Calls: e.Calls, CostUsd: e.CostUSD.String(), UnpricedCalls: e.Unpriced,
		MeanLatencySeconds: e.Mean.Seconds(), P50LatencySeconds: e.P50.Seconds(), P95LatencySeconds: e.P95.Seconds(),
	}
	if e.Answers > 0 {
		const digits = 9
		shown.CostPerAnswerUsd = e.CostUSD.DivRound(decimalOf(e.Answers), digits).String()
	}
	return shown, nil
}

// sendWorst sends disagreements with the responses that their answers were read from. A response does not change once it
// is stored, so it may be read after the snapshot; it may be gone.
func sendWorst(ctx context.Context, db *pgxpool.Pool, worst []disagreement, send func(*adminv1.CompareResponse) error) error {
	for len(worst) > 0 {
		batch := worst[:min(rawBatch, len(worst))]
		worst = worst[len(batch):]
		var calls []uuid.UUID
		for _, d := range batch {
			calls = append(calls, d.side.ModelCallID)
			if d.truth == nil {
				calls = append(calls, d.other.ModelCallID)
			}
		}
		responses, err := comparison.Responses(ctx, db, calls)
		if err != nil {
			return err
		}
		for _, d := range batch {
			content := &adminv1.CompareResponse_Disagreement{Disagreement: d.message(responses)}
			if err := send(&adminv1.CompareResponse{Content: content}); err != nil {
				return err
			}
		}
	}
	return nil
}

// readable is a response as a text; what is no text in it is replaced.
func readable(response []byte) string { return strings.ToValidUTF8(string(response), "\uFFFD") }
