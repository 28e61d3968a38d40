package evaluate

import (
	"context"
	"fmt"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/policy"
	"github.com/evalonce/evalonce/pkg/policydb"
)

// refreshPolicy takes over the active policy. It succeeds before the first claim, so that every answer finds one.
func (w *Worker) refreshPolicy(ctx context.Context) error {
	active, err := policydb.GetActive(ctx, w.Settles)
	if err != nil {
		return err
	}
	if known := w.policy.Load(); known != nil && known.Policy().ID == active.ID {
		return nil // a policy never changes
	}
	compiled, err := policy.Compile(active.Policy)
	if err != nil {
		return fmt.Errorf("compile policy %s: %w", active.ID, err)
	}
	w.policy.Store(compiled)
	return nil
}

// decide says what follows from an answer that has just come, be its call an old one.
func (w *Worker) decide(a evaluation.Answer) evaluation.Decision { return w.policy.Load().Decide(a) }
