package metrics

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// TicketAPI is what ticket-api measures. A nil one measures nothing, as those below.
type TicketAPI struct {
	tickets, dedup  counter
	duration, group histogram
}

// NewTicketAPI makes its instruments.
func NewTicketAPI(meter metric.Meter) (*TicketAPI, error) {
	m := maker{meter: meter}
	t := &TicketAPI{
		tickets: m.counter("evalonce.tickets"), dedup: m.counter("evalonce.dedup.hits"),
		duration: m.histogram("evalonce.create.duration"), group: m.histogram("evalonce.create.group.size"),
	}
	return t, m.err()
}

// Answered counts what came of requests for tickets that were answered together, after a time.
func (t *TicketAPI) Answered(ctx context.Context, outcome string, tickets int, took time.Duration) {
	if t == nil {
		return
	}
	t.tickets.add(ctx, int64(tickets), outcome)
	t.duration.record(ctx, []float64{took.Seconds()}, outcome)
}

// Committed counts a transaction: its requests, and those of its tickets that need no call of their own.
func (t *TicketAPI) Committed(ctx context.Context, requests, answered, following int) {
	if t == nil {
		return
	}
	t.group.record(ctx, []float64{float64(requests)})
	t.dedup.add(ctx, int64(answered), Answered)
	t.dedup.add(ctx, int64(following), Following)
}
