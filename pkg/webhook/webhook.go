// Package webhook owns webhook_endpoint, webhook_secret, webhook_delivery and webhook_supersession: who wants to be told
// of its tickets, what it is told, and how far that has come.
//
// A delivery is written in the transaction that made its event true, so that no event is forgotten and none is told that
// did not happen. It is sent at least once, under an id that stays the same, by the same means as evaluations are done:
// leased, extended, fenced, reclaimed, by the database's clock. An endpoint is told of one event once; deliveries of one
// ticket are numbered, and come in no order. README.md has the events, and the statements in order.
package webhook

import (
	"errors"
	"fmt"
)

// Event is what an endpoint can be told.
type Event string

// The events. A test is sent to whoever asks for one, and is no event of a ticket.
const (
	Succeeded  Event = "evaluation.succeeded"
	DeadLetter Event = "evaluation.dead_letter"
	Superseded Event = "evaluation.superseded"
	Test       Event = "endpoint.test"
)

// Events returns those that an endpoint can be registered for.
func Events() []Event { return []Event{Succeeded, DeadLetter, Superseded} }

var (
	// ErrNotFound is returned for an endpoint that does not exist or is another client's.
	ErrNotFound = errors.New("no such webhook endpoint")
	// ErrDeliveryNotFound is returned for a delivery that is not the endpoint's.
	ErrDeliveryNotFound = errors.New("no such delivery")
	// ErrBodyErased is returned for a delivery of which only the record is kept.
	ErrBodyErased = errors.New("what was delivered is not kept any more")
	// ErrNoKeys is returned where secrets can be neither made nor read.
	ErrNoKeys = errors.New("no keys are configured for webhook secrets")
	// ErrRequestReused is returned for a request id that was used with another request.
	ErrRequestReused = errors.New("the request id was used with another request")
	// ErrTooManyEndpoints is returned to a client that has all the endpoints that it may have.
	ErrTooManyEndpoints = fmt.Errorf("a client has at most %d webhook endpoints", EndpointsMost)
	// ErrTooManySecrets is returned for a rotation while too many older secrets still sign.
	ErrTooManySecrets = fmt.Errorf("an endpoint signs with at most %d secrets at once", secretsMost)
	// ErrDisabled is returned for a delivery that could not leave.
	ErrDisabled = errors.New("the webhook endpoint is disabled")
)
