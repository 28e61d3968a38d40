package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// bytesCodec sends bytes as they are: a client that does not check what it sends.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bytesCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// invalidUTF8 is a CreateTicketRequest whose subject is the bytes 61 ff.
var invalidUTF8 = []byte{0x0a, 2, 'a', 0xff, 0x12, 1, 'x'}

func (e *edge) send(ctx context.Context, method string, message []byte) error {
	return e.conn.Invoke(ctx, method, message, new(any), grpc.ForceCodecV2(bytesCodec{}))
}

func TestWithoutATokenNothingIsRevealed(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	for _, method := range []string{
		ticketv1.TicketService_CreateTicket_FullMethodName,
		"/evalonce.ticket.v1.TicketService/NoSuchMethod",
		"/no.such.Service/Method",
	} {
		wantStatus(t, e.send(t.Context(), method, invalidUTF8), codes.Unauthenticated, rpc.ReasonCredentialsMissing)
	}
	reflection, err := reflectionv1.NewServerReflectionClient(e.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = reflection.Recv()
	wantStatus(t, err, codes.Unauthenticated, rpc.ReasonCredentialsMissing)

	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/tickets", "no JSON"},
		{"POST", "/v1/tickets", strings.Repeat("x", 2*maxRequestBytes)},
		{"GET", "/v1/tickets?no=such", ""},
		{"GET", "/no/such/path", ""},
	} {
		a := e.rest(c.method, c.path, c.body, "=Authorization")
		wantREST(t, a, http.StatusUnauthorized, rpc.ReasonCredentialsMissing)
		if got := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
			t.Errorf("WWW-Authenticate %q", got)
		}
	}
}

func TestHealthIsOpen(t *testing.T) {
	t.Parallel()
	broken := errors.New("db.internal refused")
	var ready error
	e := start(t, handlers{}, func(o *rpc.Options) { o.Ready = func(context.Context) error { return ready } })
	for _, service := range []string{"", "evalonce.ticket.v1.TicketService"} {
		r, err := grpc_health_v1.NewHealthClient(e.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, r, err)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/public"} {
		if a := e.rest("GET", path, "", "=Authorization"); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}

	ready = broken
	unready := start(t, handlers{}, func(o *rpc.Options) { o.Ready = func(context.Context) error { return ready } })
	a := unready.rest("GET", "/readyz", "", "=Authorization")
	if a.status != http.StatusServiceUnavailable || strings.Contains(a.body, "internal") {
		t.Errorf("readyz with a broken dependency: %d %q", a.status, a.body)
	}
	if a := unready.rest("GET", "/healthz", "", "=Authorization"); a.status != http.StatusOK {
		t.Errorf("liveness must not depend on the database: %d", a.status)
	}
	if !strings.Contains(unready.logs.String(), broken.Error()) {
		t.Error("the cause of not being ready is not in the log")
	}
}

func TestReflectionWithAToken(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{})
	stream, err := reflectionv1.NewServerReflectionClient(e.conn).ServerReflectionInfo(e.authorized())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if !strings.Contains(strings.Join(names, " "), "evalonce.ticket.v1.TicketService") {
		t.Errorf("services %v", names)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	var caller rpc.Principal
	e := start(t, handlers{create: func(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		caller, _ = rpc.PrincipalFrom(ctx)
		return echo(ctx, r)
	}})
	good := "Bearer " + e.token
	for name, c := range map[string]struct {
		values []string
		ok     bool
	}{
		"token":                {[]string{good}, true},
		"scheme in lower case": {[]string{"bearer " + e.token}, true},
		"the same twice":       {[]string{good, good}, true},
		"none":                 {nil, false},
		"another token":        {[]string{"Bearer " + e.token + "x"}, false},
		"the token alone":      {[]string{e.token}, false},
		"basic":                {[]string{"Basic " + e.token}, false},
		"no token":             {[]string{"Bearer "}, false},
		"good first":           {[]string{good, "Bearer other"}, false},
		"good last":            {[]string{"Bearer other", good}, false},
		"joined with a comma":  {[]string{good + ", " + good}, false},
	} {
		t.Run(name, func(t *testing.T) {
			caller = rpc.Principal{}
			ctx := t.Context()
			for _, v := range c.values {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", v)
			}
			_, err := e.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"})
			headers := []string{"=Authorization"}
			for _, v := range c.values {
				headers = append(headers, "Authorization: "+v)
			}
			a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, headers...)
			if !c.ok {
				if status.Code(err) != codes.Unauthenticated || a.status != http.StatusUnauthorized {
					t.Errorf("let in: %v, %d", err, a.status)
				}
				return
			}
			if err != nil || a.status != http.StatusCreated || caller.ClientID != "acme" {
				t.Errorf("refused: %v, %d %s, as %q", err, a.status, a.body, caller.ClientID)
			}
		})
	}
	t.Run("forwarded headers are nobody's credentials", func(t *testing.T) {
		a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, "=Authorization", "Grpc-Metadata-Authorization: "+good)
		wantREST(t, a, http.StatusUnauthorized, rpc.ReasonCredentialsMissing)
		a = e.rest("POST", "/v1/tickets", `{"message":"x"}`, "Grpc-Metadata-Authorization: Bearer other",
			"Grpc-Metadata-Idempotency-Key: a", "Grpc-Metadata-X-Client: other")
		if a.status != http.StatusCreated {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

func TestMethodsThatNoPolicyNamesAreDenied(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo}, func(o *rpc.Options) {
		o.Policy = rpc.Policy{ticketv1.TicketService_GetTicket_FullMethodName: rpc.Authenticated}
	})
	_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"})
	wantStatus(t, err, codes.PermissionDenied, rpc.ReasonAccessDenied)
	wantREST(t, e.rest("POST", "/v1/tickets", `{"message":"x"}`), http.StatusForbidden, rpc.ReasonAccessDenied)
	wantStatus(t, e.send(e.authorized(), "/no.such.Service/Method", nil), codes.Unimplemented, rpc.ReasonNoSuchMethod)
}

func TestAPolicyForNothingIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"/evalonce.ticket.v1.TicketService/CreateTickets", "/evalonce.ticket.v1.Tickets/*"} {
		s, err := rpc.Listen(t.Context(), rpc.Options{
			Transport:   rpc.Transport{Plaintext: true},
			GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
			Register: func(r grpc.ServiceRegistrar) { ticketv1.RegisterTicketServiceServer(r, handlers{}) },
			Policy:   rpc.Policy{name: rpc.Open},
		})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	first, firstHash := rpc.MintToken()
	second, secondHash := rpc.MintToken()
	other, otherHash := rpc.MintToken()
	if first == second || firstHash == secondHash {
		t.Fatal("two tokens are equal")
	}
	tokens, err := rpc.ParseTokens("acme=" + firstHash + ", acme=" + strings.ToUpper(secondHash) + ",other=" + otherHash)
	if err != nil {
		t.Fatal(err)
	}
	for token, client := range map[string]string{first: "acme", second: "acme", other: "other"} {
		p, err := tokens.Authenticate(t.Context(), token)
		if err != nil || p.ClientID != client {
			t.Errorf("got %v, %v, want %s", p, err, client)
		}
	}
	for _, token := range []string{"", firstHash, first + " ", strings.ToLower(first)} {
		if p, err := tokens.Authenticate(t.Context(), token); !errors.Is(err, rpc.ErrInvalidCredentials) {
			t.Errorf("%q: got %v, %v", token, p, err)
		}
	}
	for _, s := range []string{
		"", "acme", "acme=" + first, "acme=" + firstHash[1:], "=" + firstHash, "a b=" + firstHash,
		"acme=" + firstHash + ",", "acme=" + firstHash + ",other=" + firstHash,
	} {
		tokens, err := rpc.ParseTokens(s)
		if err == nil {
			t.Errorf("%q is accepted: %v", s, tokens)
			continue
		}
		if strings.Contains(err.Error(), first) || strings.Contains(err.Error(), firstHash[1:]) {
			t.Errorf("the error shows what may be a secret: %v", err)
		}
	}
}
