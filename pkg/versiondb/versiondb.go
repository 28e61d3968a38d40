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
	// ErrNothingReplaced is returned by a rollback when the last promotion has replaced no version.
	ErrNothingReplaced = errors.New("no version has been replaced yet")
)

// ConflictError is returned when a version cannot be registered because of one that is there already.
type ConflictError struct {
	ID       string // the version asked for
	Existing string // the version in its way: the same id with another content, or another id with the same digest
	// Differences are those from the existing version to the one asked for, when they have the same id.
	Differences []evaluation.Difference
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
	if differences := evaluation.Diff(stored.Version, v); len(differences) > 0 {
		return false, &ConflictError{ID: v.ID, Existing: v.ID, Differences: differences}
	}
	return false, nil
}

// NotFoundError is the ErrNotFound of an id.
type NotFoundError struct{ ID string }

func (e *NotFoundError) Error() string { return fmt.Sprintf("version %q: %v", e.ID, ErrNotFound) }

// Unwrap makes it an ErrNotFound.
func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// Get returns the version of an id, or a NotFoundError.
func Get(ctx context.Context, db versiondbsql.DBTX, id string) (Stored, error) {
	row, err := versiondbsql.New(db).GetVersion(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Stored{}, &NotFoundError{id}
	}
	if err != nil {
		return Stored{}, fmt.Errorf("get version %s: %w", id, err)
	}
	return stored(versiondbsql.ListVersionsRow(row))
}

// List returns up to most versions, the newest first, from the one that follows the id after, or from the first.
func List(ctx context.Context, db versiondbsql.DBTX, after string, most int) ([]Stored, error) {
	rows, err := versiondbsql.New(db).ListVersions(ctx, versiondbsql.ListVersionsParams{After: after, Most: int32(most)})
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
