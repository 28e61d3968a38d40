package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// creation is what came of sending the tickets.
type creation struct {
	ids       []string // in the order of the tickets
	latencies []time.Duration
	took      time.Duration
}

// create sends every ticket in a call of its own, each with its own idempotency key.
func (d *demo) create(ctx context.Context, c *client) (creation, error) {
	n := len(d.tickets)
	made := creation{ids: make([]string, n), latencies: make([]time.Duration, n)}
	run := rand.Text()
	progress := d.progress("created")
	defer progress.Stop()
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, t := range d.tickets {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			sent := time.Now()
			ticket, err := c.CreateTicket(ctx, &ticketv1.CreateTicketRequest{
				Subject: t.Subject, Message: t.Message, ExternalId: t.ExternalID, RequestId: fmt.Sprintf("%s-%d", run, t.Line),
			})
			if err != nil {
				return fmt.Errorf("create the ticket of line %d: %w", t.Line, inDetail(err))
			}
			made.ids[i], made.latencies[i] = ticket.GetId(), time.Since(sent)
			progress.Add(1)
			return nil
		})
	}
	err := group.Wait()
	made.took = time.Since(began)
	return made, err
}
