package api

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// Tickets is the TicketAdminService.
type Tickets struct {
	adminv1.UnimplementedTicketAdminServiceServer
	db *pgxpool.Pool
}

// NewTickets makes the service.
func NewTickets(db *pgxpool.Pool) *Tickets { return &Tickets{db: db} }

// erasureRecord is an erasure as the record of changes has it.
type erasureRecord struct {
	ClientID  string     `json:"client_id"`
	ErasedAt  *time.Time `json:"erased_at,omitempty"`
	Responses int64      `json:"erased_responses,omitempty"`
	Buried    int64      `json:"buried_evaluations,omitempty"`
}

// EraseTicket takes a ticket's text out of the database.
func (s *Tickets) EraseTicket(ctx context.Context, r *adminv1.EraseTicketRequest) (*adminv1.EraseTicketResponse, error) {
	id, violations := identifierFrom("ticket", r.GetId())
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "TicketAdminService.EraseTicket", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.EraseTicketResponse, effect, error) {
		before, err := ticketOf(ctx, tx, id)
		if err != nil {
			return nil, effect{}, err
		}
		done, err := erasure.Erase(ctx, tx, []uuid.UUID{id})
		if err != nil {
			return nil, effect{}, err
		}
		if why, busy := done.Waiting[id]; busy {
			return nil, effect{}, &erasure.BusyError{Ticket: id, Why: why}
		}
		after, err := ticketOf(ctx, tx, id)
		if err != nil {
			return nil, effect{}, err
		}
		response := &adminv1.EraseTicketResponse{
			Id: id.String(), ClientId: after.ClientID, EraseTime: timestamppb.New(after.ErasedAt),
			ErasedResponses: done.Responses, BuriedEvaluations: done.Buried,
		}
		was, is := erasureRecordOf(before), erasureRecordOf(after)
		is.Responses, is.Buried = done.Responses, done.Buried
		return response, effect{target: "tickets/" + id.String(), before: was, after: is}, nil
	})
}

func ticketOf(ctx context.Context, tx pgx.Tx, id uuid.UUID) (ticketdb.Erasable, error) {
	tickets, err := ticketdb.ErasableTickets(ctx, tx, []uuid.UUID{id})
	if err != nil {
		return ticketdb.Erasable{}, err
	}
	if len(tickets) == 0 {
		return ticketdb.Erasable{}, fmt.Errorf("ticket %s: %w", id, ticketdb.ErrNotFound)
	}
	return tickets[0], nil
}

func erasureRecordOf(t ticketdb.Erasable) erasureRecord {
	r := erasureRecord{ClientID: t.ClientID}
	if !t.ErasedAt.IsZero() {
		r.ErasedAt = &t.ErasedAt
	}
	return r
}
