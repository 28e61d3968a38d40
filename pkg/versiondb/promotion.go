package versiondb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/versiondb/internal/versiondbsql"
)

// LockActive returns the id of the active version, "" if there is none, and keeps others from promoting until the
// transaction ends.
func LockActive(ctx context.Context, tx pgx.Tx) (string, error) {
	q := versiondbsql.New(tx)
	if err := q.LockPromotions(ctx); err != nil {
		return "", fmt.Errorf("wait for other promotions: %w", err)
	}
	active, err := q.LockActiveVersion(ctx)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("lock the active version: %w", err)
	}
	return active, nil
}

// Promote makes a version the active one and records it. With a non-empty expected id it is a compare-and-set:
// a *ActiveChangedError says that another version is active. Promoting the active version changes nothing.
func Promote(ctx context.Context, tx pgx.Tx, id, expected, by string) error {
	if _, err := Get(ctx, tx, id); err != nil {
		return err
	}
	active, err := LockActive(ctx, tx)
	if err != nil {
		return err
	}
	if expected != "" && expected != active {
		return &ActiveChangedError{Expected: expected, Active: active}
	}
	if active == id {
		return nil
	}
	q := versiondbsql.New(tx)
	if err := q.SetActiveVersion(ctx, versiondbsql.SetActiveVersionParams{VersionID: id, PromotedBy: by}); err != nil {
		return fmt.Errorf("promote version %s: %w", id, err)
	}
	var replaced *string
	if active != "" {
		replaced = &active
	}
	if err := q.RecordPromotion(ctx, versiondbsql.RecordPromotionParams{VersionID: id, Replaced: replaced, PromotedBy: by}); err != nil {
		return fmt.Errorf("record the promotion of version %s: %w", id, err)
	}
	return nil
}

// Rollback promotes the version that the last promotion replaced, and returns its id. With a non-empty expected id it is a
// compare-and-set, as Promote. It is a promotion itself: the next rollback undoes it.
func Rollback(ctx context.Context, tx pgx.Tx, expected, by string) (id string, err error) {
	active, err := LockActive(ctx, tx)
	if err != nil {
		return "", err
	}
	if expected != "" && expected != active {
		return "", &ActiveChangedError{Expected: expected, Active: active}
	}
	last, err := versiondbsql.New(tx).LastPromotion(ctx)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("get the last promotion: %w", err)
	}
	if last.Replaced == nil {
		return "", ErrNothingReplaced
	}
	return *last.Replaced, Promote(ctx, tx, *last.Replaced, active, by)
}

// Promotion is an entry of the history of the active version.
type Promotion struct {
	ID        int64 // later ones have higher ones
	VersionID string
	Replaced  string // "" for the first
	By        string
	At        time.Time
}

// Promotions returns up to most promotions, the newest first, with ids below a given one unless that is 0.
func Promotions(ctx context.Context, db versiondbsql.DBTX, below int64, most int) ([]Promotion, error) {
	rows, err := versiondbsql.New(db).ListPromotions(ctx, versiondbsql.ListPromotionsParams{Below: below, Most: int32(most)})
	if err != nil {
		return nil, fmt.Errorf("list promotions: %w", err)
	}
	promotions := make([]Promotion, len(rows))
	for i, row := range rows {
		promotions[i] = Promotion{ID: row.ID, VersionID: row.VersionID, By: row.PromotedBy, At: row.PromotedAt}
		if row.Replaced != nil {
			promotions[i].Replaced = *row.Replaced
		}
	}
	return promotions, nil
}

// MaxCovered bounds how many tickets are looked at for a version's coverage.
const MaxCovered = 100_000

// Coverage is how many distinct contents of recent tickets have an answer under a version.
type Coverage struct {
	Contents, Answered int64
	Capped             bool // only the newest MaxCovered tickets were looked at
}

// Share is the part that is answered; of nothing, all.
func (c Coverage) Share() float64 {
	if c.Contents == 0 {
		return 1
	}
	return float64(c.Answered) / float64(c.Contents)
}

// Covered counts the coverage of a version, by its digest, over the tickets of a window that ends now.
func Covered(ctx context.Context, db versiondbsql.DBTX, digest [32]byte, window time.Duration) (Coverage, error) {
	row, err := versiondbsql.New(db).Coverage(ctx, versiondbsql.CoverageParams{
		WindowSeconds: window.Seconds(), Most: MaxCovered, Digest: digest[:],
	})
	if err != nil {
		return Coverage{}, fmt.Errorf("count the coverage of a version: %w", err)
	}
	return Coverage{Contents: row.Contents, Answered: row.Answered, Capped: row.Tickets >= MaxCovered}, nil
}
