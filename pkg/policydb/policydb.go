// Package policydb owns policy, active_policy and its history.
//
// A policy is immutable: registering an id again with another content is refused, so a decision that names its policy can
// be explained for good. Exactly one policy is active, from the beginning: the migrations bring the first one along.
package policydb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb/internal/policydbsql"
)

// ErrNotFound is returned when no policy has the id asked for.
var ErrNotFound = errors.New("no such policy")

// ConflictError is returned when a policy cannot be registered because its id has another content.
type ConflictError struct {
	ID          string
	Differences []evaluation.Difference // from what is stored to what was asked for
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("policy %s is registered with another content: policies never change, choose a new id", e.ID)
}

// ActiveChangedError is returned when an activation expected another policy to be active.
type ActiveChangedError struct {
	Expected, Active string
}

func (e *ActiveChangedError) Error() string {
	return fmt.Sprintf("the active policy is %s, not %s", e.Active, e.Expected)
}

// Stored is a policy with what the database knows of it.
type Stored struct {
	policy.Policy
	Digest    [32]byte
	Active    bool
	CreatedBy string
	CreatedAt time.Time
}

// Register stores a policy, and reports whether it is new; an equal one that is there already is no error. A different one
// is a *ConflictError. A policy that does not compile is refused with the errors of [policy.Compile].
func Register(ctx context.Context, tx pgx.Tx, p policy.Policy, by string) (created bool, err error) {
	if _, err := policy.Compile(p); err != nil {
		return false, err
	}
	rules, err := json.Marshal(p.Rules)
	if err != nil {
		return false, fmt.Errorf("encode the rules of policy %s: %w", p.ID, err)
	}
	digest := p.Digest()
	n, err := policydbsql.New(tx).InsertPolicy(ctx, policydbsql.InsertPolicyParams{
		ID: p.ID, Description: p.Description, UrgentThreshold: p.UrgentThreshold, Rules: rules, Digest: digest[:], CreatedBy: by,
	})
	if err != nil {
		return false, fmt.Errorf("insert policy %s: %w", p.ID, err)
	}
	if n == 1 {
		return true, nil
	}
	stored, err := Get(ctx, tx, p.ID)
	if err != nil {
		return false, err
	}
	if differences := policy.Diff(stored.Policy, p); len(differences) > 0 {
		return false, &ConflictError{ID: p.ID, Differences: differences}
	}
	return false, nil
}

// Get returns the policy of an id, or ErrNotFound.
func Get(ctx context.Context, db policydbsql.DBTX, id string) (Stored, error) {
	row, err := policydbsql.New(db).GetPolicy(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Stored{}, fmt.Errorf("policy %q: %w", id, ErrNotFound)
	}
	if err != nil {
		return Stored{}, fmt.Errorf("get policy %s: %w", id, err)
	}
	return stored(policydbsql.ListPoliciesRow(row))
}

// GetActive returns the active policy.
func GetActive(ctx context.Context, db policydbsql.DBTX) (Stored, error) {
	row, err := policydbsql.New(db).ActivePolicy(ctx)
	if err != nil {
		return Stored{}, fmt.Errorf("get the active policy: %w", err)
	}
	return stored(policydbsql.ListPoliciesRow(row))
}

// HoldActive keeps the active policy active until the transaction ends, and returns its id and for how long it has been.
func HoldActive(ctx context.Context, tx pgx.Tx) (id string, age time.Duration, err error) {
	row, err := policydbsql.New(tx).HoldActivePolicy(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("hold the active policy: %w", err)
	}
	return row.PolicyID, time.Duration(row.AgeSeconds * float64(time.Second)), nil
}

// List returns up to most policies, the newest first, from the one that follows the id after, or from the first.
func List(ctx context.Context, db policydbsql.DBTX, after string, most int) ([]Stored, error) {
	rows, err := policydbsql.New(db).ListPolicies(ctx, policydbsql.ListPoliciesParams{After: after, Most: int32(most)})
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	policies := make([]Stored, len(rows))
	for i, row := range rows {
		if policies[i], err = stored(row); err != nil {
			return nil, err
		}
	}
	return policies, nil
}

// Activate makes a policy the active one and records it, and returns the one that was active until then. With a non-empty
// expected id it is a compare-and-set: a *ActiveChangedError says that another policy is active. Activating the active
// policy changes nothing.
func Activate(ctx context.Context, tx pgx.Tx, id, expected, by string) (replaced string, err error) {
	if _, err := Get(ctx, tx, id); err != nil {
		return "", err
	}
	q := policydbsql.New(tx)
	active, err := q.LockActivePolicy(ctx)
	if err != nil {
		return "", fmt.Errorf("lock the active policy: %w", err)
	}
	if expected != "" && expected != active {
		return "", &ActiveChangedError{Expected: expected, Active: active}
	}
	if active == id {
		return active, nil
	}
	if err := q.SetActivePolicy(ctx, policydbsql.SetActivePolicyParams{PolicyID: id, ActivatedBy: by}); err != nil {
		return "", fmt.Errorf("activate policy %s: %w", id, err)
	}
	if err := q.RecordActivation(ctx, policydbsql.RecordActivationParams{PolicyID: id, Replaced: active, ActivatedBy: by}); err != nil {
		return "", fmt.Errorf("record the activation of policy %s: %w", id, err)
	}
	return active, nil
}

// Activation is an entry of the history of the active policy.
type Activation struct {
	ID       int64 // later ones have higher ones
	PolicyID string
	Replaced string // "" for the first
	By       string
	At       time.Time
}

// Activations returns up to most activations, the newest first, with ids below a given one unless that is 0.
func Activations(ctx context.Context, db policydbsql.DBTX, below int64, most int) ([]Activation, error) {
	rows, err := policydbsql.New(db).ListActivations(ctx, policydbsql.ListActivationsParams{Below: below, Most: int32(most)})
	if err != nil {
		return nil, fmt.Errorf("list activations: %w", err)
	}
	activations := make([]Activation, len(rows))
	for i, row := range rows {
		activations[i] = Activation{ID: row.ID, PolicyID: row.PolicyID, By: row.ActivatedBy, At: row.ActivatedAt}
		if row.Replaced != nil {
			activations[i].Replaced = *row.Replaced
		}
	}
	return activations, nil
}

func stored(row policydbsql.ListPoliciesRow) (Stored, error) {
	s := Stored{
		Policy: policy.Policy{ID: row.ID, Description: row.Description, UrgentThreshold: row.UrgentThreshold},
		Digest: [32]byte(row.Digest), Active: row.Active, CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt,
	}
	if err := json.Unmarshal(row.Rules, &s.Rules); err != nil {
		return Stored{}, fmt.Errorf("decode the rules of policy %s: %w", row.ID, err)
	}
	return s, nil
}
