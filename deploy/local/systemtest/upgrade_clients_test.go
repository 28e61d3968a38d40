package systemtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/deploy/local/stack"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// replica is a process that a balancer sends calls to.
type replica struct {
	*stack.API
	grpc, rest atomic.Int64 // calls that it has answered
	ending     atomic.Bool  // it has been told to end
}

// balancer spreads calls over replicas, as a service mesh or a load balancer does. It hears late of what has ended: replicas
// are taken out when they are gone, not before. What a caller may then see of one that has ended in peace is a refused
// connection; anything else is a failure, and so is everything about the others. While one is killed, its connections break.
type balancer struct {
	names   *manual.Resolver
	conn    *grpc.ClientConn
	http    *http.Client
	killing atomic.Bool
	// tries that failed as they may, and were made again.
	refused, broken atomic.Int64

	mu       sync.Mutex
	replicas []*replica
	turn     int
}

func newBalancer(t *testing.T, first ...*replica) *balancer {
	t.Helper()
	b := &balancer{
		names: manual.NewBuilderWithScheme("replicas"), replicas: first,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}},
	}
	b.names.InitialState(b.state())
	var err error
	b.conn, err = grpc.NewClient("replicas:///service", grpc.WithResolvers(b.names), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.http.CloseIdleConnections()
		_ = b.conn.Close()
	})
	return b
}

func (b *balancer) state() (s resolver.State) {
	for _, r := range b.replicas {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: r.GRPC}}})
	}
	return s
}

func (b *balancer) add(r *replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replicas = append(b.replicas, r)
	b.names.UpdateState(b.state())
}

func (b *balancer) remove(gone *replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replicas = slices.DeleteFunc(b.replicas, func(r *replica) bool { return r == gone })
	b.names.UpdateState(b.state())
}

func (b *balancer) all() []*replica {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.replicas)
}

func (b *balancer) next() *replica {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn++
	return b.replicas[b.turn%len(b.replicas)]
}

// call makes a call of gRPC, whose own balancing takes nobody to a replica that has said goodbye: nothing is made again here
// but what a kill has broken.
func (b *balancer) call(ctx context.Context, call func(context.Context, ...grpc.CallOption) error) error {
	for {
		killing := b.killing.Load()
		var served peer.Peer
		err := call(ctx, grpc.Peer(&served))
		switch {
		case err == nil:
			for _, r := range b.all() {
				if served.Addr != nil && r.GRPC == served.Addr.String() {
					r.grpc.Add(1)
				}
			}
			return nil
		case status.Code(err) == codes.Unavailable && (killing || b.killing.Load()):
			b.broken.Add(1)
		default:
			return err
		}
	}
}

// send sends a request of REST, with the key that makes it one intent, and returns the answer.
func (b *balancer) send(ctx context.Context, method, path, token, key string, body []byte) (int, []byte, error) {
	for {
		r, killing := b.next(), b.killing.Load()
		ending := r.ending.Load()
		code, answer, err := b.sendTo(ctx, r, method, path, token, key, body)
		switch {
		case err == nil:
			r.rest.Add(1)
			return code, answer, nil
		case (ending || r.ending.Load()) && neverTaken(err):
			b.refused.Add(1)
		case (killing || b.killing.Load()) && ctx.Err() == nil:
			b.broken.Add(1)
		default:
			return 0, nil, err
		}
	}
}

// neverTaken says that nobody has begun to answer: nobody listens, or the listener has ended with the connection in its queue.
func neverTaken(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

func (b *balancer) sendTo(ctx context.Context, r *replica, method, path, token, key string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.HTTP+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("an answer was cut: %v", err) //nolint:errorlint // it is none of those that may be
	}
	return resp.StatusCode, answer, nil
}

// operator looks at the routes, through admin, all the time.
type operator struct {
	balancer *balancer
	ctx      context.Context // with the token, for gRPC
	token    string
}

func (o operator) once(ctx context.Context) error {
	err := o.balancer.call(ctx, func(ctx context.Context, opts ...grpc.CallOption) error {
		_, err := adminv1.NewRouteServiceClient(o.balancer.conn).ListRoutes(ctx, &adminv1.ListRoutesRequest{}, opts...)
		return err
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	code, answer, err := o.balancer.send(ctx, http.MethodGet, "/v1/routes", o.token, "", nil)
	if err != nil || code != http.StatusOK {
		return fmt.Errorf("list routes over REST: status %d, %s: %w", code, answer, err)
	}
	return nil
}

// crowd are clients who create tickets, repeat themselves, and read what they have created, all the time. Half of them speak
// gRPC and half REST, and each says what it wants again at some other replica, of whatever release.
type crowd struct {
	t        *testing.T
	balancer *balancer
	ctx      context.Context // with the token, for gRPC
	token    string
	texts    atomic.Int64
	failed   chan struct{} // closed when one of them has given up
	operator operator

	mu      sync.Mutex
	tickets map[string]*ticketv1.Ticket // by request
}

const (
	upgradeClients = 4
	// Between two calls of a client, at most.
	upgradePause = 60 * time.Millisecond
)

// start lets them begin; they end with stop, which waits for them, or with the test.
func (c *crowd) start() (stop func()) {
	ends := make(chan struct{})
	var all sync.WaitGroup
	var first sync.Once
	live := func(ctx context.Context, n uint64, once func(context.Context) error) {
		r := rand.New(rand.NewPCG(n, 8))
		for {
			select {
			case <-ends:
				return
			case <-time.After(time.Duration(r.Int64N(int64(upgradePause)))):
			}
			calling, cancel := context.WithTimeout(ctx, patience)
			err := once(calling)
			cancel()
			if ctx.Err() != nil {
				return // the test is over, and has said why
			}
			if err != nil {
				first.Do(func() { close(c.failed) })
				c.t.Errorf("client %d: %v", n, err)
				return
			}
		}
	}
	for n := range uint64(upgradeClients) {
		r := rand.New(rand.NewPCG(n, 7))
		var mine []*ticketv1.CreateTicketRequest
		all.Go(func() {
			live(c.ctx, n, func(ctx context.Context) error { return c.once(ctx, r, n, &mine) })
		})
	}
	all.Go(func() { live(c.operator.ctx, upgradeClients, c.operator.once) })
	stop = sync.OnceFunc(func() {
		close(ends)
		all.Wait()
	})
	c.t.Cleanup(stop)
	return stop
}

func (c *crowd) once(ctx context.Context, r *rand.Rand, n uint64, mine *[]*ticketv1.CreateTicketRequest) error {
	overREST := n%2 == 1
	if len(*mine) > 0 && r.IntN(3) == 0 {
		request := (*mine)[r.IntN(len(*mine))]
		c.mu.Lock()
		id := c.tickets[request.GetRequestId()].GetId()
		c.mu.Unlock()
		ticket, err := c.get(ctx, overREST, id)
		if err == nil && ticket.GetMessage() != request.GetMessage() {
			err = fmt.Errorf("is %q, was %q", ticket.GetMessage(), request.GetMessage())
		}
		if err != nil {
			return fmt.Errorf("read ticket %s: %w", id, err)
		}
		return nil
	}
	var request *ticketv1.CreateTicketRequest
	if len(*mine) > 0 && r.IntN(4) == 0 {
		request = (*mine)[r.IntN(len(*mine))] // once more, as after a lost answer
	} else {
		content := c.texts.Load()
		if content < 10 || r.IntN(4) > 0 {
			content = c.texts.Add(1)
		} else {
			content = r.Int64N(content)
		}
		request = &ticketv1.CreateTicketRequest{Subject: "Help", Message: text(int(content)), RequestId: fmt.Sprintf("client-%d-%d", n, len(*mine))}
		*mine = append(*mine, request)
	}
	ticket, err := c.create(ctx, overREST, request)
	if err != nil {
		return fmt.Errorf("create %s: %w", request.GetRequestId(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, ok := c.tickets[request.GetRequestId()]; ok && before.GetId() != ticket.GetId() {
		return fmt.Errorf("%s made two tickets, %s and %s", request.GetRequestId(), before.GetId(), ticket.GetId())
	}
	c.tickets[request.GetRequestId()] = ticket
	return nil
}

func (c *crowd) create(ctx context.Context, overREST bool, request *ticketv1.CreateTicketRequest) (ticket *ticketv1.Ticket, err error) {
	if overREST {
		own := proto.CloneOf(request)
		own.RequestId = ""
		body, err := protojson.Marshal(own)
		if err != nil {
			return nil, err
		}
		return c.restTicket(ctx, http.MethodPost, "/v1/tickets", request.GetRequestId(), body, http.StatusCreated)
	}
	err = c.balancer.call(ctx, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		ticket, err = ticketv1.NewTicketServiceClient(c.balancer.conn).CreateTicket(ctx, request, opts...)
		return err
	})
	return ticket, err
}

func (c *crowd) get(ctx context.Context, overREST bool, id string) (ticket *ticketv1.Ticket, err error) {
	if overREST {
		return c.restTicket(ctx, http.MethodGet, "/v1/tickets/"+id, "", nil, http.StatusOK)
	}
	err = c.balancer.call(ctx, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		ticket, err = ticketv1.NewTicketServiceClient(c.balancer.conn).GetTicket(ctx, &ticketv1.GetTicketRequest{Id: id}, opts...)
		return err
	})
	return ticket, err
}

func (c *crowd) restTicket(ctx context.Context, method, path, key string, body []byte, want int) (*ticketv1.Ticket, error) {
	code, answer, err := c.balancer.send(ctx, method, path, c.token, key, body)
	if err != nil {
		return nil, err
	}
	if code != want {
		return nil, fmt.Errorf("status %d: %s", code, answer)
	}
	ticket := &ticketv1.Ticket{}
	return ticket, protojson.Unmarshal(answer, ticket)
}

// await waits until each of the replicas has answered some more calls of each kind.
func (c *crowd) await(replicas ...*replica) {
	c.t.Helper()
	const more = 5
	type served struct{ grpc, rest int64 }
	before := map[*replica]served{}
	for _, r := range replicas {
		before[r] = served{r.grpc.Load(), r.rest.Load()}
	}
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if !slices.ContainsFunc(replicas, func(r *replica) bool {
			return r.grpc.Load() < before[r].grpc+more || r.rest.Load() < before[r].rest+more
		}) {
			return
		}
		select {
		case <-c.failed:
			c.t.Fatal("a client has given up")
		case <-deadline:
			c.t.Fatalf("not every replica of %d has answered %d calls of each kind within %s", len(replicas), more, patience)
		case <-tick.C:
		}
	}
}
