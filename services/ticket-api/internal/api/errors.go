package api

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

const (
	reasonTicketNotFound  = "TICKET_NOT_FOUND"
	reasonNoActiveVersion = "NO_ACTIVE_VERSION"
	reasonKeyNotSupported = "IDEMPOTENCY_KEY_NOT_SUPPORTED"
	reasonKeyExpired      = "IDEMPOTENCY_KEY_EXPIRED"
	reasonTooManyTickets  = "TOO_MANY_TICKETS"
)

// expiryRetry is as short as a retry may be: the key is free by now.
const expiryRetry = 100 * time.Millisecond

// activationRetry is what a client is told to wait for an operator to promote a version.
const activationRetry = 30 * time.Second

// Errors is what callers are told of the service's domain errors; nil for any other.
func Errors(err error) *rpc.Error {
	switch {
	case errors.Is(err, ticketdb.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: reasonTicketNotFound, Message: "there is no such ticket", Cause: err}
	case errors.Is(err, submit.ErrKeyReused):
		return keyReused(err)
	case errors.Is(err, submit.ErrExpired):
		// The key was taken when it was asked for, and free when its response was to be read: nothing is wrong with either.
		return &rpc.Error{
			Code: codes.Unavailable, Reason: reasonKeyExpired, RetryAfter: expiryRetry, Cause: err,
			Message: "this idempotency key has expired during the call, which stored nothing; the call may be repeated",
		}
	case errors.Is(err, submit.ErrNoActiveVersion):
		// Not the caller's fault, and over when a version is promoted: the same request will do then.
		return &rpc.Error{
			Code: codes.Unavailable, Reason: reasonNoActiveVersion, RetryAfter: activationRetry, Cause: err,
			Message: "no evaluator version is active yet: nothing can be evaluated",
		}
	case errors.Is(err, submit.ErrStopped):
		return &rpc.Error{
			Code: codes.Unavailable, Reason: rpc.ReasonStopping, RetryAfter: time.Second, Cause: err, Message: "the server is stopping",
		}
	default:
		return webhookError(err)
	}
}

func keyReused(err error) *rpc.Error {
	field := "request_id"
	var batch *submit.BatchError
	if errors.As(err, &batch) {
		field = fmt.Sprintf("requests[%d].request_id", batch.Index)
	}
	return &rpc.Error{
		Code: codes.FailedPrecondition, Reason: rpc.ReasonKeyReused, Cause: err, Metadata: map[string]string{"field": field},
		Message: field + ": this idempotency key was used with another ticket; nothing is stored",
	}
}
