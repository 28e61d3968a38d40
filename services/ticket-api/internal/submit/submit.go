// Package submit stores tickets with their pending evaluations: both or neither, in one transaction.
//
// Single tickets are committed in groups. There is no timer: a flusher takes whatever came while the flushers
// were busy, so a lone request waits for nothing and a crowd shares its transactions. A group that fails for the
// sake of one member is taken apart, and only that member fails.
//
// A request with an idempotency key has its effect once. Its key is taken first in the transaction, so the
// second of two concurrent requests waits for the first, and is then answered from the stored response.
package submit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

var (
	// ErrKeyReused is returned for an idempotency key that was used with another payload.
	ErrKeyReused = errors.New("the idempotency key was used with another payload")
	// ErrNoActiveVersion is returned, and nothing stored, while there is no version to evaluate under.
	ErrNoActiveVersion = versiondb.ErrNoActive
	// ErrExpired is returned for an idempotency key whose retention has ended while the request was answered. The
	// request had no effect: the same again is a new one.
	ErrExpired = errors.New("the idempotency key has just expired")
)

// BatchError names the request that a batch failed for. Nothing of the batch is stored.
type BatchError struct {
	Index int
	Err   error
}

func (e *BatchError) Error() string { return fmt.Sprintf("request %d: %v", e.Index, e.Err) }

// Unwrap returns the request's own error.
func (e *BatchError) Unwrap() error { return e.Err }

// Request is a valid request to store one ticket.
type Request struct {
	ClientID     string
	Operation    string // with the client, the scope of the request id
	RequestID    string // idempotency key; empty for none
	Fingerprint  [32]byte
	ExternalID   string
	Subject      string // as the client wrote it
	Message      string
	ContentHash  content.Hash // of the canonical text
	TraceContext string
}

func (r Request) id() ticketdb.RequestID {
	return ticketdb.RequestID{Scope: r.ClientID + " " + r.Operation, Key: r.RequestID}
}

// Receipt is the ticket as it was stored, or, Replayed, as it was the first time.
type Receipt struct {
	Ticket   ticketdb.Ticket
	Replayed bool
}

// Options sets a submitter up.
type Options struct {
	Retention time.Duration // of idempotency keys
	Metrics   *metrics.TicketAPI
}

// Submitter stores tickets.
type Submitter struct {
	pool      *pgxpool.Pool
	notifier  *outbox.Notifier
	retention time.Duration
	metrics   *metrics.TicketAPI
	active    atomic.Pointer[versiondb.Active] // as it was seen last
	queue     queue
}

// New makes a submitter; Submit needs its Run.
func New(pool *pgxpool.Pool, opts Options) *Submitter {
	return &Submitter{
		pool: pool, notifier: outbox.NewNotifier(pool), retention: opts.Retention, metrics: opts.Metrics,
		queue: queue{empty: make(chan struct{})},
	}
}

// SubmitAll stores all tickets or none, in one transaction. A request that cannot be stored is named by a
// *BatchError. Requests that were stored before are replayed; no two may carry the same request id.
func (s *Submitter) SubmitAll(ctx context.Context, requests []Request) ([]Receipt, error) {
	began := time.Now()
	receipts, err := s.submitAll(ctx, requests)
	s.measure(ctx, began, receipts, len(requests), err)
	return receipts, err
}

func (s *Submitter) submitAll(ctx context.Context, requests []Request) ([]Receipt, error) {
	var receipts []Receipt
	var saved savings
	err := postgres.InTx(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if receipts, saved, err = s.insert(ctx, tx, requests); err != nil {
			return err
		}
		return s.replay(ctx, tx, requests, receipts, func(i int, err error) error { return &BatchError{Index: i, Err: err} })
	})
	if err != nil {
		return nil, err
	}
	crashpoint.Pass(crashpoint.CreateCommitted)
	s.metrics.Committed(ctx, len(requests), saved.answered, saved.following)
	s.notifier.Ring()
	return receipts, nil
}

// insert stores the requests that are first of their id, with their work, and leaves an empty receipt for those
// that are not. It takes locks in one order everywhere: requests by scope and key, then work by evaluation key.
// What it saves is true once the transaction is committed.
//
// It takes two round trips: one to look, one to write. What another transaction changes in between, and dead work that
// is due again, takes a few more.
func (s *Submitter) insert(ctx context.Context, tx pgx.Tx, requests []Request) ([]Receipt, savings, error) {
	seen, err := s.look(ctx, tx, requests)
	if err != nil {
		return nil, savings{}, err
	}
	g, err := compose(requests, seen)
	if err != nil {
		return nil, savings{}, err
	}
	crashpoint.Pass(crashpoint.CreateBegun)
	if err := g.write(ctx, tx, s.retention); err != nil {
		return nil, savings{}, err
	}
	if missing := g.withoutWork(); len(missing) > 0 {
		if err := g.enqueue(ctx, tx, missing); err != nil {
			return nil, savings{}, err
		}
		if err := g.tellOf(ctx, tx, missing); err != nil {
			return nil, savings{}, err
		}
	}
	crashpoint.Pass(crashpoint.CreateEnqueued)
	return g.receipts(), g.savings(), nil
}

// replay fills the receipts that insert left empty from the stored responses. An error of one request is passed
// to failed, whose error ends the replay unless it is nil.
func (s *Submitter) replay(ctx context.Context, db querier, requests []Request, receipts []Receipt, failed func(i int, err error) error) error {
	var ids []ticketdb.RequestID
	for i, r := range receipts {
		if r.Ticket.ID == uuid.Nil {
			ids = append(ids, requests[i].id())
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stored, err := ticketdb.Requests(ctx, db, ids)
	if err != nil {
		return err
	}
	responses := map[string][]ticketdb.Response{} // by client
	replayed := map[int]uuid.UUID{}
	for i, r := range receipts {
		if r.Ticket.ID != uuid.Nil {
			continue
		}
		first, ok := stored[requests[i].id()]
		switch {
		case !ok:
			err = ErrExpired
		case first.Fingerprint != requests[i].Fingerprint:
			err = ErrKeyReused
		default:
			client := requests[i].ClientID
			responses[client] = append(responses[client], first.Response)
			replayed[i] = first.Response.TicketID
			continue
		}
		if err := failed(i, err); err != nil {
			return err
		}
	}
	told := make(map[uuid.UUID]ticketdb.Ticket, len(replayed))
	for client, r := range responses {
		tickets, err := ticketdb.Told(ctx, db, client, r)
		if err != nil {
			return err
		}
		maps.Copy(told, tickets)
	}
	for i, id := range replayed {
		if t, ok := told[id]; ok {
			receipts[i] = Receipt{Ticket: t, Replayed: true}
		} else if err := failed(i, fmt.Errorf("ticket %s: %w", id, ticketdb.ErrNotFound)); err != nil {
			return err
		}
	}
	return nil
}

// querier is a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
