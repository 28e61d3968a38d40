package rpc_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestRunningCallsEndBeforeTheServerDoes(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 2), make(chan struct{})
	e := start(t, handlers{create: func(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		entered <- struct{}{}
		<-release
		return echo(ctx, r)
	}})
	// A watcher that never leaves must not hold the server back.
	watch, err := grpc_health_v1.NewHealthClient(e.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("%v, %v", r, err)
	}
	overGRPC, overREST := make(chan error, 1), make(chan answer, 1)
	go func() {
		_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"})
		overGRPC <- err
	}()
	go func() { overREST <- e.rest("POST", "/v1/tickets", `{"message":"x"}`) }()
	<-entered
	<-entered
	e.stop()
	// The watcher hears of the stop while the calls still run.
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", r, err)
	}
	select {
	case err := <-e.ended:
		t.Fatalf("the server has ended before its calls: %v", err)
	default:
	}
	close(release)
	if err := <-overGRPC; err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if a := <-overREST; a.status != http.StatusCreated {
		t.Errorf("REST: %d %s", a.status, a.body)
	}
	if err := <-e.ended; err != nil {
		t.Errorf("the server ended with %v", err)
	}
	close(e.ended)
}

func TestWhatOutlastsTheGraceIsCut(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	cut := make(chan error, 1)
	e := start(t, handlers{create: func(ctx context.Context, _ *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		close(entered)
		<-ctx.Done()
		cut <- ctx.Err()
		return nil, ctx.Err()
	}}, func(o *rpc.Options) { o.Grace = 200 * time.Millisecond })
	called := make(chan error, 1)
	go func() {
		_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"})
		called <- err
	}()
	<-entered
	e.stop()
	if err := <-e.ended; err == nil || !strings.Contains(err.Error(), "cut") {
		t.Errorf("the server ended with %v", err)
	}
	close(e.ended)
	if err := <-cut; err == nil {
		t.Error("the handler was not told")
	}
	if err := <-called; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("the caller got %v", err)
	}
}

func TestABoundPortIsAnError(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{})
	for _, o := range []rpc.Options{
		{GRPCAddress: e.server.GRPCAddress(), HTTPAddress: "127.0.0.1:0"},
		{GRPCAddress: "127.0.0.1:0", HTTPAddress: e.server.HTTPAddress()},
	} {
		o.Register, o.Transport = func(grpc.ServiceRegistrar) {}, rpc.Transport{Plaintext: true}
		if _, err := rpc.Listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), "listen for") {
			t.Errorf("got %v", err)
		}
	}
}
