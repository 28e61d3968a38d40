package main

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/rpc/rpctest"
	"github.com/evalonce/evalonce/pkg/rpc/tlstest"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestTheProcessUnderTLS(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(t.Context())) }()
	shop := credentialdb.Spec{ClientID: "shop", Name: "mesh", Roles: []rpc.Role{rpc.TicketsRead}}
	if _, err := credentialdb.AdmitCertificate(t.Context(), db, shop, "URI:spiffe://mesh/shop", "test"); err != nil {
		t.Fatal(err)
	}
	authority := tlstest.NewAuthority(t)
	server := authority.Write(authority.Issue("spiffe://mesh/server"))
	token, hash := rpc.MintToken()
	at := rpctest.Start(t, serviceName, asTicketAPI, "EVALONCE_DATABASE_URL="+pgtest.As(url, pgtest.TicketAPI), "EVALONCE_API_TOKENS=acme="+hash,
		"EVALONCE_TLS_CERT_FILE="+server.Cert, "EVALONCE_TLS_KEY_FILE="+server.Key, "EVALONCE_TLS_CLIENT_CA_FILE="+server.CA)

	for name, c := range map[string]struct {
		config *tls.Config
		token  string
		list   codes.Code
		create codes.Code
		rest   int
	}{
		"a certificate":           {authority.Client(authority.Issue("spiffe://mesh/shop")), "", codes.OK, codes.PermissionDenied, http.StatusOK},
		"a token":                 {authority.Client(), token, codes.OK, codes.Unavailable, http.StatusOK}, // no version is active
		"nobody's certificate":    {authority.Client(authority.Issue("spiffe://mesh/nobody")), "", codes.Unauthenticated, codes.Unauthenticated, http.StatusUnauthorized},
		"neither":                 {authority.Client(), "", codes.Unauthenticated, codes.Unauthenticated, http.StatusUnauthorized},
		"a server nobody trusts":  {tlstest.NewAuthority(t).Client(), token, codes.Unavailable, codes.Unavailable, 0},
		"a certificate and wrong": {authority.Client(authority.Issue("spiffe://mesh/shop")), "wrong", codes.Unauthenticated, codes.Unauthenticated, http.StatusUnauthorized},
	} {
		conn, err := grpc.NewClient(at.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(c.config)))
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if c.token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
		}
		tickets := ticketv1.NewTicketServiceClient(conn)
		_, err = tickets.ListTickets(ctx, &ticketv1.ListTicketsRequest{})
		if status.Code(err) != c.list {
			t.Errorf("%s lists: %v, want %v", name, err, c.list)
		}
		_, err = tickets.CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"})
		if status.Code(err) != c.create {
			t.Errorf("%s creates: %v, want %v", name, err, c.create)
		}
		_ = conn.Close()
		if got := list(t, "https://"+at.HTTP, c.token, c.config); got != c.rest {
			t.Errorf("%s over REST: %d, want %d", name, got, c.rest)
		}
	}
}

// list answers with the status of a list of tickets, 0 where there is no connection.
func list(t *testing.T, base, token string, config *tls.Config) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/tickets", nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config, ForceAttemptHTTP2: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestWithoutCredentialsOnLoopbackAlone(t *testing.T) {
	t.Parallel()
	environ := []string{
		"EVALONCE_DATABASE_URL=" + pgtest.As(pgtest.URL(t), pgtest.TicketAPI), "EVALONCE_PLAINTEXT=true", "EVALONCE_UNAUTHENTICATED_CLIENT=dev",
	}
	if got := list(t, "http://"+rpctest.Start(t, serviceName, asTicketAPI, environ...).HTTP, "", nil); got != http.StatusOK {
		t.Errorf("on loopback: %d", got)
	}
	for grpcHost, httpHost := range map[string]string{"127.0.0.1": "0.0.0.0", "0.0.0.0": "127.0.0.1"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for a service that does serve
		elsewhere := append([]string{
			"EVALONCE_HEALTH_ADDRESS=127.0.0.1:0", "EVALONCE_GRPC_ADDRESS=" + grpcHost + ":0", "EVALONCE_HTTP_ADDRESS=" + httpHost + ":0",
		}, environ...)
		if err := run(ctx, nil, elsewhere, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "serve on 127.0.0.1") {
			t.Errorf("gRPC on %s and REST on %s: %v", grpcHost, httpHost, err)
		}
		cancel()
	}
}
