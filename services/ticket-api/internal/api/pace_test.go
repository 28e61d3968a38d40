package api_test

import (
	"net/http"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/pace"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/services/ticket-api/internal/api"
)

func TestAClientThatCreatesTooFastIsAskedToWait(t *testing.T) {
	t.Parallel()
	a := serve(t, pgtest.New(t), func(_ *rpc.Options, l *api.Limits) { l.Pace = pace.New(0.001, 5) })
	a.promote("v1")
	a.create(item("first", "k"))
	a.create(item("first", "k"))                                                                 // a replay
	wantREST(t, a.rest(http.MethodPost, "/v1/tickets", `{"message":" "}`), 400, "INVALID_FIELD") // costs nothing
	batch := &ticketv1.BatchCreateTicketsRequest{Requests: []*ticketv1.CreateTicketRequest{item("a", ""), item("b", "")}}
	if _, err := a.client().BatchCreateTickets(a.as(a.acme), batch); err != nil {
		t.Fatal(err)
	}
	before := a.rows()
	_, err := a.client().BatchCreateTickets(a.as(a.acme), batch) // one would do
	if p := wantProblem(t, err, codes.ResourceExhausted, "TOO_MANY_TICKETS"); !p.retry {
		t.Error("it does not say when to come again")
	}
	a.create(item("last", ""))
	r := a.rest(http.MethodPost, "/v1/tickets", `{"message":"x"}`)
	wantREST(t, r, http.StatusTooManyRequests, "TOO_MANY_TICKETS")
	if seconds, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || seconds < 1 || seconds > 1000 {
		t.Errorf("Retry-After: %q", r.header.Get("Retry-After"))
	}
	if after := a.rows(); after[0] != before[0]+1 {
		t.Errorf("%v is stored, after %v", after, before)
	}
	if _, err := a.client().CreateTicket(a.as(a.other), item("x", "")); err != nil {
		t.Errorf("another client: %v", err)
	}
}
