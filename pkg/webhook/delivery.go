package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

// State is where a delivery stands.
type State string

// The states.
const (
	Pending   State = "pending"
	Sending   State = "sending"
	Delivered State = "delivered"
	Failed    State = "failed"
)

// Delivery is one event for one endpoint, without what is sent.
type Delivery struct {
	ID            uuid.UUID
	Event         Event
	TicketID      uuid.UUID // uuid.Nil for a test
	Sequence      int64
	State         State
	Attempts      int
	LastStatus    int
	LastReason    string
	LastAttemptAt time.Time
	DueAt         time.Time // while it is pending
	CreatedAt     time.Time
	FinishedAt    time.Time
}

// DeliveryFilter narrows a list; zero fields do not.
type DeliveryFilter struct {
	State    State
	Event    Event
	TicketID uuid.UUID
}

const (
	// matchWindow bounds the deliveries that one page of a filtered list looks at.
	matchWindow = 5_000
	// redeliverMost bounds what one call makes due again.
	redeliverMost = 10_000
)

// Deliveries returns a page of an endpoint's deliveries before one (the first page with uuid.Max), newest first, and
// where the next page goes on; uuid.Nil at the end.
func (s *Endpoints) Deliveries(ctx context.Context, client string, endpoint uuid.UUID, f DeliveryFilter, before uuid.UUID, limit int) ([]Delivery, uuid.UUID, error) {
	if _, err := s.Get(ctx, client, endpoint); err != nil {
		return nil, uuid.Nil, err
	}
	// One more than the page tells whether there is a next one.
	window := limit + 1
	if f != (DeliveryFilter{}) {
		window = matchWindow
	}
	p := webhooksql.MatchDeliveriesParams{
		EndpointID: endpoint, State: string(f.State), Event: string(f.Event), Before: before, WindowSize: int32(window),
	}
	if f.TicketID != uuid.Nil {
		p.TicketID = &f.TicketID
	}
	seen, err := s.q.MatchDeliveries(ctx, p)
	if err != nil {
		return nil, uuid.Nil, fmt.Errorf("list the deliveries of endpoint %s: %w", endpoint, err)
	}
	var ids []uuid.UUID
	next := uuid.Nil
	for i, row := range seen {
		if row.Matches {
			ids = append(ids, row.ID)
		}
		if more := i < len(seen)-1 || len(seen) == window; len(ids) == limit || i == len(seen)-1 {
			if more {
				next = row.ID
			}
			break
		}
	}
	rows, err := s.q.GetDeliveries(ctx, webhooksql.GetDeliveriesParams{Ids: ids, EndpointID: endpoint})
	if err != nil {
		return nil, uuid.Nil, fmt.Errorf("get %d deliveries of endpoint %s: %w", len(ids), endpoint, err)
	}
	deliveries := make([]Delivery, len(rows))
	for i, r := range rows {
		deliveries[i] = deliveryOf(r)
	}
	return deliveries, next, nil
}

func deliveryOf(r webhooksql.GetDeliveriesRow) Delivery {
	d := Delivery{ID: r.ID, Event: Event(r.Event), State: State(r.State), Attempts: int(r.Attempts), CreatedAt: r.CreatedAt}
	if r.TicketID != nil {
		d.TicketID, d.Sequence = *r.TicketID, *r.Sequence
	}
	if r.LastStatus != nil {
		d.LastStatus = int(*r.LastStatus)
	}
	if r.LastReason != nil {
		d.LastReason = *r.LastReason
	}
	if r.LastAttemptAt != nil {
		d.LastAttemptAt = *r.LastAttemptAt
	}
	if r.FinishedAt != nil {
		d.FinishedAt = *r.FinishedAt
	}
	// A test is due before everything else, from the beginning of time.
	if d.State == Pending {
		d.DueAt = r.AvailableAt
		if d.DueAt.Before(r.CreatedAt) {
			d.DueAt = r.CreatedAt
		}
	}
	return d
}

// SendTest queues a test before all that waits for the endpoint, and ends a pause that the endpoint is in.
func (s *Endpoints) SendTest(ctx context.Context, client string, endpoint uuid.UUID) (d Delivery, err error) {
	err = s.change(ctx, client, endpoint, func(ctx context.Context, q *webhooksql.Queries, e Endpoint) error {
		if !e.Enabled {
			return ErrDisabled
		}
		if err := q.TryNow(ctx, endpoint); err != nil {
			return err
		}
		id, err := q.InsertTest(ctx, endpoint)
		if err != nil {
			return err
		}
		rows, err := q.GetDeliveries(ctx, webhooksql.GetDeliveriesParams{Ids: []uuid.UUID{id}, EndpointID: endpoint})
		if err != nil {
			return err
		}
		d = deliveryOf(rows[0])
		return nil
	})
	if err != nil {
		return Delivery{}, fmt.Errorf("send a test to webhook endpoint %s: %w", endpoint, err)
	}
	return d, nil
}

// Redeliver makes one delivery due again, whatever became of it, under its id and with its bytes, and ends a pause that
// the endpoint is in.
func (s *Endpoints) Redeliver(ctx context.Context, client string, endpoint, id uuid.UUID) error {
	err := s.change(ctx, client, endpoint, func(ctx context.Context, q *webhooksql.Queries, e Endpoint) error {
		if !e.Enabled {
			return ErrDisabled
		}
		rows, err := q.GetDeliveries(ctx, webhooksql.GetDeliveriesParams{Ids: []uuid.UUID{id}, EndpointID: endpoint})
		if err != nil {
			return err
		}
		switch {
		case len(rows) == 0:
			return ErrDeliveryNotFound
		case !rows[0].Kept:
			return ErrBodyErased
		}
		if err := q.TryNow(ctx, endpoint); err != nil {
			return err
		}
		_, err = q.Redeliver(ctx, webhooksql.RedeliverParams{ID: id, EndpointID: endpoint})
		return err
	})
	if err != nil {
		return fmt.Errorf("redeliver %s to webhook endpoint %s: %w", id, endpoint, err)
	}
	return nil
}

// RedeliverFailed makes due again what has failed for good since a time, the oldest first, and reports whether there is
// more of it. It ends a pause that the endpoint is in.
func (s *Endpoints) RedeliverFailed(ctx context.Context, client string, endpoint uuid.UUID, since time.Time) (n int, more bool, err error) {
	err = s.change(ctx, client, endpoint, func(ctx context.Context, q *webhooksql.Queries, e Endpoint) error {
		if !e.Enabled {
			return ErrDisabled
		}
		if err := q.TryNow(ctx, endpoint); err != nil {
			return err
		}
		rows, err := q.RedeliverFailed(ctx, webhooksql.RedeliverFailedParams{EndpointID: endpoint, Since: since, Most: redeliverMost})
		n, more = int(rows), rows == redeliverMost
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("redeliver to webhook endpoint %s: %w", endpoint, err)
	}
	return n, more, nil
}
