// Package comparison reads what two versions have made of the same tickets, and owns ticket_sample and
// ticket_sample_member: tickets that were drawn once, so that versions are compared over the same ones.
//
// A [Snapshot] sees all tables as they are at one moment and changes nothing. Rows are read one by one: what a
// comparison takes does not grow with the tickets that it looks at.
package comparison

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/comparison/internal/comparisonsql"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// MaxRawBytes is how much of a raw response is read.
const MaxRawBytes = 64 << 10

const rollbackTimeout = 5 * time.Second

// Selection is the tickets that are looked at: those of a sample, or else those of a range and a client.
type Selection struct {
	SampleID string
	From, To time.Time // from inclusive, to exclusive; zero ones are open ends
	ClientID string    // empty for all
	// Named narrows the selection to tickets with one of these ids; nil does not.
	Named *Names
}

// Names are ids of tickets, of both kinds.
type Names struct {
	Tickets   []uuid.UUID
	Externals []string
}

// bounds are the range as the statements take it.
func (s Selection) bounds() (from, to time.Time) {
	if to = s.To; to.IsZero() {
		to = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	}
	return s.From, to
}

func (s Selection) names() (named bool, tickets []uuid.UUID, externals []string) {
	if s.Named == nil {
		return false, []uuid.UUID{}, []string{}
	}
	return true, s.Named.Tickets, s.Named.Externals
}

// Pair is a ticket with what two versions have made of it.
type Pair struct {
	TicketID   uuid.UUID
	ClientID   string
	ExternalID string
	CreatedAt  time.Time
	Side       Side
	Other      Side // the zero Side where one version is read alone
}

// Side is what one version has made of a ticket. All but the state is of a succeeded evaluation.
type Side struct {
	State        outbox.State // Absent when the version was never asked
	Department   string
	IsUrgent     float64
	UrgencyScore float64
	ModelVersion string
	ComputedAt   time.Time
	ModelCallID  uuid.UUID
}

// Expense is what the ledger has on the answers of a version.
type Expense struct {
	Answers  int64
	Calls    int64 // for these answers, failed ones too
	CostUSD  decimal.Decimal
	Unpriced int64 // calls whose cost nobody knows
	// Of the calls that gave the answers; zero when the ledger has none of them.
	Mean, P50, P95 time.Duration
}

// Beginner is a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Snapshot is one state of the database.
type Snapshot struct {
	tx pgx.Tx
}

// InSnapshot lets read see one state of the database. Each of its statements may take up to the timeout.
func InSnapshot(ctx context.Context, db Beginner, timeout time.Duration, read func(ctx context.Context, s Snapshot) error) error {
	tx, err := postgres.BeginTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin the snapshot of a comparison: %w", err)
	}
	// There is nothing to commit.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	// Zero would turn the timeout off.
	ms := strconv.FormatInt(max(1, timeout.Milliseconds()), 10)
	if err := comparisonsql.New(tx).BeginSnapshot(ctx, ms); err != nil {
		return fmt.Errorf("set the timeout of a comparison: %w", err)
	}
	return read(ctx, Snapshot{tx: tx})
}

// Tx is the snapshot's transaction, for what other owners have to tell of the same moment.
func (s Snapshot) Tx() pgx.Tx { return s.tx }

// Pairs reads the tickets of a selection, in no order, each with what the version of digest has made of it and, unless
// other is nil, what the other one has. Nothing else may be read before it has ended. An error is the last of it.
func (s Snapshot) Pairs(ctx context.Context, of Selection, digest [32]byte, other *[32]byte) iter.Seq2[Pair, error] {
	var otherDigest []byte
	if other != nil {
		otherDigest = other[:]
	}
	return func(yield func(Pair, error) bool) {
		if err := s.pairs(ctx, of, digest[:], otherDigest, func(p Pair) bool { return yield(p, nil) }); err != nil {
			yield(Pair{}, fmt.Errorf("read the answers that are compared: %w", err))
		}
	}
}

func (s Snapshot) pairs(ctx context.Context, of Selection, digest, otherDigest []byte, yield func(Pair) bool) error {
	if otherDigest == nil {
		otherDigest = []byte{}
	}
	named, tickets, externals := of.names()
	from, to := of.bounds()
	p := comparisonsql.PairsParams{
		Digest: digest, OtherDigest: otherDigest, Named: named, TicketIds: tickets, ExternalIds: externals,
		SampleID: of.SampleID, CreatedFrom: from, CreatedTo: to, ClientID: of.ClientID,
	}
	// The generated method would hold all rows at once.
	rows, err := s.tx.Query(ctx, comparisonsql.Pairs, p.Digest, p.OtherDigest, p.TicketIds, p.ExternalIds, p.Named,
		p.SampleID, p.CreatedFrom, p.CreatedTo, p.ClientID)
	if err != nil {
		return err
	}
	var r comparisonsql.PairsRow
	var stopped bool
	_, err = pgx.ForEachRow(rows, []any{
		&r.ID, &r.ClientID, &r.ExternalID, &r.CreatedAt,
		&r.State, &r.Department, &r.IsUrgent, &r.UrgencyScore, &r.ModelVersion, &r.ComputedAt, &r.ModelCallID,
		&r.OtherState, &r.OtherDepartment, &r.OtherIsUrgent, &r.OtherUrgencyScore, &r.OtherModelVersion, &r.OtherComputedAt, &r.OtherModelCallID,
	}, func() error {
		if stopped = !yield(pairOf(r)); stopped {
			return errStopped
		}
		return nil
	})
	if stopped {
		return nil
	}
	return err
}

var errStopped = errors.New("the reader has seen enough")

func pairOf(r comparisonsql.PairsRow) Pair {
	return Pair{
		TicketID: r.ID, ClientID: r.ClientID, ExternalID: r.ExternalID, CreatedAt: r.CreatedAt,
		Side: Side{
			State: outbox.State(r.State), Department: r.Department, IsUrgent: r.IsUrgent, UrgencyScore: r.UrgencyScore,
			ModelVersion: r.ModelVersion, ComputedAt: r.ComputedAt, ModelCallID: r.ModelCallID,
		},
		Other: Side{
			State: outbox.State(r.OtherState), Department: r.OtherDepartment, IsUrgent: r.OtherIsUrgent, UrgencyScore: r.OtherUrgencyScore,
			ModelVersion: r.OtherModelVersion, ComputedAt: r.OtherComputedAt, ModelCallID: r.OtherModelCallID,
		},
	}
}

// Expense sums up the ledger for a version's answers to the tickets of a selection.
func (s Snapshot) Expense(ctx context.Context, of Selection, digest [32]byte) (Expense, error) {
	named, tickets, externals := of.names()
	from, to := of.bounds()
	r, err := comparisonsql.New(s.tx).Expense(ctx, comparisonsql.ExpenseParams{
		Digest: digest[:], Named: named, TicketIds: tickets, ExternalIds: externals,
		SampleID: of.SampleID, CreatedFrom: from, CreatedTo: to, ClientID: of.ClientID,
	})
	if err != nil {
		return Expense{}, fmt.Errorf("sum up the cost of answers: %w", err)
	}
	return Expense{
		Answers: r.Answers, Calls: r.Calls, CostUSD: r.CostUSD, Unpriced: r.Unpriced,
		Mean: seconds(r.MeanSeconds), P50: seconds(r.P50Seconds), P95: seconds(r.P95Seconds),
	}, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Responses returns the raw responses of calls, up to MaxRawBytes of each; those that are not kept are left out.
func Responses(ctx context.Context, db comparisonsql.DBTX, calls []uuid.UUID) (map[uuid.UUID][]byte, error) {
	rows, err := comparisonsql.New(db).Responses(ctx, comparisonsql.ResponsesParams{Most: MaxRawBytes, Ids: calls})
	if err != nil {
		return nil, fmt.Errorf("read the responses of %d calls: %w", len(calls), err)
	}
	responses := make(map[uuid.UUID][]byte, len(rows))
	for _, r := range rows {
		responses[r.ID] = r.Response
	}
	return responses, nil
}
