// Package evaluate turns claimed work into answers: claim, look whether the answer is known or paid for, call
// the model, judge, settle.
//
// Each claimed evaluation makes at most one call, whose ledger row was committed with the claim. A response that
// arrived is saved whatever else fails, also when the lease was lost meanwhile; the row of work is changed only
// by who holds its lease.
package evaluate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// Provider makes one model call. The response carries what arrived also when there is an error, which is a
// *failure.Failure.
type Provider interface {
	Call(ctx context.Context, r inference.Request) (inference.Response, error)
}

// errStopping is the cause of a call cut short because the worker's grace is over.
var errStopping = errors.New("the worker is stopping")

// item is one claimed evaluation on its way.
type item struct {
	outbox.Claimed
	version evaluation.Version
	route   string
	terms
	span   trace.Span
	decide func(evaluation.Answer) evaluation.Decision

	claimedAt, calledAt, returnedAt time.Time // the latter two are zero where no call was made
}

// terms are what a claim was made under.
type terms struct {
	probe    uuid.UUID // set when the call is its route's probe
	ramp     uuid.UUID // set when the call is one of its route's ramp
	perToken float64   // tokens expected for one estimated from the size; 0 where the route does not limit them
}

// settlement is what is to be written of an item, all of it or none. Work that is neither retried, buried nor
// released is finished.
type settlement struct {
	item    *item
	closure *ledger.Closure // nil when no call was made
	result  *ledger.Result  // nil unless there is a new answer
	failure *failure.Failure
	release bool // nothing was begun
	unsent  bool // the item's own call was not made, because an earlier one of its key was looked into
	saved   bool // only the response could be written; the answer is judged again by a later claim
}

// evaluate takes one item from its claim to its settlement. It has no effect but the call.
func (w *Worker) evaluate(ctx context.Context, it *item, timeout time.Duration) settlement {
	switch {
	case it.Answered:
		crashpoint.Pass(crashpoint.KnownAnswered)
		return settlement{item: it}
	case it.SavedCallID != uuid.Nil:
		crashpoint.Pass(crashpoint.KnownSaved)
		response, err := inference.ParseSaved(it.version.Provider, it.SavedResponse)
		judged := judgeAgain(it, response, err)
		crashpoint.Pass(crashpoint.KnownJudged)
		return judged
	case ctx.Err() != nil:
		return settlement{item: it, release: true}
	}
	text, err := content.Canonical(it.Subject, it.Message)
	if err != nil {
		f := failure.New(failure.BadContent, "the stored text has no canonical form", err)
		return settlement{item: it, failure: f, closure: &ledger.Closure{CallID: it.CallID, Outcome: ledger.Failed, Failure: f}}
	}
	provider, ok := w.providers[it.version.Provider]
	if !ok {
		f := failure.New(failure.Unauthorized, "the worker has no credentials for provider "+it.version.Provider, nil)
		return settlement{item: it, failure: f, closure: &ledger.Closure{CallID: it.CallID, Outcome: ledger.Failed, Failure: f}}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s, done := w.recoverLost(ctx, provider, it); done {
		return s
	}
	crashpoint.Pass(crashpoint.CallSending)
	it.calledAt = time.Now()
	response, err := provider.Call(ctx, inference.Request{Version: it.version, Text: text, CallID: it.CallID})
	it.returnedAt = time.Now()
	crashpoint.Pass(crashpoint.CallReturned)
	return judge(it, it.CallID, response, err)
}

// judge decides what a response is: an answer, a refusal, or a failure.
func judge(it *item, call uuid.UUID, r inference.Response, err error) settlement {
	closure := &ledger.Closure{
		CallID: call, HTTPStatus: r.HTTPStatus, ProviderRequestID: r.ProviderRequestID, ServedModel: r.ServedModel, Response: r.Raw,
	}
	if it.span != nil {
		if sc := it.span.SpanContext(); sc.HasTraceID() {
			closure.TraceID = sc.TraceID().String()
		}
	}
	if r.Usage != (evaluation.Usage{}) {
		closure.Usage, closure.CostUSD = &r.Usage, it.version.Prices.Cost(r.Usage)
	}
	f := failureOf(err)
	var answer evaluation.Answer
	if f == nil {
		var violation *evaluation.ContractError
		if answer, err = evaluation.ParseAnswer(r.Content, it.version.Departments); errors.As(err, &violation) {
			f = failure.New(failure.ContractViolation, violation.Reason, err)
		}
	}
	switch {
	case f == nil:
		closure.Outcome = ledger.Answered
		return settlement{item: it, closure: closure, result: &ledger.Result{
			Key: it.Key, ContentHash: it.ContentHash, TicketID: it.TicketID, VersionID: it.VersionID,
			Answer: answer, Decision: it.decide(answer),
			ModelVersion: r.ServedModel, PromptVersion: it.version.PromptVersion, CallID: call,
		}}
	case f.Class == failure.Unknown:
		closure.Outcome = ledger.Unknown
	case f.Class == failure.Permanent && r.HTTPStatus/100 == 2:
		closure.Outcome = ledger.Rejected
	default:
		closure.Outcome = ledger.Failed
	}
	closure.Failure = f
	return settlement{item: it, closure: closure, failure: f}
}

// judgeAgain judges a saved response. What was rejected before stays rejected, be it for another reason: a transient
// failure would buy it again.
func judgeAgain(it *item, r inference.Response, err error) settlement {
	s := judge(it, it.SavedCallID, r, err)
	if s.failure != nil && s.failure.Class != failure.Permanent && it.SavedReason.Class() == failure.Permanent {
		s.failure = failure.New(it.SavedReason, "", s.failure)
		s.closure.Outcome, s.closure.Failure = ledger.Rejected, s.failure
	}
	return s
}

// failureOf takes a provider's error for what it is; an unclassified one is transient.
func failureOf(err error) *failure.Failure {
	if err == nil {
		return nil
	}
	var f *failure.Failure
	if errors.As(err, &f) {
		return f
	}
	return failure.New(failure.ServerError, "unclassified", fmt.Errorf("unclassified: %w", err))
}
