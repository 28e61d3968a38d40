package api

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/webhook"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const (
	maxDescription = 256 // characters
	defaultGrace   = 24 * time.Hour
	maxGrace       = 7 * 24 * time.Hour
)

// Webhooks is the WebhookService.
type Webhooks struct {
	ticketv1.UnimplementedWebhookServiceServer
	endpoints *webhook.Endpoints
	allowHTTP bool
}

// NewWebhooks makes the service; allowHTTP lets endpoints have no TLS.
func NewWebhooks(endpoints *webhook.Endpoints, allowHTTP bool) *Webhooks {
	return &Webhooks{endpoints: endpoints, allowHTTP: allowHTTP}
}

// client is the caller, of a service that is configured.
func (s *Webhooks) client(ctx context.Context) (string, error) {
	if err := s.endpoints.Usable(); err != nil {
		return "", err
	}
	return clientOf(ctx)
}

// endpoint is the caller and the endpoint that it names.
func (s *Webhooks) endpoint(ctx context.Context, field, id string) (string, uuid.UUID, error) {
	client, err := s.client(ctx)
	if err != nil {
		return "", uuid.Nil, err
	}
	endpoint, err := readID(field, "an endpoint's id", id)
	return client, endpoint, err
}

// CreateWebhookEndpoint registers an endpoint.
func (s *Webhooks) CreateWebhookEndpoint(ctx context.Context, r *ticketv1.CreateWebhookEndpointRequest) (*ticketv1.CreateWebhookEndpointResponse, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	var violations []rpc.Violation
	key, malformed := rpc.IdempotencyKey(ctx, "request_id", r.GetRequestId())
	if malformed != nil {
		violations = append(violations, *malformed)
	}
	events, wrong := eventsOf(r.GetEvents())
	violations = append(violations, wrong...)
	violations = append(violations, s.checkURL(r.GetUrl())...)
	violations = append(violations, checkDescription(r.GetDescription())...)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	if len(events) == 0 {
		events = webhook.Events()
	}
	created, err := s.endpoints.Create(ctx, webhook.NewEndpoint{
		ClientID: client, URL: r.GetUrl(), Description: r.GetDescription(), Events: events, RequestID: key,
	})
	if err != nil {
		return nil, err
	}
	if created.Replayed {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark endpoint %s as replayed: %w", created.Endpoint.ID, err)
		}
	}
	return &ticketv1.CreateWebhookEndpointResponse{Endpoint: endpointOf(created.Endpoint), Secret: created.Secret}, nil
}

// ListWebhookEndpoints returns the caller's endpoints.
func (s *Webhooks) ListWebhookEndpoints(ctx context.Context, _ *ticketv1.ListWebhookEndpointsRequest) (*ticketv1.ListWebhookEndpointsResponse, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	endpoints, err := s.endpoints.List(ctx, client)
	if err != nil {
		return nil, err
	}
	response := &ticketv1.ListWebhookEndpointsResponse{Endpoints: make([]*ticketv1.WebhookEndpoint, len(endpoints))}
	for i, e := range endpoints {
		response.Endpoints[i] = endpointOf(e)
	}
	return response, nil
}

// GetWebhookEndpoint returns one of the caller's endpoints.
func (s *Webhooks) GetWebhookEndpoint(ctx context.Context, r *ticketv1.GetWebhookEndpointRequest) (*ticketv1.WebhookEndpoint, error) {
	client, id, err := s.endpoint(ctx, "id", r.GetId())
	if err != nil {
		return nil, err
	}
	e, err := s.endpoints.Get(ctx, client, id)
	if err != nil {
		return nil, err
	}
	return endpointOf(e), nil
}

// UpdateWebhookEndpoint changes what is given.
func (s *Webhooks) UpdateWebhookEndpoint(ctx context.Context, r *ticketv1.UpdateWebhookEndpointRequest) (*ticketv1.WebhookEndpoint, error) {
	client, id, err := s.endpoint(ctx, "id", r.GetId())
	if err != nil {
		return nil, err
	}
	events, violations := eventsOf(r.GetEvents())
	if r.Url != nil {
		violations = append(violations, s.checkURL(r.GetUrl())...)
	}
	violations = append(violations, checkDescription(r.GetDescription())...)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	e, err := s.endpoints.Update(ctx, client, id, webhook.Change{URL: r.Url, Description: r.Description, Events: events, Enabled: r.Enabled})
	if err != nil {
		return nil, err
	}
	return endpointOf(e), nil
}

// DeleteWebhookEndpoint removes an endpoint.
func (s *Webhooks) DeleteWebhookEndpoint(ctx context.Context, r *ticketv1.DeleteWebhookEndpointRequest) (*ticketv1.DeleteWebhookEndpointResponse, error) {
	client, id, err := s.endpoint(ctx, "id", r.GetId())
	if err != nil {
		return nil, err
	}
	if err := s.endpoints.Delete(ctx, client, id); err != nil {
		return nil, err
	}
	return &ticketv1.DeleteWebhookEndpointResponse{}, nil
}

// RotateWebhookSecret makes a new secret.
func (s *Webhooks) RotateWebhookSecret(ctx context.Context, r *ticketv1.RotateWebhookSecretRequest) (*ticketv1.RotateWebhookSecretResponse, error) {
	client, id, err := s.endpoint(ctx, "id", r.GetId())
	if err != nil {
		return nil, err
	}
	var violations []rpc.Violation
	key, malformed := rpc.IdempotencyKey(ctx, "request_id", r.GetRequestId())
	if malformed != nil {
		violations = append(violations, *malformed)
	}
	grace := defaultGrace
	if given := r.GetGrace(); given != nil {
		if grace = given.AsDuration(); !given.IsValid() || grace < 0 || grace > maxGrace {
			violations = append(violations, rpc.Violation{Field: "grace", Reason: "OUT_OF_RANGE", Description: "must be from 0 to 7 days"})
		}
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	rotated, err := s.endpoints.Rotate(ctx, client, id, grace, key)
	if err != nil {
		return nil, err
	}
	if rotated.Replayed {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark a rotation of endpoint %s as replayed: %w", id, err)
		}
	}
	return &ticketv1.RotateWebhookSecretResponse{Secret: rotated.Secret, OldSecretsExpireTime: timestamppb.New(rotated.OldExpire)}, nil
}

// SendTestEvent queues a test.
func (s *Webhooks) SendTestEvent(ctx context.Context, r *ticketv1.SendTestEventRequest) (*ticketv1.WebhookDelivery, error) {
	client, id, err := s.endpoint(ctx, "endpoint_id", r.GetEndpointId())
	if err != nil {
		return nil, err
	}
	d, err := s.endpoints.SendTest(ctx, client, id)
	if err != nil {
		return nil, err
	}
	return deliveryOf(d), nil
}

// RedeliverWebhooks makes deliveries due again.
func (s *Webhooks) RedeliverWebhooks(ctx context.Context, r *ticketv1.RedeliverWebhooksRequest) (*ticketv1.RedeliverWebhooksResponse, error) {
	client, id, err := s.endpoint(ctx, "endpoint_id", r.GetEndpointId())
	if err != nil {
		return nil, err
	}
	if (r.GetDeliveryId() == "") == (r.GetFailedSince() == nil) {
		return nil, rpc.InvalidFields(rpc.Violation{Field: "delivery_id", Reason: "REQUIRED", Description: "give either this or failed_since"})
	}
	if r.GetFailedSince() != nil {
		since, ok := instant(r.GetFailedSince())
		if !ok {
			return nil, rpc.InvalidFields(rpc.Violation{Field: "failed_since", Reason: "OUT_OF_RANGE", Description: "must be a time of the years 1 to 9999"})
		}
		n, more, err := s.endpoints.RedeliverFailed(ctx, client, id, since)
		if err != nil {
			return nil, err
		}
		return &ticketv1.RedeliverWebhooksResponse{Count: int32(n), More: more}, nil
	}
	delivery, err := readID("delivery_id", "a delivery's id", r.GetDeliveryId())
	if err != nil {
		return nil, err
	}
	if err := s.endpoints.Redeliver(ctx, client, id, delivery); err != nil {
		return nil, err
	}
	return &ticketv1.RedeliverWebhooksResponse{Count: 1}, nil
}

func (s *Webhooks) checkURL(raw string) []rpc.Violation {
	switch problem := webhook.CheckURL(raw, s.allowHTTP); {
	case raw == "":
		return []rpc.Violation{{Field: "url", Reason: "REQUIRED", Description: "must not be empty"}}
	case problem != "":
		return []rpc.Violation{{Field: "url", Reason: "MALFORMED", Description: problem}}
	}
	return nil
}

func checkDescription(text string) []rpc.Violation {
	switch {
	case utf8.RuneCountInString(text) > maxDescription:
		return []rpc.Violation{{Field: "description", Reason: rpc.ReasonFieldTooLarge, Description: fmt.Sprintf("must have at most %d characters", maxDescription)}}
	case !plain(text):
		return []rpc.Violation{{Field: "description", Reason: "MALFORMED", Description: "must not contain control characters"}}
	}
	return nil
}

func eventsOf(names []string) (events []webhook.Event, violations []rpc.Violation) {
	for i, name := range names {
		e := webhook.Event(name)
		if !slices.Contains(webhook.Events(), e) {
			violations = append(violations, rpc.Violation{
				Field: fmt.Sprintf("events[%d]", i), Reason: "UNKNOWN", Description: fmt.Sprintf("must be one of %s", webhook.Events()),
			})
			continue
		}
		events = append(events, e)
	}
	return events, violations
}

func endpointOf(e webhook.Endpoint) *ticketv1.WebhookEndpoint {
	shown := &ticketv1.WebhookEndpoint{
		Id: e.ID.String(), Url: e.URL, Description: e.Description, State: ticketv1.WebhookEndpoint_ENABLED, ConsecutiveFailures: int32(e.Failures),
		FailingSince: stamp(e.FailingSince), NotBefore: stamp(e.NotBefore), DisableTime: stamp(e.DisabledAt),
		CreateTime: timestamppb.New(e.CreatedAt), UpdateTime: timestamppb.New(e.ChangedAt),
	}
	for _, event := range e.Events {
		shown.Events = append(shown.Events, string(event))
	}
	if !e.Enabled {
		shown.State = ticketv1.WebhookEndpoint_DISABLED
	}
	switch e.DisabledReason {
	case "client":
		shown.DisabledReason = ticketv1.WebhookEndpoint_CLIENT
	case "gone":
		shown.DisabledReason = ticketv1.WebhookEndpoint_GONE
	case "failing":
		shown.DisabledReason = ticketv1.WebhookEndpoint_FAILING
	}
	return shown
}

// stamp is absent for no time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
