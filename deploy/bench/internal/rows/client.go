package rows

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// inFlight is how many creates are under way at any time.
const inFlight = 64

// Channels of a busy client: one would have all its calls wait for one goroutine that writes.
const channels = 4

type ticket struct{ subject, message, key string }

func distinct(i int) ticket {
	return ticket{
		subject: fmt.Sprintf("Order %d", i),
		message: fmt.Sprintf("I was charged twice for order %d, once on Monday and once today. Please refund one of the two payments to my card.", i),
		key:     fmt.Sprintf("create-%d", i),
	}
}

func identical(i int) ticket {
	t := distinct(0)
	t.key = fmt.Sprintf("create-%d", i)
	return t
}

// createAll makes n tickets, 64 at a time, and returns how many in a second.
func createAll(ctx context.Context, n int, text func(i int) ticket, create func(ctx context.Context, worker int, t ticket) error) (perSecond float64, err error) {
	var next atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for worker := range inFlight {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := create(ctx, worker, text(i)); err != nil {
					return fmt.Errorf("create ticket %d of %d: %w", i, n, err)
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// api is a running ticket-api on a database.
type api struct {
	*stack.API
	token string
}

func (b *Bench) startAPI(ctx context.Context, db *bed.Database) (*api, error) {
	db.Use()
	token, hash := rpc.MintToken()
	a, err := b.Bed.StartTicketAPI(ctx, "bench="+hash)
	if err != nil {
		return nil, err
	}
	return &api{API: a, token: token}, nil
}

func (a *api) authorized(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+a.token)
}

func (a *api) dial() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(a.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to ticket-api: %w", err)
	}
	return conn, nil
}

func createOver(ctx context.Context, conn *grpc.ClientConn, t ticket) error {
	_, err := ticketv1.NewTicketServiceClient(conn).CreateTicket(ctx, &ticketv1.CreateTicketRequest{Subject: t.subject, Message: t.message, RequestId: t.key})
	return err
}

// createGRPC makes tickets over gRPC.
func (a *api) createGRPC(ctx context.Context, n int, text func(i int) ticket) (perSecond float64, err error) {
	var conns [channels]*grpc.ClientConn
	for i := range conns {
		conn, err := a.dial()
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		conns[i] = conn
	}
	ctx = a.authorized(ctx)
	return createAll(ctx, n, text, func(ctx context.Context, worker int, t ticket) error {
		return createOver(ctx, conns[worker%channels], t)
	})
}

// createREST makes tickets over REST, with connections that are kept.
func (a *api) createREST(ctx context.Context, n int, text func(i int) ticket) (perSecond float64, err error) {
	transport := &http.Transport{MaxIdleConnsPerHost: inFlight}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	return createAll(ctx, n, text, func(ctx context.Context, _ int, t ticket) error {
		body, err := json.Marshal(map[string]string{"subject": t.subject, "message": t.message})
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.HTTP+"/v1/tickets", bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+a.token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", t.key)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
}
