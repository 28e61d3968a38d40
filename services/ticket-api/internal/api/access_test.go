package api_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/services/ticket-api/internal/api"
)

// spelled takes a token for what it says: a client, and its roles after commas.
type spelled struct{}

func (spelled) Authenticate(_ context.Context, token string) (rpc.Principal, error) {
	words := strings.Split(token, ",")
	roles, err := rpc.ParseRoles(words[1:])
	return rpc.Principal{ClientID: words[0], Roles: roles}, err
}

func withRoles(o *rpc.Options, _ *api.Limits) { o.Authenticator = spelled{} }

// methods are the full names of the methods that are registered.
type methods []string

func (m *methods) RegisterService(desc *grpc.ServiceDesc, _ any) {
	for _, method := range desc.Methods {
		*m = append(*m, "/"+desc.ServiceName+"/"+method.MethodName)
	}
	for _, stream := range desc.Streams {
		*m = append(*m, "/"+desc.ServiceName+"/"+stream.StreamName)
	}
}

// things are acme's, of every kind that a method can name.
type things struct {
	ticket, endpoint, doomed, delivery string
}

func (a *ticketAPI) things() things {
	a.t.Helper()
	ctx := a.as("acme,tickets:write,webhooks:write")
	ticket, err := a.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "acme's"})
	if err != nil {
		a.t.Fatal(err)
	}
	var ids [2]string
	for i := range ids {
		created, err := a.webhooks().CreateWebhookEndpoint(ctx, &ticketv1.CreateWebhookEndpointRequest{Url: "https://acme.example"})
		if err != nil {
			a.t.Fatal(err)
		}
		ids[i] = created.GetEndpoint().GetId()
	}
	delivery, err := a.webhooks().SendTestEvent(ctx, &ticketv1.SendTestEventRequest{EndpointId: ids[0]})
	if err != nil {
		a.t.Fatal(err)
	}
	return things{ticket: ticket.GetId(), endpoint: ids[0], doomed: ids[1], delivery: delivery.GetId()}
}

// verdict is what the owner of the thing that a call names is told, and what another client is.
type verdict struct{ owner, other codes.Code }

// Every method × every role × whose the thing is. A role without an entry is denied.
func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	a := serve(t, pgtest.New(t), withRoles)
	a.promote("v1")
	acme := a.things()
	tickets, webhooks := a.client(), a.webhooks()

	create := map[rpc.Role]verdict{rpc.TicketsWrite: {codes.OK, codes.OK}}
	read := map[rpc.Role]verdict{rpc.TicketsRead: {codes.OK, codes.NotFound}, rpc.TicketsReadAll: {codes.OK, codes.OK}}
	list := map[rpc.Role]verdict{rpc.TicketsRead: {codes.OK, codes.OK}, rpc.TicketsReadAll: {codes.OK, codes.OK}}
	register := map[rpc.Role]verdict{rpc.WebhooksWrite: {codes.OK, codes.OK}}
	keep := map[rpc.Role]verdict{rpc.WebhooksWrite: {codes.OK, codes.NotFound}}
	rows := map[string]struct {
		want map[rpc.Role]verdict
		call func(ctx context.Context) error
	}{
		ticketv1.TicketService_CreateTicket_FullMethodName: {create, func(ctx context.Context) error {
			_, err := tickets.CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"})
			return err
		}},
		ticketv1.TicketService_BatchCreateTickets_FullMethodName: {create, func(ctx context.Context) error {
			_, err := tickets.BatchCreateTickets(ctx, &ticketv1.BatchCreateTicketsRequest{Requests: []*ticketv1.CreateTicketRequest{{Message: "x"}}})
			return err
		}},
		ticketv1.TicketService_GetTicket_FullMethodName: {read, func(ctx context.Context) error {
			_, err := tickets.GetTicket(ctx, &ticketv1.GetTicketRequest{Id: acme.ticket})
			return err
		}},
		ticketv1.TicketService_ListEvaluations_FullMethodName: {read, func(ctx context.Context) error {
			_, err := tickets.ListEvaluations(ctx, &ticketv1.ListEvaluationsRequest{TicketId: acme.ticket})
			return err
		}},
		ticketv1.TicketService_ListTickets_FullMethodName: {list, func(ctx context.Context) error {
			_, err := tickets.ListTickets(ctx, &ticketv1.ListTicketsRequest{})
			return err
		}},
		ticketv1.WebhookService_CreateWebhookEndpoint_FullMethodName: {register, func(ctx context.Context) error {
			_, err := webhooks.CreateWebhookEndpoint(ctx, &ticketv1.CreateWebhookEndpointRequest{Url: "https://x.example"})
			return err
		}},
		ticketv1.WebhookService_ListWebhookEndpoints_FullMethodName: {register, func(ctx context.Context) error {
			_, err := webhooks.ListWebhookEndpoints(ctx, &ticketv1.ListWebhookEndpointsRequest{})
			return err
		}},
		ticketv1.WebhookService_GetWebhookEndpoint_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.GetWebhookEndpoint(ctx, &ticketv1.GetWebhookEndpointRequest{Id: acme.endpoint})
			return err
		}},
		ticketv1.WebhookService_UpdateWebhookEndpoint_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.UpdateWebhookEndpoint(ctx, &ticketv1.UpdateWebhookEndpointRequest{Id: acme.endpoint, Description: proto.String("x")})
			return err
		}},
		ticketv1.WebhookService_DeleteWebhookEndpoint_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.DeleteWebhookEndpoint(ctx, &ticketv1.DeleteWebhookEndpointRequest{Id: acme.doomed})
			return err
		}},
		ticketv1.WebhookService_RotateWebhookSecret_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.RotateWebhookSecret(ctx, &ticketv1.RotateWebhookSecretRequest{Id: acme.endpoint, Grace: &durationpb.Duration{}})
			return err
		}},
		ticketv1.WebhookService_SendTestEvent_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.SendTestEvent(ctx, &ticketv1.SendTestEventRequest{EndpointId: acme.endpoint})
			return err
		}},
		ticketv1.WebhookService_ListWebhookDeliveries_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.ListWebhookDeliveries(ctx, &ticketv1.ListWebhookDeliveriesRequest{EndpointId: acme.endpoint})
			return err
		}},
		ticketv1.WebhookService_RedeliverWebhooks_FullMethodName: {keep, func(ctx context.Context) error {
			_, err := webhooks.RedeliverWebhooks(ctx, &ticketv1.RedeliverWebhooksRequest{EndpointId: acme.endpoint, DeliveryId: acme.delivery})
			return err
		}},
	}
	var registered methods
	api.Register(&api.Service{}, &api.Webhooks{})(&registered)
	slices.Sort(registered)
	if known := slices.Sorted(maps.Keys(rows)); !slices.Equal(known, registered) {
		t.Fatalf("the rows are of %v,\nthe methods are %v", known, registered)
	}
	for name, row := range rows {
		// The owner comes last: what it does to the thing must not be what the others fail by.
		for _, role := range append(rpc.AllRoles(), "") {
			want, may := row.want[role]
			if !may {
				want = verdict{codes.PermissionDenied, codes.PermissionDenied}
			}
			suffix := ""
			if role != "" {
				suffix = "," + string(role)
			}
			if err := row.call(a.as("other" + suffix)); status.Code(err) != want.other {
				t.Errorf("%s by another with %q: %v, want %v", name, role, err, want.other)
			}
			if err := row.call(a.as("acme" + suffix)); status.Code(err) != want.owner {
				t.Errorf("%s by the owner with %q: %v, want %v", name, role, err, want.owner)
			}
		}
		if err := row.call(t.Context()); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s without credentials: %v", name, err)
		}
	}
}

// What is another's and what does not exist are told apart by nothing.
func TestNothingTellsThatAnothersThingExists(t *testing.T) {
	t.Parallel()
	a := serve(t, pgtest.New(t), withRoles)
	a.promote("v1")
	acme := a.things()
	const nowhere = "018bcfe5-687b-7000-8000-000000000001"
	a.acme = "other,tickets:read,webhooks:write" // whom rest sends as
	for path, id := range map[string]string{
		"GET /v1/tickets/%":                         acme.ticket,
		"GET /v1/tickets/%/evaluations":             acme.ticket,
		"GET /v1/webhookEndpoints/%":                acme.endpoint,
		"PATCH /v1/webhookEndpoints/%":              acme.endpoint,
		"DELETE /v1/webhookEndpoints/%":             acme.endpoint,
		"POST /v1/webhookEndpoints/%:rotateSecret":  acme.endpoint,
		"POST /v1/webhookEndpoints/%:sendTestEvent": acme.endpoint,
		"GET /v1/webhookEndpoints/%/deliveries":     acme.endpoint,
		"POST /v1/webhookEndpoints/%:redeliver":     acme.endpoint,
	} {
		method, path, _ := strings.Cut(path, " ")
		body := ""
		if method == http.MethodPost || method == http.MethodPatch {
			body = `{}`
		}
		if strings.HasSuffix(path, ":redeliver") {
			body = `{"delivery_id":"` + acme.delivery + `"}`
		}
		theirs := a.rest(method, strings.Replace(path, "%", id, 1), body)
		nobodys := a.rest(method, strings.Replace(path, "%", nowhere, 1), body)
		if theirs.status != http.StatusNotFound || theirs.status != nobodys.status || theirs.body != nobodys.body {
			t.Errorf("%s %s: %d %s; of nobody: %d %s", method, path, theirs.status, theirs.body, nobodys.status, nobodys.body)
		}
	}
}

func TestListsHoldWhatTheCallerMaySee(t *testing.T) {
	t.Parallel()
	a := serve(t, pgtest.New(t), withRoles)
	a.promote("v1")
	acme := a.things()
	theirs, err := a.client().CreateTicket(a.as("other,tickets:write"), &ticketv1.CreateTicketRequest{Message: "other's"})
	if err != nil || theirs.GetClientId() != "other" {
		t.Fatalf("%v, %v", theirs, err)
	}
	for token, want := range map[string]string{
		"acme,tickets:read":                     acme.ticket,
		"other,tickets:read":                    theirs.GetId(),
		"third,tickets:read":                    "",
		"third,tickets:read-all":                theirs.GetId() + " " + acme.ticket,
		"acme,tickets:read,tickets:read-all":    theirs.GetId() + " " + acme.ticket,
		"third,tickets:read-all acme":           acme.ticket,
		"third,tickets:read-all other":          theirs.GetId(),
		"third,tickets:read-all nobody-of-this": "",
	} {
		token, client, _ := strings.Cut(token, " ")
		var ids []string
		for r := (&ticketv1.ListTicketsRequest{PageSize: 1, ClientId: client}); ; {
			page, err := a.client().ListTickets(a.as(token), r)
			if err != nil {
				t.Fatal(err)
			}
			for _, ticket := range page.GetTickets() {
				ids = append(ids, ticket.GetId())
			}
			if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
				break
			}
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s sees %q of %q, want %q", token, got, client, want)
		}
	}
	for _, client := range []string{"other", "acme"} {
		_, err = a.client().ListTickets(a.as("acme,tickets:read"), &ticketv1.ListTicketsRequest{ClientId: client})
		wantProblem(t, err, codes.PermissionDenied, rpc.ReasonAccessDenied)
	}
	endpoints, err := a.webhooks().ListWebhookEndpoints(a.as("other,webhooks:write"), &ticketv1.ListWebhookEndpointsRequest{})
	if err != nil || len(endpoints.GetEndpoints()) != 0 {
		t.Errorf("other has the endpoints %v, %v", endpoints, err)
	}
}

// A client's idempotency keys are its own, whichever of its tokens it shows, and nobody else's.
func TestATokenIsReplacedAndNothingIsDoneTwice(t *testing.T) {
	t.Parallel()
	a := serve(t, pgtest.New(t), withRoles)
	a.promote("v1")
	create := func(token string) (*ticketv1.Ticket, bool) {
		t.Helper()
		var header metadata.MD
		ticket, err := a.client().CreateTicket(a.as(token, "idempotency-key", "k"), &ticketv1.CreateTicketRequest{Message: "x"}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		return ticket, len(header.Get("idempotent-replayed")) == 1
	}
	first, _ := create("acme,tickets:write")
	if again, replayed := create("acme,tickets:write,tickets:read"); !replayed || !proto.Equal(first, again) {
		t.Errorf("under another token: %v, replayed %t", again, replayed)
	}
	if theirs, replayed := create("other,tickets:write"); replayed || theirs.GetId() == first.GetId() {
		t.Errorf("another client's key is %v, replayed %t", theirs, replayed)
	}
	if n := a.count(`SELECT count(*) FROM ticket`); n != 2 {
		t.Errorf("%d tickets, want 2", n)
	}
}
