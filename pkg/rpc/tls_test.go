package rpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/rpc/tlstest"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// files are those of a server's transport.
func files(authority *tlstest.Authority) rpc.Transport {
	f := authority.Write(authority.Issue("spiffe://mesh/server"))
	return rpc.Transport{CertFile: f.Cert, KeyFile: f.Key, ClientCAFile: f.CA}
}

// byURI knows the caller by the certificate's URI.
type byURI struct{}

func (byURI) AuthenticateCertificate(_ context.Context, c *x509.Certificate) (rpc.Principal, error) {
	if len(c.URIs) == 1 && c.URIs[0].String() == "spiffe://mesh/acme" {
		return rpc.Principal{ClientID: "acme by certificate"}, nil
	}
	return rpc.Principal{}, rpc.ErrInvalidCredentials
}

// whoami answers with the name of the caller.
func whoami(ctx context.Context, _ *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok {
		return nil, errors.New("nobody")
	}
	return &ticketv1.Ticket{Id: p.ClientID}, nil
}

// overTLS calls CreateTicket over gRPC and over REST.
func (e *edge) overTLS(config *tls.Config, token string) (who string, a answer, err error) {
	e.t.Helper()
	conn, err := grpc.NewClient(e.server.GRPCAddress(), grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithAuthority("localhost"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close()
	ctx := e.t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	ticket, grpcErr := ticketv1.NewTicketServiceClient(conn).CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"})

	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, "https://"+e.server.HTTPAddress()+"/v1/tickets", strings.NewReader(`{"message":"x"}`))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return ticket.GetId(), answer{status: resp.StatusCode, header: resp.Header, body: string(body)}, grpcErr
}

func TestACallerIsKnownByItsCertificate(t *testing.T) {
	t.Parallel()
	ours, theirs := tlstest.NewAuthority(t), tlstest.NewAuthority(t)
	transport := files(ours)
	e := start(t, handlers{create: whoami}, func(o *rpc.Options) { o.Transport, o.Certificates = transport, byURI{} })
	client := ours.Client
	acme := ours.Issue("spiffe://mesh/acme")

	for name, c := range map[string]struct {
		config *tls.Config
		token  string
		want   string
	}{
		"a token":                        {client(), e.token, "acme"},
		"a certificate":                  {client(acme), "", "acme by certificate"},
		"a token counts more":            {client(acme), e.token, "acme"},
		"nobody's certificate, a token":  {client(ours.Issue("spiffe://mesh/nobody")), e.token, "acme"},
		"a stranger's is not even shown": {client(theirs.Issue("spiffe://mesh/acme")), e.token, "acme"},
	} {
		who, a, err := e.overTLS(c.config, c.token)
		if err != nil || who != c.want || a.status != http.StatusCreated || !strings.Contains(a.body, `"`+c.want+`"`) {
			t.Errorf("%s: %v, %q; %d %s", name, err, who, a.status, a.body)
		}
	}
	_, a, err := e.overTLS(client(), "")
	wantStatus(t, err, codes.Unauthenticated, rpc.ReasonCredentialsMissing)
	wantREST(t, a, http.StatusUnauthorized, rpc.ReasonCredentialsMissing)
	_, a, err = e.overTLS(client(ours.Issue("spiffe://mesh/nobody")), "")
	wantStatus(t, err, codes.Unauthenticated, rpc.ReasonCredentialsInvalid)
	wantREST(t, a, http.StatusUnauthorized, rpc.ReasonCredentialsInvalid)
	_, a, err = e.overTLS(client(acme), "wrong")
	wantStatus(t, err, codes.Unauthenticated, rpc.ReasonCredentialsInvalid)
	wantREST(t, a, http.StatusUnauthorized, rpc.ReasonCredentialsInvalid)
}

func TestACertificateCannotBeClaimed(t *testing.T) {
	t.Parallel()
	a := tlstest.NewAuthority(t)
	e := start(t, handlers{create: whoami}, func(o *rpc.Options) { o.Certificates = byURI{} })
	der := a.Issue("spiffe://mesh/acme").Certificate[0]
	ctx := metadata.AppendToOutgoingContext(t.Context(), "evalonce-certificate-bin", string(der))
	_, err := e.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"})
	wantStatus(t, err, codes.Unauthenticated, rpc.ReasonCredentialsMissing)
	claim := "Evalonce-Certificate-Bin: " + base64.StdEncoding.EncodeToString(der)
	wantREST(t, e.rest("POST", "/v1/tickets", `{"message":"x"}`, "=Authorization", claim, "Grpc-Metadata-"+claim), http.StatusUnauthorized, rpc.ReasonCredentialsMissing)
}

func TestWithoutTLSNothingIsServedButByChoice(t *testing.T) {
	t.Parallel()
	ours := tlstest.NewAuthority(t)
	transport := files(ours)
	e := start(t, handlers{create: whoami}, func(o *rpc.Options) { o.Transport = transport })
	conn, err := grpc.NewClient(e.server.GRPCAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := ticketv1.NewTicketServiceClient(conn).CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: "x"}); err == nil {
		t.Error("gRPC is served in plain text")
	}
	if a := e.rest("POST", "/v1/tickets", `{"message":"x"}`); a.status != http.StatusBadRequest {
		t.Errorf("REST is served in plain text: %d %s", a.status, a.body)
	}
	for want, o := range map[string]rpc.Options{
		"EVALONCE_TLS_CERT_FILE":      {},
		"EVALONCE_TLS_CLIENT_CA_FILE": {Transport: rpc.Transport{CertFile: transport.CertFile, KeyFile: transport.KeyFile, ClientCAFile: transport.KeyFile}},
		"no such file":                {Transport: rpc.Transport{CertFile: transport.CertFile, KeyFile: "/no/such/file"}},
	} {
		o.GRPCAddress, o.HTTPAddress, o.Register = "127.0.0.1:0", "127.0.0.1:0", func(grpc.ServiceRegistrar) {}
		if _, err := rpc.Listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestTransportSettings(t *testing.T) {
	t.Parallel()
	for _, ok := range []rpc.Transport{{Plaintext: true}, {CertFile: "a", KeyFile: "b"}, {CertFile: "a", KeyFile: "b", ClientCAFile: "c"}} {
		if err := ok.Validate(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	for _, wrong := range []rpc.Transport{{}, {CertFile: "a"}, {KeyFile: "b"}, {Plaintext: true, CertFile: "a"}, {ClientCAFile: "c"}} {
		if err := wrong.Validate(); err == nil || !strings.Contains(err.Error(), "EVALONCE_PLAINTEXT") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

func TestEverybodyIsLetInOnLoopbackAlone(t *testing.T) {
	t.Parallel()
	somebody := func(o *rpc.Options) {
		o.Everybody = &rpc.Principal{ClientID: "somebody", Roles: rpc.AllRoles()}
		o.Policy = rpc.Policy{"/evalonce.ticket.v1.TicketService/*": rpc.Needs(rpc.TicketsWrite)}
	}
	e := start(t, handlers{create: whoami}, somebody)
	ticket, err := e.client().CreateTicket(t.Context(), &ticketv1.CreateTicketRequest{Message: "x"})
	a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, "=Authorization")
	if err != nil || ticket.GetId() != "somebody" || a.status != http.StatusCreated {
		t.Errorf("%v, %v; %d %s", ticket, err, a.status, a.body)
	}
	o := rpc.Options{
		Transport: rpc.Transport{Plaintext: true}, GRPCAddress: ":0", HTTPAddress: "127.0.0.1:0", Register: func(grpc.ServiceRegistrar) {},
		Everybody: &rpc.Principal{ClientID: "somebody"},
	}
	if _, err := rpc.Listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("got %v", err)
	}
}
