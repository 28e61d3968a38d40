package api

import (
	"context"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const (
	defaultPage   = 50
	maxPage       = 1000
	maxDepartment = 256 // characters
)

// GetTicket returns one of the tickets that the caller sees.
func (s *Service) GetTicket(ctx context.Context, r *ticketv1.GetTicketRequest) (*ticketv1.Ticket, error) {
	scope, err := scopeOf(ctx)
	if err != nil {
		return nil, err
	}
	id, err := ticketID("id", r.GetId())
	if err != nil {
		return nil, err
	}
	t, err := s.tickets.Get(ctx, scope, id)
	if err != nil {
		return nil, err
	}
	return ticketOf(t), nil
}

// ListTickets returns a page of the tickets that the caller sees, newest first.
func (s *Service) ListTickets(ctx context.Context, r *ticketv1.ListTicketsRequest) (*ticketv1.ListTicketsResponse, error) {
	scope, err := scopeOf(ctx)
	if err != nil {
		return nil, err
	}
	if client := r.GetClientId(); client != "" {
		if scope != ticketdb.EveryClient {
			return nil, &rpc.Error{
				Code: codes.PermissionDenied, Reason: rpc.ReasonAccessDenied,
				Message: "client_id is for callers who may see all clients' tickets: it needs the role " + string(rpc.TicketsReadAll),
			}
		}
		scope = ticketdb.OfClient(client)
	}
	filter, violations := filterOf(r)
	limit := defaultPage
	switch size := r.GetPageSize(); {
	case size < 0:
		violations = append(violations, rpc.Violation{Field: "page_size", Reason: "OUT_OF_RANGE", Description: "must not be negative"})
	case size > 0:
		limit = min(int(size), maxPage)
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var after *ticketdb.Position
	if token := r.GetPageToken(); token != "" {
		position, ok := decodePageToken(token, scope.String(), filter)
		if !ok {
			return nil, rpc.InvalidFields(rpc.Violation{
				Field: "page_token", Reason: "MALFORMED", Description: "must be the next_page_token of a page with the same filter",
			})
		}
		after = &position
	}
	tickets, next, err := s.tickets.List(ctx, scope, filter, after, limit)
	if err != nil {
		return nil, err
	}
	response := &ticketv1.ListTicketsResponse{Tickets: make([]*ticketv1.Ticket, len(tickets))}
	for i, t := range tickets {
		response.Tickets[i] = ticketOf(t)
	}
	if next != nil {
		response.NextPageToken = encodePageToken(*next, scope.String(), filter)
	}
	return response, nil
}

// ListEvaluations returns what each version has made of one of the tickets that the caller sees.
func (s *Service) ListEvaluations(ctx context.Context, r *ticketv1.ListEvaluationsRequest) (*ticketv1.ListEvaluationsResponse, error) {
	scope, err := scopeOf(ctx)
	if err != nil {
		return nil, err
	}
	id, err := ticketID("ticket_id", r.GetTicketId())
	if err != nil {
		return nil, err
	}
	evaluations, err := s.tickets.Evaluations(ctx, scope, id)
	if err != nil {
		return nil, err
	}
	response := &ticketv1.ListEvaluationsResponse{Evaluations: make([]*ticketv1.Evaluation, len(evaluations))}
	for i, e := range evaluations {
		response.Evaluations[i] = evaluationOf(e)
	}
	return response, nil
}

func filterOf(r *ticketv1.ListTicketsRequest) (f ticketdb.ListFilter, violations []rpc.Violation) {
	add := func(field, reason, description string) {
		violations = append(violations, rpc.Violation{Field: field, Reason: reason, Description: description})
	}
	var known bool
	if f.State, known = storedState(r.GetState()); !known {
		add("state", "UNKNOWN", "must be one of the states")
	}
	f.Department = r.GetDepartment()
	if !plain(r.GetClientId()) {
		add("client_id", "MALFORMED", "must be a client's id")
	}
	if utf8.RuneCountInString(f.Department) > maxDepartment || !plain(f.Department) {
		add("department", "MALFORMED", "must be a department's name")
	}
	if r.MinUrgency != nil {
		urgency := r.GetMinUrgency()
		if math.IsNaN(urgency) || urgency < 0 || urgency > 1 {
			add("min_urgency", "OUT_OF_RANGE", "must be from 0 to 1")
		}
		f.MinUrgency = &urgency
	}
	var ok bool
	if f.From, ok = instant(r.GetCreatedFrom()); !ok {
		add("created_from", "OUT_OF_RANGE", "must be a time of the years 1 to 9999")
	}
	if f.To, ok = instant(r.GetCreatedTo()); !ok || r.GetCreatedTo() != nil && f.To.IsZero() {
		add("created_to", "OUT_OF_RANGE", "must be a time of the years 1 to 9999")
	} else if !f.To.IsZero() && !f.From.Before(f.To) {
		add("created_to", "OUT_OF_RANGE", "must be later than created_from")
	}
	return f, violations
}

// instant is the time of t, rounded up to the database's microseconds: tickets have no finer times, so that
// neither "at or after" nor "before" changes its meaning. No time is the zero time.
func instant(t *timestamppb.Timestamp) (time.Time, bool) {
	if t == nil {
		return time.Time{}, true
	}
	at := t.AsTime()
	if whole := at.Truncate(time.Microsecond); whole != at {
		at = whole.Add(time.Microsecond)
	}
	return at, t.IsValid()
}
