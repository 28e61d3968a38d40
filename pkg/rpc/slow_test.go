package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// Whoever sends slowly, or nothing at all, is cut off; how soon is the server's to say.
func TestWhoSendsTooSlowlyIsCutOff(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo}, func(o *rpc.Options) { o.Hurry(100*time.Millisecond, 300*time.Millisecond) })
	head := "POST /v1/tickets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + e.token + "\r\nContent-Type: application/json\r\n"
	for name, c := range map[string]struct{ address, sent string }{
		"nothing over HTTP":       {e.server.HTTPAddress(), ""},
		"half of a header":        {e.server.HTTPAddress(), head},
		"half of a body":          {e.server.HTTPAddress(), head + "Content-Length: 100\r\n\r\n{\"message\":"},
		"half of a chunk":         {e.server.HTTPAddress(), head + "Transfer-Encoding: chunked\r\n\r\n40\r\n{\"message\":"},
		"nothing over gRPC":       {e.server.GRPCAddress(), ""},
		"half of gRPC's greeting": {e.server.GRPCAddress(), "PRI * HTTP/2.0\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", c.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, c.sent); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the connection is still open, after %q", answer)
			}
			if strings.Contains(string(answer), "201 Created") {
				t.Errorf("answered %q", answer)
			}
		})
	}
}

// open begins a call of CreateTicket, and sends nothing.
func (e *edge) open(ctx context.Context) grpc.ClientStream {
	e.t.Helper()
	stream, err := e.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, ticketv1.TicketService_CreateTicket_FullMethodName)
	if err != nil {
		e.t.Fatal(err)
	}
	return stream
}

// Who does not say who it is has nothing received, and nothing held.
func TestTheCallerIsKnownBeforeItsMessageComes(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	wantStatus(t, e.open(t.Context()).RecvMsg(&emptypb.Empty{}), codes.Unauthenticated, rpc.ReasonCredentialsMissing)
	wrong := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer wrong")
	wantStatus(t, e.open(wrong).RecvMsg(&emptypb.Empty{}), codes.Unauthenticated, rpc.ReasonCredentialsInvalid)
}

func TestAMessageThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo}, func(o *rpc.Options) { o.CallTimeout = 100 * time.Millisecond })
	wantStatus(t, e.open(e.authorized()).RecvMsg(&emptypb.Empty{}), codes.DeadlineExceeded, rpc.ReasonDeadlineExceeded)
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	long := strings.Repeat("x", 64<<10)
	if a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, "X-Long: "+long); a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("REST: %d", a.status)
	}
	ctx := metadata.AppendToOutgoingContext(e.authorized(), "x-long", long)
	if _, err := e.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"}); err == nil {
		t.Error("gRPC takes a header of 64 KiB")
	}
}

// checks is a service that streams.
type checks struct {
	adminv1.UnimplementedFsckServiceServer
}

func (checks) RunFsck(_ *adminv1.RunFsckRequest, stream grpc.ServerStreamingServer[adminv1.RunFsckResponse]) error {
	for range 2 {
		if err := stream.Send(&adminv1.RunFsckResponse{}); err != nil {
			return err
		}
	}
	return nil
}

func TestStreamsOverREST(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{}, func(o *rpc.Options) {
		o.Register = func(r grpc.ServiceRegistrar) { adminv1.RegisterFsckServiceServer(r, checks{}) }
		o.Gateways = []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{adminv1.RegisterFsckServiceHandler}
		o.Policy = rpc.Policy{adminv1.FsckService_RunFsck_FullMethodName: rpc.Authenticated}
	})
	if a := e.rest("GET", "/v1/fsck", ""); a.status != http.StatusOK || strings.Count(a.body, `"result"`) != 2 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A caller makes up no names of ours: of spans, of metrics, in the log.
func TestMadeUpMethodsLeaveNoName(t *testing.T) {
	// Not parallel: the tracer provider is the process's.
	spans := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	defer otel.SetTracerProvider(noop.NewTracerProvider())
	t.Run("calls", func(t *testing.T) {
		e := start(t, handlers{create: echo})
		if _, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"}); err != nil {
			t.Fatal(err)
		}
		err := e.conn.Invoke(e.authorized(), "/made.up.Service/Method-4711", &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(e.logs.String(), "4711") {
			t.Errorf("the log has the name: %s", e.logs)
		}
	})
	var known bool
	for _, span := range spans.Ended() {
		known = known || strings.HasSuffix(span.Name(), "TicketService/CreateTicket")
		if strings.Contains(span.Name(), "4711") {
			t.Errorf("there is a span %s", span.Name())
		}
	}
	if !known {
		t.Error("no span of a method that exists")
	}
}
