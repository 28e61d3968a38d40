package api

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/telemetry"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

// MaxBatch is how many tickets one request creates at most.
const MaxBatch = 500

// CreateTicket stores one ticket and its pending evaluation.
func (s *Service) CreateTicket(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
	client, err := clientOf(ctx)
	if err != nil {
		return nil, err
	}
	hash, violations := s.limits.check("", r)
	key, malformed := rpc.IdempotencyKey(ctx, "request_id", r.GetRequestId())
	if malformed != nil {
		violations = append(violations, *malformed)
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	if err := s.limits.admit(client, 1); err != nil {
		return nil, err
	}
	ctx, span := s.startSend(ctx, 1)
	defer span.End()
	receipt, err := s.submitter.Submit(ctx, request(ctx, client, ticketv1.TicketService_CreateTicket_FullMethodName, key, hash, r))
	if err != nil {
		span.SetStatus(codes.Error, "not stored")
		return nil, err
	}
	if receipt.Replayed {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark ticket %s as replayed: %w", receipt.Ticket.ID, err)
		}
	}
	return ticketOf(receipt.Ticket), nil
}

// BatchCreateTickets stores all tickets of a request or none. Its answer is marked as replayed when all of it is.
func (s *Service) BatchCreateTickets(ctx context.Context, r *ticketv1.BatchCreateTicketsRequest) (*ticketv1.BatchCreateTicketsResponse, error) {
	client, err := clientOf(ctx)
	if err != nil {
		return nil, err
	}
	hashes, err := s.checkBatch(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := s.limits.admit(client, len(r.GetRequests())); err != nil {
		return nil, err
	}
	ctx, span := s.startSend(ctx, len(r.GetRequests()))
	defer span.End()
	requests := make([]submit.Request, len(r.GetRequests()))
	for i, item := range r.GetRequests() {
		requests[i] = request(ctx, client, ticketv1.TicketService_BatchCreateTickets_FullMethodName, item.GetRequestId(), hashes[i], item)
	}
	receipts, err := s.submitter.SubmitAll(ctx, requests)
	if err != nil {
		span.SetStatus(codes.Error, "not stored")
		return nil, err
	}
	replayed := true
	response := &ticketv1.BatchCreateTicketsResponse{Tickets: make([]*ticketv1.Ticket, len(receipts)), Replayed: make([]bool, len(receipts))}
	for i, receipt := range receipts {
		response.Tickets[i] = ticketOf(receipt.Ticket)
		response.Replayed[i] = receipt.Replayed
		replayed = replayed && receipt.Replayed
	}
	if replayed {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark a batch of %d tickets as replayed: %w", len(receipts), err)
		}
	}
	return response, nil
}

func (s *Service) checkBatch(ctx context.Context, r *ticketv1.BatchCreateTicketsRequest) ([]content.Hash, error) {
	if rpc.HasIdempotencyKeyHeader(ctx) {
		return nil, &rpc.Error{
			Code: grpccodes.InvalidArgument, Reason: reasonKeyNotSupported,
			Message: "the Idempotency-Key header names one ticket; in a batch each has its own request_id",
			Violations: []rpc.Violation{{
				Field: "idempotency-key", Reason: "NOT_SUPPORTED", Description: "give each of the requests a request_id instead",
			}},
		}
	}
	items := r.GetRequests()
	switch n := len(items); {
	case n == 0:
		return nil, rpc.InvalidFields(rpc.Violation{Field: "requests", Reason: "REQUIRED", Description: "must not be empty"})
	case n > MaxBatch:
		return nil, rpc.InvalidFields(rpc.Violation{
			Field: "requests", Reason: rpc.ReasonFieldTooLarge, Description: fmt.Sprintf("must be at most %d, not %d", MaxBatch, n),
		})
	}
	hashes := make([]content.Hash, len(items))
	var violations []rpc.Violation
	first := map[string]int{}
	for i, item := range items {
		prefix := fmt.Sprintf("requests[%d].", i)
		hash, wrong := s.limits.check(prefix, item)
		hashes[i] = hash
		violations = append(violations, wrong...)
		key := item.GetRequestId()
		if key == "" {
			continue
		}
		// Two items of one key are two tickets that claim to be one. Whichever is meant, storing half of what was
		// sent is not.
		if twin, twice := first[key]; twice {
			violations = append(violations, rpc.Violation{
				Field: prefix + "request_id", Reason: "REPEATED", Description: fmt.Sprintf("the same as requests[%d].request_id", twin),
			})
			continue
		}
		first[key] = i
		if !rpc.ValidKey(key) {
			violations = append(violations, rpc.Violation{
				Field: prefix + "request_id", Reason: "MALFORMED", Description: "must be 1 to 255 visible ASCII characters",
			})
		}
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return hashes, nil
}

// request is the valid request as the submitter takes it; ctx is that of the send span.
func request(ctx context.Context, client, operation, key string, hash content.Hash, r *ticketv1.CreateTicketRequest) submit.Request {
	return submit.Request{
		ClientID: client, Operation: operation, RequestID: key,
		Fingerprint: fingerprint(r.GetExternalId(), r.GetSubject(), r.GetMessage()),
		ExternalID:  r.GetExternalId(), Subject: r.GetSubject(), Message: r.GetMessage(),
		ContentHash: hash, TraceContext: telemetry.Inject(ctx),
	}
}

// startSend starts the span that the evaluation's own trace will link to.
func (s *Service) startSend(ctx context.Context, tickets int) (context.Context, trace.Span) {
	return s.tracer.Start(ctx, telemetry.SpanSendEvaluation,
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(telemetry.SendAttributes(tickets)...))
}
