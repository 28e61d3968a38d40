// Package ticketdb owns ticket and client_request: what customers wrote, and what clients were told.
//
// Reads have a [Scope]: a ticket out of it is not found, as if it did not exist.
package ticketdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/ticketdb/internal/ticketdbsql"
)

// ErrNotFound is returned for a ticket that does not exist or is out of scope.
var ErrNotFound = errors.New("no such ticket")

// Scope is whose tickets are seen. The zero value sees none.
type Scope struct {
	all    bool
	client string
}

// EveryClient sees all tickets.
var EveryClient = Scope{all: true}

// OfClient sees a client's own tickets.
func OfClient(id string) Scope { return Scope{client: id} }

// String is the client's id, or "" for every client.
func (s Scope) String() string { return s.client }

// parameter is what statements take: NULL stands for all, and no ticket is of the client "".
func (s Scope) parameter() *string {
	if s.all {
		return nil
	}
	return &s.client
}

// Ticket is a ticket as it is stored, with the evaluation that it shows.
type Ticket struct {
	ID           uuid.UUID
	ClientID     string
	ExternalID   string
	Subject      string
	Message      string
	CreatedAt    time.Time
	TraceContext string
	Evaluation   Evaluation
}

// Evaluation is what one version makes of a ticket's content. Answer is set when and only when the state is
// succeeded, Dead when and only when it is dead.
type Evaluation struct {
	State               outbox.State
	Key                 content.Key
	VersionID           string
	Attempts            int
	AnsweredWithoutCall bool // the call was another ticket's
	Answer              *Answer
	Dead                *Dead
}

// Answer is a result as it is shown.
type Answer struct {
	Department    string
	IsUrgent      float64
	UrgencyScore  float64
	ModelVersion  string
	PromptVersion string
	PolicyVersion string
	Priority      string
	Queue         string
	ModelCallID   uuid.UUID
	ComputedAt    time.Time
	TraceID       string // of the evaluation that made the call
}

// Dead says why an evaluation ended without an answer.
type Dead struct {
	Class  string
	Reason string
	At     time.Time
}

// ListFilter narrows a list; zero fields do not.
type ListFilter struct {
	State      outbox.State
	Department string
	MinUrgency *float64
	From       time.Time // inclusive
	To         time.Time // exclusive
}

func (f ListFilter) narrows() bool { return f.State != "" || f.Department != "" || f.MinUrgency != nil }

// Position is the last ticket of a page.
type Position struct {
	CreatedAt time.Time
	ID        uuid.UUID
}

const (
	// scanWindow bounds the tickets that one page of a filtered list looks at.
	scanWindow = 5_000
	// pageBytes bounds the text of one page; a page has at least one ticket all the same.
	pageBytes = 2 << 20
)

// Store reads tickets.
type Store struct {
	q *ticketdbsql.Queries
}

// New makes a store on a pool.
func New(db ticketdbsql.DBTX) *Store { return &Store{q: ticketdbsql.New(db)} }

// Get returns a ticket, or ErrNotFound.
func (s *Store) Get(ctx context.Context, scope Scope, id uuid.UUID) (Ticket, error) {
	tickets, err := s.GetAll(ctx, scope, []uuid.UUID{id})
	if err != nil {
		return Ticket{}, err
	}
	if len(tickets) == 0 {
		return Ticket{}, fmt.Errorf("ticket %s: %w", id, ErrNotFound)
	}
	return tickets[0], nil
}

// GetAll returns those of the tickets that are in scope, in the order of the ids.
func (s *Store) GetAll(ctx context.Context, scope Scope, ids []uuid.UUID) ([]Ticket, error) {
	tickets, err := s.texts(ctx, scope, ids)
	if err != nil {
		return nil, err
	}
	shown, err := s.q.ShownEvaluations(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("get the evaluations of %d tickets: %w", len(ids), err)
	}
	evaluations := make(map[uuid.UUID]Evaluation, len(shown))
	for _, e := range shown {
		evaluations[e.TicketEvaluation.TicketID] = evaluationOf(e.TicketEvaluation)
	}
	for i := range tickets {
		e, ok := evaluations[tickets[i].ID]
		if !ok {
			// Neither work nor a result: reconciliation gives it work, so it is pending for whoever asks.
			e.State = outbox.Pending
		}
		tickets[i].Evaluation = e
	}
	return tickets, nil
}

// texts returns tickets without their evaluations, in the order of the ids.
func (s *Store) texts(ctx context.Context, scope Scope, ids []uuid.UUID) ([]Ticket, error) {
	rows, err := s.q.GetTickets(ctx, ticketdbsql.GetTicketsParams{Ids: ids, ClientID: scope.parameter()})
	if err != nil {
		return nil, fmt.Errorf("get %d tickets: %w", len(ids), err)
	}
	tickets := make([]Ticket, len(rows))
	for i, r := range rows {
		tickets[i] = Ticket{
			ID: r.ID, ClientID: r.ClientID, ExternalID: r.ExternalID, Subject: r.Subject, Message: r.Message,
			CreatedAt: r.CreatedAt, TraceContext: r.TraceContext,
		}
	}
	return tickets, nil
}

// List returns a page of the tickets in scope, newest first, of those after a position. Next is where the following
// page starts, nil at the end of the list. A page may be short, or empty, and not be the last: the tickets that
// one page looks at and the text that it returns are bounded.
func (s *Store) List(ctx context.Context, scope Scope, f ListFilter, after *Position, limit int) (tickets []Ticket, next *Position, err error) {
	// The zero time and the end of the year 9999 stand for open ends.
	from, to := f.From, f.To
	if to.IsZero() {
		to = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	}
	if after == nil {
		after = &Position{CreatedAt: to, ID: uuid.Max}
	}
	// One ticket more than the page tells whether there is a next one.
	window := limit + 1
	if f.narrows() {
		window = scanWindow
	}
	rows, err := s.q.ScanTickets(ctx, ticketdbsql.ScanTicketsParams{
		ClientID: scope.parameter(), CreatedFrom: from, CreatedTo: to, AfterCreatedAt: after.CreatedAt, AfterID: after.ID,
		WindowSize: int32(window), Filtered: f.narrows(), State: string(f.State), Department: f.Department, MinUrgency: f.MinUrgency,
		PageSize: int32(limit),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list tickets: %w", err)
	}
	if len(rows) == 0 {
		return nil, nil, nil
	}
	matches, end := rows[:len(rows)-1], rows[len(rows)-1]
	switch {
	case len(matches) == limit:
		last := matches[limit-1]
		if last.ID != end.ID {
			next = &Position{CreatedAt: last.CreatedAt, ID: last.ID}
		} else if end.Seen == int64(window) {
			next = &Position{CreatedAt: end.CreatedAt, ID: end.ID}
		}
	case end.Seen == int64(window):
		next = &Position{CreatedAt: end.CreatedAt, ID: end.ID}
	}
	ids := make([]uuid.UUID, len(matches))
	for i, m := range matches {
		ids[i] = m.ID
	}
	if tickets, err = s.GetAll(ctx, scope, ids); err != nil {
		return nil, nil, err
	}
	size := 0
	for i, t := range tickets {
		if size += len(t.Subject) + len(t.Message); size > pageBytes && i > 0 {
			last := tickets[i-1]
			return tickets[:i], &Position{CreatedAt: last.CreatedAt, ID: last.ID}, nil
		}
	}
	return tickets, next, nil
}

// Evaluations returns what each version has made of a ticket, the active version first, then the
// newest; ErrNotFound when the ticket is out of scope.
func (s *Store) Evaluations(ctx context.Context, scope Scope, id uuid.UUID) ([]Evaluation, error) {
	rows, err := s.q.ListEvaluations(ctx, ticketdbsql.ListEvaluationsParams{ID: id, ClientID: scope.parameter()})
	if err != nil {
		return nil, fmt.Errorf("list the evaluations of ticket %s: %w", id, err)
	}
	if len(rows) == 0 {
		exists, err := s.q.TicketExists(ctx, ticketdbsql.TicketExistsParams{ID: id, ClientID: scope.parameter()})
		if err != nil {
			return nil, fmt.Errorf("look up ticket %s: %w", id, err)
		}
		if !exists {
			return nil, fmt.Errorf("ticket %s: %w", id, ErrNotFound)
		}
	}
	evaluations := make([]Evaluation, len(rows))
	for i, r := range rows {
		evaluations[i] = evaluationOf(r.TicketEvaluation)
	}
	return evaluations, nil
}

// Answers returns the answers of those keys that have one.
func Answers(ctx context.Context, db ticketdbsql.DBTX, keys []content.Key) (map[content.Key]*Answer, error) {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	rows, err := ticketdbsql.New(db).Answers(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("get the answers of %d evaluations: %w", len(keys), err)
	}
	answers := make(map[content.Key]*Answer, len(rows))
	for _, row := range rows {
		r := row.EvaluationResult
		answers[content.Key(r.IdempotencyKey)] = &Answer{
			Department: r.Department, IsUrgent: r.IsUrgent, UrgencyScore: r.UrgencyScore,
			ModelVersion: r.ModelVersion, PromptVersion: r.PromptVersion, PolicyVersion: r.PolicyVersion,
			Priority: r.Priority, Queue: r.Queue, ModelCallID: r.ModelCallID, ComputedAt: r.ComputedAt, TraceID: row.TraceID,
		}
	}
	return answers, nil
}

// Followers returns the trace contexts of the tickets that each content serves, at most most of each.
func (s *Store) Followers(ctx context.Context, hashes []content.Hash, most int) (map[content.Hash][]string, error) {
	raw := make([][]byte, len(hashes))
	for i := range hashes {
		raw[i] = hashes[i][:]
	}
	rows, err := s.q.FollowersOf(ctx, ticketdbsql.FollowersOfParams{ContentHashes: raw, Most: int32(most)})
	if err != nil {
		return nil, fmt.Errorf("look up the tickets of %d contents: %w", len(hashes), err)
	}
	followers := make(map[content.Hash][]string, len(hashes))
	for _, r := range rows {
		h := content.Hash(r.ContentHash)
		followers[h] = append(followers[h], r.TraceContext)
	}
	return followers, nil
}

// CountFollowers is how many tickets there are that Followers would return, counted up to a number.
func (s *Store) CountFollowers(ctx context.Context, hashes []content.Hash, most int) (map[content.Hash]int, error) {
	raw := make([][]byte, len(hashes))
	for i := range hashes {
		raw[i] = hashes[i][:]
	}
	rows, err := s.q.CountFollowersOf(ctx, ticketdbsql.CountFollowersOfParams{ContentHashes: raw, Most: int32(most)})
	if err != nil {
		return nil, fmt.Errorf("count the tickets of %d contents: %w", len(hashes), err)
	}
	counts := make(map[content.Hash]int, len(rows))
	for _, r := range rows {
		counts[content.Hash(r.ContentHash)] = int(r.Tickets)
	}
	return counts, nil
}

func evaluationOf(r ticketdbsql.TicketEvaluation) Evaluation {
	e := Evaluation{
		State: outbox.State(r.State), Key: content.Key(r.IdempotencyKey), VersionID: r.VersionID, Attempts: int(r.Attempts),
		AnsweredWithoutCall: r.AnsweredWithoutCall,
	}
	switch e.State {
	case outbox.Succeeded:
		e.Attempts = 0
		e.Answer = &Answer{
			Department: r.Department, IsUrgent: r.IsUrgent, UrgencyScore: r.UrgencyScore,
			ModelVersion: r.ModelVersion, PromptVersion: r.PromptVersion, PolicyVersion: r.PolicyVersion,
			Priority: r.Priority, Queue: r.Queue, ModelCallID: r.ModelCallID, ComputedAt: r.ComputedAt,
			TraceID: r.AnswerTraceID,
		}
	case outbox.Dead:
		e.Dead = &Dead{Class: r.DeadClass, Reason: r.DeadReason, At: r.DeadAt}
	}
	return e
}
