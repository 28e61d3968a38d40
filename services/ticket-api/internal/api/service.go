// Package api is the ticket API: it decodes and validates requests, and shows tickets and evaluations.
//
// A request is refused for all that is wrong with it at once, by field, before anything is stored. Texts are
// judged by the rules of pkg/content and are never repaired: what is stored is what was sent. A caller sees its
// own tickets only, unless it may see all; to others they do not exist.
package api

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/google/uuid"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/pace"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/proto/openapi"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

// Submitter stores tickets; submit.Submitter does.
type Submitter interface {
	Submit(ctx context.Context, r submit.Request) (submit.Receipt, error)
	SubmitAll(ctx context.Context, requests []submit.Request) ([]submit.Receipt, error)
}

// Tickets reads tickets; ticketdb.Store does.
type Tickets interface {
	Get(ctx context.Context, scope ticketdb.Scope, id uuid.UUID) (ticketdb.Ticket, error)
	List(ctx context.Context, scope ticketdb.Scope, f ticketdb.ListFilter, after *ticketdb.Position, limit int) ([]ticketdb.Ticket, *ticketdb.Position, error)
	Evaluations(ctx context.Context, scope ticketdb.Scope, id uuid.UUID) ([]ticketdb.Evaluation, error)
}

// Limits of tickets.
type Limits struct {
	SubjectCharacters int // of the text, as it was sent
	MessageBytes      int
	// Pace is how fast each client may create tickets; nil is as fast as it can. A replay is as much work, and counts.
	Pace *pace.Clients
}

// Service is the TicketService.
type Service struct {
	ticketv1.UnimplementedTicketServiceServer
	submitter Submitter
	tickets   Tickets
	limits    Limits
	tracer    trace.Tracer
}

// New makes the service.
func New(submitter Submitter, tickets Tickets, limits Limits) *Service {
	return &Service{
		submitter: submitter, tickets: tickets, limits: limits,
		tracer: otel.Tracer("github.com/evalonce/evalonce/services/ticket-api"),
	}
}

// Register returns what puts the services into a server.
func Register(tickets *Service, webhooks *Webhooks) func(grpc.ServiceRegistrar) {
	return func(r grpc.ServiceRegistrar) {
		ticketv1.RegisterTicketServiceServer(r, tickets)
		ticketv1.RegisterWebhookServiceServer(r, webhooks)
	}
}

// Gateways are their REST forms.
func Gateways() []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error {
	return []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		ticketv1.RegisterTicketServiceHandler, ticketv1.RegisterWebhookServiceHandler,
	}
}

// Policy is who may call which method.
func Policy() rpc.Policy {
	write, read, webhooks := rpc.Needs(rpc.TicketsWrite), rpc.Needs(rpc.TicketsRead, rpc.TicketsReadAll), rpc.Needs(rpc.WebhooksWrite)
	return rpc.Policy{
		ticketv1.TicketService_CreateTicket_FullMethodName:       write,
		ticketv1.TicketService_BatchCreateTickets_FullMethodName: write,
		ticketv1.TicketService_GetTicket_FullMethodName:          read,
		ticketv1.TicketService_ListTickets_FullMethodName:        read,
		ticketv1.TicketService_ListEvaluations_FullMethodName:    read,

		ticketv1.WebhookService_CreateWebhookEndpoint_FullMethodName: webhooks,
		ticketv1.WebhookService_ListWebhookEndpoints_FullMethodName:  webhooks,
		ticketv1.WebhookService_GetWebhookEndpoint_FullMethodName:    webhooks,
		ticketv1.WebhookService_UpdateWebhookEndpoint_FullMethodName: webhooks,
		ticketv1.WebhookService_DeleteWebhookEndpoint_FullMethodName: webhooks,
		ticketv1.WebhookService_RotateWebhookSecret_FullMethodName:   webhooks,
		ticketv1.WebhookService_SendTestEvent_FullMethodName:         webhooks,
		ticketv1.WebhookService_ListWebhookDeliveries_FullMethodName: webhooks,
		ticketv1.WebhookService_RedeliverWebhooks_FullMethodName:     webhooks,
	}
}

// Creating are the methods that create something.
func Creating() []string {
	return []string{
		ticketv1.TicketService_CreateTicket_FullMethodName, ticketv1.TicketService_BatchCreateTickets_FullMethodName,
		ticketv1.WebhookService_CreateWebhookEndpoint_FullMethodName,
	}
}

func clientOf(ctx context.Context) (string, error) {
	p, err := callerOf(ctx)
	return p.ClientID, err
}

func callerOf(ctx context.Context) (rpc.Principal, error) {
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok {
		return rpc.Principal{}, errors.New("a call without a caller has passed the policy")
	}
	return p, nil
}

// scopeOf is whose tickets the caller sees.
func scopeOf(ctx context.Context) (ticketdb.Scope, error) {
	p, err := callerOf(ctx)
	switch {
	case err != nil:
		return ticketdb.Scope{}, err
	case p.Has(rpc.TicketsReadAll):
		return ticketdb.EveryClient, nil
	default:
		return ticketdb.OfClient(p.ClientID), nil
	}
}

// Document serves the OpenAPI document of the REST form.
func Document() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, openapi.Ticket())
	})
}
