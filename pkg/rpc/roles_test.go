package rpc_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestAMethodIsOpenToItsRolesAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		roles []rpc.Role
		ok    bool
	}{
		{"none", nil, false},
		{"another", []rpc.Role{rpc.TicketsRead, rpc.AdminWrite}, false},
		{"one of them", []rpc.Role{rpc.TicketsRead, rpc.TicketsWrite}, true},
		{"the other", []rpc.Role{rpc.WebhooksWrite}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var caller rpc.Principal
			h := handlers{create: func(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
				caller, _ = rpc.PrincipalFrom(ctx)
				return echo(ctx, r)
			}}
			e := start(t, h, func(o *rpc.Options) {
				o.Authenticator = rpc.Grant(o.Authenticator, c.roles...)
				o.Policy = rpc.Policy{"/evalonce.ticket.v1.TicketService/*": rpc.Needs(rpc.TicketsWrite, rpc.WebhooksWrite)}
			})
			_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"})
			a := e.rest("POST", "/v1/tickets", `{"message":"x"}`)
			if c.ok {
				if err != nil || a.status != http.StatusCreated || !slices.Equal(caller.Roles, c.roles) {
					t.Errorf("refused: %v, %d %s; roles %v", err, a.status, a.body, caller.Roles)
				}
				return
			}
			wantStatus(t, err, codes.PermissionDenied, rpc.ReasonAccessDenied)
			wantREST(t, a, http.StatusForbidden, rpc.ReasonAccessDenied)
		})
	}
}

func TestParseRoles(t *testing.T) {
	t.Parallel()
	roles, err := rpc.ParseRoles([]string{"tickets:read", "admin:write", "tickets:read"})
	if err != nil || !slices.Equal(roles, []rpc.Role{rpc.TicketsRead, rpc.AdminWrite}) {
		t.Errorf("got %v, %v", roles, err)
	}
	if _, err := rpc.ParseRoles([]string{"tickets:raed"}); err == nil || !strings.Contains(err.Error(), `"tickets:raed"`) || !strings.Contains(err.Error(), "tickets:read-all") {
		t.Errorf("got %v", err)
	}
}
