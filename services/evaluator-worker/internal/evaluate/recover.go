package evaluate

import (
	"context"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// Recoverer is a provider that can be asked for the response of an earlier call. It reports false when it has none, or
// cannot tell; the error, a *failure.Failure, is then why it cannot, never of class unknown: asking buys nothing. Beside
// a response that was found, the error is why it can be no answer, as in Provider.
type Recoverer interface {
	Recover(ctx context.Context, v evaluation.Version, call uuid.UUID) (r inference.Response, found bool, err error)
}

// recoverLost asks the provider for what became of the key's calls of unknown outcome, where the version says so. It
// reports false when the item's own call is to be made: there was nothing to ask for, or nothing was found and the
// version allows another call.
func (w *Worker) recoverLost(ctx context.Context, provider Provider, it *item) (s settlement, done bool) {
	asked, can := provider.(Recoverer)
	if it.version.UnknownPolicy != evaluation.Recover || it.UnknownCalls == 0 || !can {
		return settlement{}, false
	}
	lost, err := ledger.UnknownCalls(ctx, w.Settles, it.Key)
	if err != nil {
		return settlement{item: it, release: true}, true
	}
	for _, call := range lost {
		response, found, err := asked.Recover(ctx, it.version, call)
		if found {
			s := judge(it, call, response, err)
			s.unsent = true
			return s, true
		}
		if err != nil {
			return settlement{item: it, failure: failureOf(err), unsent: true}, true
		}
	}
	if it.UnknownCalls > it.version.MaxUnknownCalls || it.Attempts > it.version.MaxAttempts {
		f := failure.New(failure.UnknownOutcome, "the provider has no response of the calls that were lost", nil)
		return settlement{item: it, failure: f, unsent: true}, true
	}
	return settlement{}, false
}
