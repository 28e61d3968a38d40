package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const maxRequestBytes = 64 << 10

func TestMain(m *testing.M) {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	goleak.VerifyTestMain(m)
}

// handlers is a service whose methods a test supplies.
type handlers struct {
	ticketv1.UnimplementedTicketServiceServer
	create func(context.Context, *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error)
	get    func(context.Context, *ticketv1.GetTicketRequest) (*ticketv1.Ticket, error)
	list   func(context.Context, *ticketv1.ListTicketsRequest) (*ticketv1.ListTicketsResponse, error)
}

func (h handlers) CreateTicket(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
	return h.create(ctx, r)
}

func (h handlers) GetTicket(ctx context.Context, r *ticketv1.GetTicketRequest) (*ticketv1.Ticket, error) {
	return h.get(ctx, r)
}

func (h handlers) ListTickets(ctx context.Context, r *ticketv1.ListTicketsRequest) (*ticketv1.ListTicketsResponse, error) {
	return h.list(ctx, r)
}

func echo(_ context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
	return &ticketv1.Ticket{Id: "1", Subject: r.GetSubject(), Message: r.GetMessage()}, nil
}

type edge struct {
	t      *testing.T
	server *rpc.Server
	token  string
	conn   *grpc.ClientConn
	logs   *logBuffer
	stop   context.CancelFunc
	ended  chan error
}

// start serves h until the test ends. change may adjust the options.
func start(t *testing.T, h handlers, change ...func(*rpc.Options)) *edge {
	t.Helper()
	token, hash := rpc.MintToken()
	tokens, err := rpc.ParseTokens("acme=" + hash)
	if err != nil {
		t.Fatal(err)
	}
	logs := &logBuffer{}
	o := rpc.Options{
		Transport:   rpc.Transport{Plaintext: true},
		GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
		Register:      func(r grpc.ServiceRegistrar) { ticketv1.RegisterTicketServiceServer(r, h) },
		Gateways:      []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{ticketv1.RegisterTicketServiceHandler},
		Authenticator: tokens,
		Policy:        rpc.Policy{"/evalonce.ticket.v1.TicketService/*": rpc.Authenticated},
		Created:       []string{ticketv1.TicketService_CreateTicket_FullMethodName},
		Public: map[string]http.Handler{"GET /public": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "public")
		})},
		MaxRequestBytes: maxRequestBytes, CallTimeout: 30 * time.Second, Grace: 10 * time.Second,
		Logger: slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&o)
	}
	s, err := rpc.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	e := &edge{t: t, server: s, token: token, logs: logs, stop: cancel, ended: make(chan error, 1)}
	go func() { e.ended <- s.Run(ctx) }()
	if e.conn, err = grpc.NewClient(s.GRPCAddress(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.conn.Close()
		cancel()
		if err, ok := <-e.ended; ok && err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return e
}

func (e *edge) authorized() context.Context {
	return metadata.AppendToOutgoingContext(e.t.Context(), "authorization", "Bearer "+e.token)
}

func (e *edge) client() ticketv1.TicketServiceClient { return ticketv1.NewTicketServiceClient(e.conn) }

type answer struct {
	status int
	header http.Header
	body   string
}

// rest sends an authorized JSON request; headers of the form "Name: value" are added, and replace what is there
// when they begin with "=", or remove it when they have no value.
func (e *edge) rest(method, path, body string, headers ...string) answer {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, "http://"+e.server.HTTPAddress()+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if strings.HasPrefix(name, "=") {
			name = name[1:]
			req.Header.Del(name)
		}
		if value != "" {
			req.Header.Add(name, value)
		}
	}
	return e.do(req)
}

func (e *edge) do(req *http.Request) answer {
	e.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: string(body)}
}

// reason is the ErrorInfo reason of a google.rpc.Status in JSON.
func (a answer) reason(t *testing.T) string {
	t.Helper()
	var st struct {
		Code    int
		Message string
		Details []struct {
			Type   string `json:"@type"`
			Reason string
			Domain string
		}
	}
	if err := json.Unmarshal([]byte(a.body), &st); err != nil {
		t.Fatalf("the answer %d %q is no status: %v", a.status, a.body, err)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	for _, d := range st.Details {
		if strings.HasSuffix(d.Type, "google.rpc.ErrorInfo") && d.Domain == rpc.Domain {
			return d.Reason
		}
	}
	t.Fatalf("the answer %s has no ErrorInfo", a.body)
	return ""
}

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != rpc.Domain {
				t.Errorf("domain %q", info.GetDomain())
			}
			return info.GetReason()
		}
	}
	t.Fatalf("%v has no ErrorInfo", err)
	return ""
}

func wantStatus(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Fatalf("got %v, want %v: %v", got, code, err)
	}
	if got := reasonOf(t, err); got != reason {
		t.Errorf("got reason %s, want %s", got, reason)
	}
}

func wantREST(t *testing.T, a answer, code int, reason string) {
	t.Helper()
	if a.status != code {
		t.Fatalf("got %d, want %d: %s", a.status, code, a.body)
	}
	if got := a.reason(t); got != reason {
		t.Errorf("got reason %s, want %s", got, reason)
	}
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
