package systemtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// order is a ticket that a client wants stored, once, whatever happens to the servers.
type order struct {
	id      string // of the request
	message string
}

const (
	contents      = 30 // different texts among
	ordersPerTest = 45 // tickets
	sendersAtOnce = 8
	orderPatience = 5 * time.Second // for one try
	batchSize     = 5
)

// text is the message of the n-th content.
func text(n int) string { return fmt.Sprintf("ticket <%02d>", n) }

// someOrders are tickets with duplicates among them, in an order that is always the same.
func someOrders() []order {
	orders := make([]order, ordersPerTest)
	for i, n := range rand.New(rand.NewPCG(1, 2)).Perm(ordersPerTest) {
		orders[i] = order{id: fmt.Sprintf("request-%d", n), message: text(n % contents)}
	}
	return orders
}

// submit sends orders until all are accepted: one by one, or as batches, and every third of them twice at once, as
// impatient clients do. It returns the tickets by request.
func (s *system) submit(orders []order) map[string]string {
	s.t.Helper()
	var batches [][]order
	for i := 0; i < len(orders); {
		n := 1
		if i > len(orders)*2/3 {
			n = min(batchSize, len(orders)-i)
		}
		batches = append(batches, orders[i:i+n])
		if i%3 == 0 {
			batches = append(batches, orders[i:i+n])
		}
		i += n
	}
	queue := make(chan []order)
	var senders sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]string{}
	for range sendersAtOnce {
		senders.Go(func() {
			for batch := range queue {
				for i, ticket := range s.send(batch) {
					mu.Lock()
					if id, ok := ids[batch[i].id]; ok && id != ticket.GetId() {
						s.t.Errorf("%s made two tickets, %s and %s", batch[i].id, id, ticket.GetId())
					}
					ids[batch[i].id] = ticket.GetId()
					mu.Unlock()
				}
			}
		})
	}
	for _, batch := range batches {
		queue <- batch
	}
	close(queue)
	senders.Wait()
	return ids
}

// send sends one request until it is accepted.
func (s *system) send(orders []order) []*ticketv1.Ticket {
	requests := make([]*ticketv1.CreateTicketRequest, len(orders))
	for i, o := range orders {
		requests[i] = &ticketv1.CreateTicketRequest{Subject: "Help", Message: o.message, RequestId: o.id}
	}
	var tickets []*ticketv1.Ticket
	err := s.insist(func(ctx context.Context) error {
		if len(requests) == 1 {
			ticket, err := s.api.CreateTicket(ctx, requests[0], grpc.WaitForReady(true))
			tickets = []*ticketv1.Ticket{ticket}
			return err
		}
		answer, err := s.api.BatchCreateTickets(ctx, &ticketv1.BatchCreateTicketsRequest{Requests: requests}, grpc.WaitForReady(true))
		tickets = answer.GetTickets()
		return err
	})
	if err != nil {
		if s.ctx.Err() == nil { // else the test is over, and has said why
			s.t.Errorf("send %s and %d more: %v", orders[0].id, len(orders)-1, err)
		}
		return nil
	}
	return tickets
}

// insist calls again for as long as the server cannot be reached or says that it cannot serve just now.
func (s *system) insist(call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	for {
		once, cancel := context.WithTimeout(ctx, orderPatience)
		err := call(once)
		cancel()
		if code := status.Code(err); err == nil || ctx.Err() != nil || code != codes.Unavailable && code != codes.DeadlineExceeded {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
