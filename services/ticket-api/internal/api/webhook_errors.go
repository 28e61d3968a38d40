package api

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// webhookError is what callers are told of the errors of webhooks; nil for any other.
func webhookError(err error) *rpc.Error {
	refused := func(code codes.Code, reason, message string) *rpc.Error {
		return &rpc.Error{Code: code, Reason: reason, Message: message, Cause: err}
	}
	switch {
	case errors.Is(err, webhook.ErrNotFound):
		return refused(codes.NotFound, "WEBHOOK_ENDPOINT_NOT_FOUND", "there is no such webhook endpoint")
	case errors.Is(err, webhook.ErrDeliveryNotFound):
		return refused(codes.NotFound, "WEBHOOK_DELIVERY_NOT_FOUND", "there is no such delivery")
	case errors.Is(err, webhook.ErrBodyErased):
		return refused(codes.FailedPrecondition, "WEBHOOK_DELIVERY_EXPIRED", "the delivery is too old: what was sent is not kept any more")
	case errors.Is(err, webhook.ErrRequestReused):
		e := refused(codes.FailedPrecondition, rpc.ReasonKeyReused, "request_id: this idempotency key was used with another request; nothing is changed")
		e.Metadata = map[string]string{"field": "request_id"}
		return e
	case errors.Is(err, webhook.ErrTooManyEndpoints):
		return refused(codes.FailedPrecondition, "TOO_MANY_WEBHOOK_ENDPOINTS", webhook.ErrTooManyEndpoints.Error())
	case errors.Is(err, webhook.ErrTooManySecrets):
		return refused(codes.FailedPrecondition, "TOO_MANY_WEBHOOK_SECRETS", webhook.ErrTooManySecrets.Error()+": wait until one ends, or rotate with a shorter grace")
	case errors.Is(err, webhook.ErrDisabled):
		return refused(codes.FailedPrecondition, "WEBHOOK_ENDPOINT_DISABLED", "the endpoint is disabled: enable it first")
	case errors.Is(err, webhook.ErrNoKeys):
		return refused(codes.FailedPrecondition, "WEBHOOKS_NOT_CONFIGURED",
			"webhooks need keys for their secrets: set EVALONCE_WEBHOOK_KEYS of ticket-api and evaluator-worker to name=key, 32 random bytes in base64")
	default:
		return nil
	}
}
