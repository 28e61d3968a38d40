package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/webhook"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// ListWebhookDeliveries returns a page of an endpoint's deliveries, newest first.
func (s *Webhooks) ListWebhookDeliveries(ctx context.Context, r *ticketv1.ListWebhookDeliveriesRequest) (*ticketv1.ListWebhookDeliveriesResponse, error) {
	client, id, err := s.endpoint(ctx, "endpoint_id", r.GetEndpointId())
	if err != nil {
		return nil, err
	}
	filter, violations := deliveryFilterOf(r)
	limit := defaultPage
	switch size := r.GetPageSize(); {
	case size < 0:
		violations = append(violations, rpc.Violation{Field: "page_size", Reason: "OUT_OF_RANGE", Description: "must not be negative"})
	case size > 0:
		limit = min(int(size), maxPage)
	}
	before, ok := decodeDeliveryToken(r.GetPageToken(), id, filter)
	if !ok {
		violations = append(violations, rpc.Violation{
			Field: "page_token", Reason: "MALFORMED", Description: "must be the next_page_token of a page with the same filter",
		})
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	deliveries, next, err := s.endpoints.Deliveries(ctx, client, id, filter, before, limit)
	if err != nil {
		return nil, err
	}
	response := &ticketv1.ListWebhookDeliveriesResponse{Deliveries: make([]*ticketv1.WebhookDelivery, len(deliveries))}
	for i, d := range deliveries {
		response.Deliveries[i] = deliveryOf(d)
	}
	if next != uuid.Nil {
		response.NextPageToken = encodeDeliveryToken(next, id, filter)
	}
	return response, nil
}

func deliveryFilterOf(r *ticketv1.ListWebhookDeliveriesRequest) (f webhook.DeliveryFilter, violations []rpc.Violation) {
	var known bool
	if f.State, known = deliveryState(r.GetState()); !known {
		violations = append(violations, rpc.Violation{Field: "state", Reason: "UNKNOWN", Description: "must be one of the states"})
	}
	f.Event = webhook.Event(r.GetEvent())
	if f.Event != "" && f.Event != webhook.Test && !slices.Contains(webhook.Events(), f.Event) {
		violations = append(violations, rpc.Violation{Field: "event", Reason: "UNKNOWN", Description: "must be one of the events"})
	}
	if r.GetTicketId() != "" {
		id, err := uuid.Parse(r.GetTicketId())
		if err != nil {
			violations = append(violations, rpc.Violation{Field: "ticket_id", Reason: "MALFORMED", Description: "must be a ticket's id, a UUID"})
		}
		f.TicketID = id
	}
	return f, violations
}

// deliveryState is the state of a number; one that no state has is not known.
func deliveryState(state ticketv1.WebhookDelivery_State) (_ webhook.State, known bool) {
	for _, s := range []webhook.State{"", webhook.Pending, webhook.Sending, webhook.Delivered, webhook.Failed} {
		if shownState(s) == state {
			return s, true
		}
	}
	return "", false
}

func shownState(s webhook.State) ticketv1.WebhookDelivery_State {
	switch s {
	case webhook.Pending:
		return ticketv1.WebhookDelivery_PENDING
	case webhook.Sending:
		return ticketv1.WebhookDelivery_SENDING
	case webhook.Delivered:
		return ticketv1.WebhookDelivery_DELIVERED
	case webhook.Failed:
		return ticketv1.WebhookDelivery_FAILED
	default:
		return ticketv1.WebhookDelivery_STATE_UNSPECIFIED
	}
}

func deliveryOf(d webhook.Delivery) *ticketv1.WebhookDelivery {
	shown := &ticketv1.WebhookDelivery{
		Id: d.ID.String(), Event: string(d.Event), Sequence: d.Sequence, State: shownState(d.State), Attempts: int32(d.Attempts),
		LastStatus: int32(d.LastStatus), LastReason: d.LastReason, LastAttemptTime: stamp(d.LastAttemptAt), NextAttemptTime: stamp(d.DueAt),
		CreateTime: timestamppb.New(d.CreatedAt), FinishTime: stamp(d.FinishedAt),
	}
	if d.TicketID != uuid.Nil {
		shown.TicketId = d.TicketID.String()
	}
	return shown
}

// A delivery token is, as a ticket's page token, a version (1 byte) ‖ a binding to endpoint and filter (8) ‖ the last
// delivery's id (16), in URL-safe base64 without padding.
const deliveryTokenVersion = 1

func encodeDeliveryToken(last, endpoint uuid.UUID, f webhook.DeliveryFilter) string {
	b := append([]byte{deliveryTokenVersion}, deliveryBinding(endpoint, f)...)
	return base64.RawURLEncoding.EncodeToString(append(b, last[:]...))
}

// decodeDeliveryToken accepts exactly what encodeDeliveryToken makes for this endpoint and filter, and no token for the
// first page.
func decodeDeliveryToken(token string, endpoint uuid.UUID, f webhook.DeliveryFilter) (uuid.UUID, bool) {
	if token == "" {
		return uuid.Max, true
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != 1+bindingLength+16 {
		return uuid.Nil, false
	}
	last := uuid.UUID(b[1+bindingLength:])
	return last, encodeDeliveryToken(last, endpoint, f) == token
}

func deliveryBinding(endpoint uuid.UUID, f webhook.DeliveryFilter) []byte {
	b := append([]byte("evalonce/list-webhook-deliveries/1"), endpoint[:]...)
	b = append(b, f.TicketID[:]...)
	for _, part := range []string{string(f.State), string(f.Event)} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return sum[:bindingLength]
}
