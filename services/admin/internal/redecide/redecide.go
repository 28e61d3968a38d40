// Package redecide decides stored answers anew by the active policy, as a job, without any model call.
//
// A chunk goes on where the one before ended, in the order of the answers' keys, and writes the decisions that change. It
// holds the active policy while it does: what it writes is the active policy's, and when another one is activated the job
// pauses before its next chunk. Answers that come meanwhile are decided by the workers, which read the active policy once a
// second; a job that is begun right after an activation waits until they have done so.
package redecide

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb"
	"github.com/evalonce/evalonce/services/admin/internal/job"
)

const (
	// Settle is how long after an activation all workers decide by the new policy, slow ones too.
	Settle = 10 * time.Second
	// Superseded begins the reason of a job that is paused because another policy became active.
	Superseded = "superseded"

	chunk = 2000
	// PreviewMost bounds the answers that a preview looks at.
	PreviewMost = 200_000
)

// Spec is what a job was asked for.
type Spec struct {
	PolicyID string `json:"policy_id"`
}

// The names of a job's counts. Changes of priority are counted by both, such as "priority low>high".
const (
	countSeen     = "seen"
	countChanged  = "changed"
	countPriority = "priority "
	becomes       = ">"
)

type cursor struct {
	After content.Key `json:"after"`
}

// Step returns the step of jobs, which waits so long after an activation.
func Step(settle time.Duration) job.Step {
	return func(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
		var spec Spec
		if err := json.Unmarshal(j.Spec, &spec); err != nil {
			return jobdb.Progress{}, fmt.Errorf("decode the spec of job %s: %w", j.ID, err)
		}
		var at cursor
		if err := json.Unmarshal(j.Cursor, &at); err != nil {
			return jobdb.Progress{}, fmt.Errorf("decode the cursor of job %s: %w", j.ID, err)
		}
		active, age, err := policydb.HoldActive(ctx, tx)
		switch {
		case err != nil:
			return jobdb.Progress{}, err
		case active != spec.PolicyID:
			return jobdb.Progress{Pause: fmt.Sprintf("%s: policy %s is active now", Superseded, active)}, nil
		case age < settle:
			return jobdb.Progress{Wait: settle - age}, nil
		}
		return next(ctx, tx, spec.PolicyID, at.After)
	}
}

// next decides the answers of one chunk.
func next(ctx context.Context, tx pgx.Tx, policyID string, after content.Key) (jobdb.Progress, error) {
	rules, err := compiled(ctx, tx, policyID)
	if err != nil {
		return jobdb.Progress{}, err
	}
	stored, err := ledger.DecisionsAfter(ctx, tx, after, chunk)
	if err != nil {
		return jobdb.Progress{}, err
	}
	add := map[string]int64{countSeen: int64(len(stored))}
	var changed []ledger.Decided
	for _, d := range stored {
		decision := rules.Decide(d.Answer)
		if same(decision, d.Decision) {
			continue
		}
		add[countChanged]++
		if decision.Priority != d.Decision.Priority {
			add[countPriority+d.Decision.Priority+becomes+decision.Priority]++
		}
		d.Decision = decision
		changed = append(changed, d)
	}
	if len(changed) > 0 {
		if err := ledger.SetDecisions(ctx, tx, policyID, changed); err != nil {
			return jobdb.Progress{}, err
		}
	}
	progress := jobdb.Progress{Add: add, Done: len(stored) < chunk}
	if len(stored) > 0 {
		if progress.Cursor, err = json.Marshal(cursor{After: stored[len(stored)-1].Key}); err != nil {
			return jobdb.Progress{}, fmt.Errorf("encode a cursor: %w", err)
		}
	}
	return progress, nil
}

// same reports whether two policies come to the same. An answer then keeps the name of the one that decided it.
func same(a, b evaluation.Decision) bool { return a.Priority == b.Priority && a.Queue == b.Queue }

func compiled(ctx context.Context, tx pgx.Tx, policyID string) (*policy.Compiled, error) {
	stored, err := policydb.Get(ctx, tx, policyID)
	if err != nil {
		return nil, err
	}
	rules, err := policy.Compile(stored.Policy)
	if err != nil {
		return nil, fmt.Errorf("compile policy %s: %w", policyID, err)
	}
	return rules, nil
}

// Counts is what a job has come to.
type Counts struct {
	Seen, Changed int64
	Priorities    []PriorityChange // in the order of their names
}

// PriorityChange counts answers whose priority has changed in one way.
type PriorityChange struct {
	Old, New string
	Answers  int64
}

// CountsOf reads the counts of a job.
func CountsOf(j jobdb.Job) Counts {
	c := Counts{Seen: j.Counts[countSeen], Changed: j.Counts[countChanged]}
	for _, name := range slices.Sorted(maps.Keys(j.Counts)) {
		if change, ok := strings.CutPrefix(name, countPriority); ok {
			before, after, _ := strings.Cut(change, becomes)
			c.Priorities = append(c.Priorities, PriorityChange{Old: before, New: after, Answers: j.Counts[name]})
		}
	}
	return c
}

// Change is a change of a decision, but for the policies' names.
type Change struct {
	OldPriority, OldQueue string
	NewPriority, NewQueue string
}

// Foretold is what a policy would change.
type Foretold struct {
	Answers int64
	Sampled bool // there are more answers
	Changes map[Change]int64
}

// Preview decides stored answers by a policy, a random sample where they are too many, and writes nothing.
func Preview(ctx context.Context, tx pgx.Tx, policyID string) (Foretold, error) {
	rules, err := compiled(ctx, tx, policyID)
	if err != nil {
		return Foretold{}, err
	}
	f := Foretold{Changes: map[Change]int64{}}
	for after := content.Key(""); ; {
		stored, err := ledger.DecisionsAfter(ctx, tx, after, chunk)
		if err != nil {
			return Foretold{}, err
		}
		for _, d := range stored {
			if f.Answers == PreviewMost {
				f.Sampled = true
				return f, nil
			}
			f.Answers++
			if decision := rules.Decide(d.Answer); !same(decision, d.Decision) {
				f.Changes[Change{
					OldPriority: d.Decision.Priority, OldQueue: d.Decision.Queue, NewPriority: decision.Priority, NewQueue: decision.Queue,
				}]++
			}
		}
		if len(stored) < chunk {
			return f, nil
		}
		after = stored[len(stored)-1].Key
	}
}
