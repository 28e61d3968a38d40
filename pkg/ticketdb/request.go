package ticketdb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/ticketdb/internal/ticketdbsql"
)

// NewTicket is a ticket to be stored.
type NewTicket struct {
	ID           uuid.UUID
	ClientID     string
	ExternalID   string
	Subject      string
	Message      string
	ContentHash  content.Hash
	TraceContext string
	// Request is the one that the ticket is the effect of; its zero value is none.
	Request RequestID
}

// PlanLookups makes the statements of a transaction look rows up by their keys, whatever the planner knows of the
// tables. It belongs before the statements of a create.
func PlanLookups(ctx context.Context, tx pgx.Tx) error {
	if err := ticketdbsql.New(tx).PlanLookups(ctx); err != nil {
		return fmt.Errorf("plan lookups: %w", err)
	}
	return nil
}

// Insert stores tickets and returns the time that they all carry. A ticket whose request is not reserved for it is
// left out: its request was made before.
func Insert(ctx context.Context, tx pgx.Tx, tickets []NewTicket) (time.Time, error) {
	var p ticketdbsql.InsertTicketsParams
	for _, t := range tickets {
		p.Ids = append(p.Ids, t.ID.String())
		p.ClientIds = append(p.ClientIds, t.ClientID)
		p.ExternalIds = append(p.ExternalIds, t.ExternalID)
		p.Subjects = append(p.Subjects, t.Subject)
		p.Messages = append(p.Messages, t.Message)
		p.ContentHashes = append(p.ContentHashes, t.ContentHash[:])
		p.TraceContexts = append(p.TraceContexts, t.TraceContext)
		p.RequestScopes = append(p.RequestScopes, t.Request.Scope)
		p.RequestKeys = append(p.RequestKeys, t.Request.Key)
	}
	at, err := ticketdbsql.New(tx).InsertTickets(ctx, p)
	if err != nil {
		return time.Time{}, fmt.Errorf("insert %d tickets: %w", len(tickets), err)
	}
	return at, nil
}

// RequestID names a client's request: the scope is the client and the method.
type RequestID struct {
	Scope, Key string
}

// Request is a request that carries an idempotency key, with the response that it gets.
type Request struct {
	RequestID
	Fingerprint [32]byte
	Response    Response
}

// Response is what the client was told, as far as the ticket's own rows cannot tell it again. It is stored in a
// versioned form and never changes: a later answer does not show in a replay.
type Response struct {
	TicketID  uuid.UUID
	VersionID string
	Key       content.Key
	State     outbox.State
	Dead      *Dead // when the state is dead
}

// responseSchema is the form of the stored response. Another form gets another number, and responseOf goes on
// decoding this one for as long as one can be stored.
const responseSchema = 1

type response1 struct {
	VersionID string `json:"version_id"`
	Key       string `json:"key"`
	State     string `json:"state"`
	Dead      *dead1 `json:"dead,omitempty"`
}

type dead1 struct {
	Class  string    `json:"class"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

func (r Response) encode() ([]byte, error) {
	return json.Marshal(response1{VersionID: r.VersionID, Key: string(r.Key), State: string(r.State), Dead: (*dead1)(r.Dead)})
}

func responseOf(schema int32, ticketID uuid.UUID, raw []byte) (Response, error) {
	if schema != responseSchema {
		return Response{}, fmt.Errorf("stored response of schema %d: written by a newer release, which this one cannot read", schema)
	}
	var r response1
	if err := json.Unmarshal(raw, &r); err != nil {
		return Response{}, fmt.Errorf("decode a stored response: %w", err)
	}
	return Response{TicketID: ticketID, VersionID: r.VersionID, Key: content.Key(r.Key), State: outbox.State(r.State), Dead: (*Dead)(r.Dead)}, nil
}

// Reserve takes requests' keys before their effect, and waits for a concurrent transaction that holds one of
// them. Requests must be distinct. The tickets of those that are first come back; the others are replays of
// requests that Replays returns, or reuse their keys.
func Reserve(ctx context.Context, tx pgx.Tx, requests []Request, retention time.Duration) (first map[uuid.UUID]bool, err error) {
	p := ticketdbsql.ReserveRequestsParams{ResponseSchema: responseSchema, RetentionSeconds: retention.Seconds()}
	for _, r := range requests {
		raw, err := r.Response.encode()
		if err != nil {
			return nil, fmt.Errorf("encode the response of ticket %s: %w", r.Response.TicketID, err)
		}
		p.Scopes = append(p.Scopes, r.Scope)
		p.Keys = append(p.Keys, r.Key)
		p.Fingerprints = append(p.Fingerprints, r.Fingerprint[:])
		p.Responses = append(p.Responses, raw)
		p.TicketIds = append(p.TicketIds, r.Response.TicketID.String())
	}
	ids, err := ticketdbsql.New(tx).ReserveRequests(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("reserve %d requests: %w", len(requests), err)
	}
	first = make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		first[id] = true
	}
	return first, nil
}

// Told returns tickets as their clients were told of them at first: the stored responses around the stored text.
// The responses must be one client's.
func Told(ctx context.Context, db ticketdbsql.DBTX, clientID string, responses []Response) (map[uuid.UUID]Ticket, error) {
	ids := make([]uuid.UUID, len(responses))
	byID := make(map[uuid.UUID]Response, len(responses))
	var answered []content.Key
	for i, r := range responses {
		ids[i], byID[r.TicketID] = r.TicketID, r
		if r.State == outbox.Succeeded {
			answered = append(answered, r.Key)
		}
	}
	tickets, err := New(db).texts(ctx, OfClient(clientID), ids)
	if err != nil {
		return nil, err
	}
	var answers map[content.Key]*Answer
	if len(answered) > 0 {
		if answers, err = Answers(ctx, db, answered); err != nil {
			return nil, err
		}
	}
	told := make(map[uuid.UUID]Ticket, len(tickets))
	for _, t := range tickets {
		r := byID[t.ID]
		t.Evaluation = Evaluation{
			State: r.State, Key: r.Key, VersionID: r.VersionID, AnsweredWithoutCall: r.State == outbox.Succeeded,
			Answer: answers[r.Key], Dead: r.Dead,
		}
		told[t.ID] = t
	}
	return told, nil
}

// Requests returns those of the requests that are stored.
func Requests(ctx context.Context, db ticketdbsql.DBTX, ids []RequestID) (map[RequestID]Request, error) {
	var p ticketdbsql.GetRequestsParams
	for _, id := range ids {
		p.Scopes = append(p.Scopes, id.Scope)
		p.Keys = append(p.Keys, id.Key)
	}
	rows, err := ticketdbsql.New(db).GetRequests(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("get %d requests: %w", len(ids), err)
	}
	requests := make(map[RequestID]Request, len(rows))
	for _, row := range rows {
		id := RequestID{Scope: row.Scope, Key: row.Key}
		response, err := responseOf(row.ResponseSchema, row.TicketID, row.Response)
		if err != nil {
			return nil, err
		}
		requests[id] = Request{RequestID: id, Fingerprint: [32]byte(row.Fingerprint), Response: response}
	}
	return requests, nil
}

// PruneRequests deletes up to most requests whose retention is over, and returns their number.
func PruneRequests(ctx context.Context, db ticketdbsql.DBTX, most int) (int, error) {
	n, err := ticketdbsql.New(db).PruneRequests(ctx, int32(most))
	if err != nil {
		return 0, fmt.Errorf("prune expired requests: %w", err)
	}
	return int(n), nil
}
