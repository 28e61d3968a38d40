// Package versiondb owns evaluator_version, active_version and its history.
//
// A version is immutable: registering an id again with another content is refused, so an answer cached under an
// id can never have come from another prompt. Exactly one version is active once the first is promoted.
package versiondb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/versiondb/internal/versiondbsql"
)

var (
	// ErrNotFound is returned when no version has the id asked for.
	ErrNotFound = errors.New("no such version")
	// ErrNoActive is returned when no version has been promoted yet.
	ErrNoActive = errors.New("no version is active: register one and promote it")
)

// ConflictError is returned when a version cannot be registered because of one that is there already.
type ConflictError struct {
	ID       string // the version asked for
	Existing string // the version in its way: the same id with another content, or another id with the same digest
}

func (e *ConflictError) Error() string {
	if e.ID == e.Existing {
		return fmt.Sprintf("version %s is registered with another content: versions never change, choose a new id", e.ID)
	}
	return fmt.Sprintf("version %s would give the same answers as version %s: use that one", e.ID, e.Existing)
}

// ActiveChangedError is returned when a promotion expected another version to be active.
type ActiveChangedError struct {
	Expected, Active string
}

func (e *ActiveChangedError) Error() string {
	return fmt.Sprintf("the active version is %q, not %q", e.Active, e.Expected)
}

// Stored is a version with what the database knows of it.
type Stored struct {
	evaluation.Version
	Digest    [32]byte
	Active    bool
	CreatedBy string
	CreatedAt time.Time
}

// Active is what a new ticket needs of the active version.
type Active struct {
	ID     string
	Digest [32]byte
	Route  string
}

// Register stores a version, and its route where that is new. It reports whether the version is new; an equal
// one that is there already is no error. A different one is a *ConflictError.
func Register(ctx context.Context, tx pgx.Tx, v evaluation.Version, by string) (created bool, err error) {
	if err := v.Validate(); err != nil {
		return false, err
	}
	departments, err := json.Marshal(v.Departments)
	if err != nil {
		return false, fmt.Errorf("encode departments of version %s: %w", v.ID, err)
	}
	q := versiondbsql.New(tx)
	if err := q.EnsureRoute(ctx, v.Route); err != nil {
		return false, fmt.Errorf("make route %s: %w", v.Route, err)
	}
	digest := v.Digest()
	n, err := q.InsertVersion(ctx, versiondbsql.InsertVersionParams{
		ID: v.ID, PromptVersion: v.PromptVersion, Provider: v.Provider, Model: v.Model, Effort: v.Effort, Prompt: v.Prompt,
		Departments: departments, MaxOutputTokens: int32(v.MaxOutputTokens), AnswerSchema: int32(v.AnswerSchema),
		Digest: digest[:], Route: v.Route,
		InputUSDPerMtok: v.Prices.InputUSDPerMTok, CachedInputUSDPerMtok: v.Prices.CachedInputUSDPerMTok, OutputUSDPerMtok: v.Prices.OutputUSDPerMTok,
		MaxAttempts: int32(v.MaxAttempts), UnknownPolicy: string(v.UnknownPolicy), MaxUnknownCalls: int32(v.MaxUnknownCalls),
		MaxAgeSeconds: v.MaxAge.Seconds(), CreatedBy: by,
	})
	if err != nil {
		return false, fmt.Errorf("insert version %s: %w", v.ID, err)
	}
	if n == 1 {
		return true, nil
	}
	existing, err := q.GetVersionByDigest(ctx, digest[:])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("look up the digest of version %s: %w", v.ID, err)
	}
	if err == nil && existing != v.ID {
		return false, &ConflictError{ID: v.ID, Existing: existing}
	}
	stored, err := Get(ctx, tx, v.ID)
	if err != nil {
		return false, err
	}
	if !equal(stored.Version, v) {
		return false, &ConflictError{ID: v.ID, Existing: v.ID}
	}
	return false, nil
}

// Get returns the version of an id, or ErrNotFound.
func Get(ctx context.Context, db versiondbsql.DBTX, id string) (Stored, error) {
	row, err := versiondbsql.New(db).GetVersion(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Stored{}, fmt.Errorf("version %q: %w", id, ErrNotFound)
	}
	if err != nil {
		return Stored{}, fmt.Errorf("get version %s: %w", id, err)
	}
	return stored(versiondbsql.ListVersionsRow(row))
}

// List returns all versions, the newest first.
func List(ctx context.Context, db versiondbsql.DBTX) ([]Stored, error) {
	rows, err := versiondbsql.New(db).ListVersions(ctx)
	if err != nil {
		return nil, fmt.Errorf("list versions: %w", err)
	}
	versions := make([]Stored, len(rows))
	for i, row := range rows {
		if versions[i], err = stored(row); err != nil {
			return nil, err
		}
	}
	return versions, nil
}

// GetActive returns the active version, or ErrNoActive.
func GetActive(ctx context.Context, db versiondbsql.DBTX) (Active, error) {
	row, err := versiondbsql.New(db).ActiveVersion(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return Active{}, ErrNoActive
	}
	if err != nil {
		return Active{}, fmt.Errorf("get the active version: %w", err)
	}
	return Active{ID: row.ID, Digest: [32]byte(row.Digest), Route: row.Route}, nil
}

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

// equal compares versions field by field, and prices by value: 0.5 is 0.50.
func equal(a, b evaluation.Version) bool {
	if !a.Prices.InputUSDPerMTok.Equal(b.Prices.InputUSDPerMTok) ||
		!a.Prices.CachedInputUSDPerMTok.Equal(b.Prices.CachedInputUSDPerMTok) ||
		!a.Prices.OutputUSDPerMTok.Equal(b.Prices.OutputUSDPerMTok) {
		return false
	}
	a.Prices, b.Prices = evaluation.Prices{}, evaluation.Prices{}
	return reflect.DeepEqual(a, b)
}

func stored(row versiondbsql.ListVersionsRow) (Stored, error) {
	s := Stored{
		Version: evaluation.Version{
			ID: row.ID, PromptVersion: row.PromptVersion, Provider: row.Provider, Model: row.Model, Effort: row.Effort, Prompt: row.Prompt,
			MaxOutputTokens: int(row.MaxOutputTokens), AnswerSchema: int(row.AnswerSchema), Route: row.Route,
			Prices: evaluation.Prices{
				InputUSDPerMTok: row.InputUSDPerMtok, CachedInputUSDPerMTok: row.CachedInputUSDPerMtok, OutputUSDPerMTok: row.OutputUSDPerMtok,
			},
			MaxAttempts: int(row.MaxAttempts), UnknownPolicy: evaluation.UnknownPolicy(row.UnknownPolicy), MaxUnknownCalls: int(row.MaxUnknownCalls),
			MaxAge: time.Duration(row.MaxAgeSeconds * float64(time.Second)),
		},
		Digest: [32]byte(row.Digest), Active: row.Active, CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt,
	}
	if err := json.Unmarshal(row.Departments, &s.Departments); err != nil {
		return Stored{}, fmt.Errorf("decode departments of version %s: %w", row.ID, err)
	}
	return s, nil
}
