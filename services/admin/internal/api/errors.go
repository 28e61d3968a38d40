package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/auditdb"
	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/policydb"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/services/admin/internal/reprocess"
)

const (
	reasonVersionNotFound      = "VERSION_NOT_FOUND"
	reasonVersionExists        = "VERSION_EXISTS"
	reasonActiveVersionChanged = "ACTIVE_VERSION_CHANGED"
	reasonCoverageTooLow       = "COVERAGE_TOO_LOW"
	reasonNothingToRollBackTo  = "NOTHING_TO_ROLL_BACK_TO"
	reasonPolicyNotFound       = "POLICY_NOT_FOUND"
	reasonPolicyExists         = "POLICY_EXISTS"
	reasonActivePolicyChanged  = "ACTIVE_POLICY_CHANGED"
	reasonCredentialNotFound   = "CREDENTIAL_NOT_FOUND" //nolint:gosec // the name of a reason
	reasonCredentialExists     = "CREDENTIAL_EXISTS"    //nolint:gosec // the name of a reason
	reasonSampleNotFound       = "SAMPLE_NOT_FOUND"
	reasonSampleExists         = "SAMPLE_EXISTS"
	reasonJobNotFound          = "JOB_NOT_FOUND"
	reasonJobState             = "JOB_STATE"
	reasonCostAboveMaximum     = "COST_ABOVE_MAXIMUM"
	reasonDeadLetterNotFound   = "DEAD_LETTER_NOT_FOUND"
	reasonRouteNotFound        = "ROUTE_NOT_FOUND"
	reasonFsckRunning          = "FSCK_RUNNING"
	reasonTicketNotFound       = "TICKET_NOT_FOUND"
	reasonTicketBusy           = "TICKET_BUSY"
)

// busyRetry is how long a call with the model may take, and mostly takes less.
const busyRetry = 5 * time.Second

// Errors is what callers are told of the services' domain errors; nil for any other.
func Errors(err error) *rpc.Error {
	var conflict *versiondb.ConflictError
	var changed *versiondb.ActiveChangedError
	var otherRules *policydb.ConflictError
	var otherPolicy *policydb.ActiveChangedError
	var sampleExists *comparison.SampleExistsError
	var jobState *jobdb.StateError
	var dear *reprocess.CostError
	var noVersion *versiondb.NotFoundError
	var busy *erasure.BusyError
	switch {
	case errors.As(err, &noVersion):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonVersionNotFound, Message: fmt.Sprintf("there is no version %s", noVersion.ID), Cause: err}
	case errors.Is(err, versiondb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonVersionNotFound, Message: "there is no such version", Cause: err}
	case errors.As(err, &conflict):
		return &rpc.Error{
			Code: codes.AlreadyExists, Reason: reasonVersionExists, Message: conflict.Error(), Cause: err,
			Metadata: map[string]string{"existingId": conflict.Existing}, Violations: differences("version", conflict.Differences),
		}
	case errors.As(err, &changed):
		return activeChanged(changed)
	case errors.Is(err, versiondb.ErrNothingReplaced):
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: reasonNothingToRollBackTo, Cause: err, Message: "no version has been replaced yet: there is none to roll back to",
		}
	case errors.Is(err, policydb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonPolicyNotFound, Message: "there is no such policy", Cause: err}
	case errors.As(err, &otherRules):
		return &rpc.Error{
			Code: codes.AlreadyExists, Reason: reasonPolicyExists, Message: otherRules.Error(), Cause: err,
			Metadata: map[string]string{"existingId": otherRules.ID}, Violations: differences("policy", otherRules.Differences),
		}
	case errors.As(err, &otherPolicy):
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: reasonActivePolicyChanged, Message: otherPolicy.Error(), Cause: err,
			Metadata: map[string]string{"expectedActiveId": otherPolicy.Expected, "activeId": otherPolicy.Active},
		}
	case errors.Is(err, comparison.ErrSampleNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonSampleNotFound, Message: "there is no such sample", Cause: err}
	case errors.As(err, &sampleExists):
		return &rpc.Error{Code: codes.AlreadyExists, Reason: reasonSampleExists, Message: sampleExists.Error(), Cause: err}
	case errors.Is(err, credentialdb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonCredentialNotFound, Message: "there is no such credential", Cause: err}
	case errors.Is(err, credentialdb.ErrTaken):
		return &rpc.Error{Code: codes.AlreadyExists, Reason: reasonCredentialExists, Message: credentialdb.ErrTaken.Error(), Cause: err}
	case errors.Is(err, outbox.ErrNotDead):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonDeadLetterNotFound, Message: "there is no such dead letter", Cause: err}
	case errors.Is(err, route.ErrUnknownRoute):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonRouteNotFound, Message: "there is no such route", Cause: err}
	case errors.Is(err, jobdb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonJobNotFound, Message: "there is no such job", Cause: err}
	case errors.As(err, &jobState):
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: reasonJobState, Message: jobState.Error(), Cause: err, Metadata: map[string]string{"state": string(jobState.Is)},
		}
	case errors.As(err, &dear):
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: reasonCostAboveMaximum, Message: dear.Error() + "; nothing is begun", Cause: err,
			Metadata: map[string]string{
				"calls": strconv.FormatInt(dear.Estimate.Calls(), 10), "estimatedCostUsd": dear.Estimate.CostUSD.String(), "maxCostUsd": dear.Max.String(),
			},
		}
	case errors.Is(err, ticketdb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonTicketNotFound, Message: "there is no such ticket", Cause: err}
	case errors.As(err, &busy):
		return &rpc.Error{
			Code: codes.Unavailable, Reason: reasonTicketBusy, RetryAfter: busyRetry, Cause: err, Metadata: map[string]string{"why": string(busy.Why)},
			Message: busy.Error() + ": nothing is changed, and the call is to be made again",
		}
	case errors.Is(err, auditdb.ErrKeyReused):
		return &rpc.Error{
			Code: codes.FailedPrecondition, Reason: rpc.ReasonKeyReused, Cause: err, Metadata: map[string]string{"field": "request_id"},
			Message: "request_id: this idempotency key was used with another request; nothing is changed",
		}
	default:
		return nil
	}
}

// differences says field by field what differs from what is stored.
func differences(path string, all []evaluation.Difference) []rpc.Violation {
	var violations []rpc.Violation
	for _, d := range all {
		violations = append(violations, rpc.Violation{Field: path + "." + d.Field, Reason: "DIFFERS", Description: differs(d.Old, d.New, d.Lines)})
	}
	return violations
}

// maxShown bounds, in bytes, what is told of one field: an error travels in a header.
const maxShown = 300

// differs says what is stored and what was sent.
func differs(stored, sent string, lines bool) string {
	if lines {
		return "differs:\n" + shortened(udiff.Unified("stored", "sent", stored, sent), 2*maxShown)
	}
	return fmt.Sprintf("is stored as %q, not %q", shortened(stored, maxShown/2), shortened(sent, maxShown/2))
}

// shortened is a text of at most so many bytes.
func shortened(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func activeChanged(changed *versiondb.ActiveChangedError) *rpc.Error {
	message := fmt.Sprintf("the active version is %s, not %s", changed.Active, changed.Expected)
	if changed.Active == "" {
		message = fmt.Sprintf("no version is active yet, so %s is not", changed.Expected)
	}
	return &rpc.Error{
		Code: codes.FailedPrecondition, Reason: reasonActiveVersionChanged, Message: message, Cause: changed,
		Metadata: map[string]string{"expectedActiveId": changed.Expected, "activeId": changed.Active},
	}
}
