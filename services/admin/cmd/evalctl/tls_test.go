package main

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/rpc/tlstest"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

func TestUnderTLS(t *testing.T) {
	t.Parallel()
	authority := tlstest.NewAuthority(t)
	server := authority.Write(authority.Issue("spiffe://mesh/admin"))
	db := pgtest.PoolAs(t, pgtest.New(t), pgtest.Admin)
	o := serve(t, api.Policy(), func(r grpc.ServiceRegistrar) { api.Register(r, db, db, awake{}) }, func(options *rpc.Options) {
		options.Transport = rpc.Transport{CertFile: server.Cert, KeyFile: server.Key, ClientCAFile: server.CA}
		options.Certificates = credentialdb.NewAuthenticator(db)
	})
	address, token := "EVALONCE_ADMIN_ADDRESS="+o.address, "EVALONCE_ADMIN_TOKEN="+o.token
	trusted := "EVALONCE_TLS_CA_FILE=" + server.CA
	client := authority.Write(authority.Issue("spiffe://mesh/bob"))
	certificate := []string{address, trusted, "EVALONCE_TLS_CERT_FILE=" + client.Cert, "EVALONCE_TLS_KEY_FILE=" + client.Key}

	execute(t, certificate, nil, "version", "list").want(t, exitDenied, "the client certificate is nobody's here")
	admit := []string{"credential", "admit-certificate", "URI:spiffe://mesh/bob", "--client", "bob", "--name", "mesh", "--role", "admin:read"}
	if got := execute(t, []string{address, trusted, token}, nil, admit...); got.code != exitDone {
		t.Fatalf("with a token: %+v", got)
	}
	// What was read of the certificate holds for a moment.
	got := execute(t, certificate, nil, "version", "list")
	for got.code == exitDenied && t.Context().Err() == nil {
		got = execute(t, certificate, nil, "version", "list")
	}
	if got.code != exitDone {
		t.Errorf("with a certificate: %+v", got)
	}
	execute(t, certificate, nil, "version", "promote", "v1", "--yes").want(t, exitDenied, "the method is not open to this caller")

	theirs := tlstest.NewAuthority(t)
	strangers := "EVALONCE_TLS_CA_FILE=" + theirs.Write(theirs.Issue("spiffe://mesh/admin")).CA
	execute(t, []string{address, strangers, token}, nil, "version", "list").want(t, exitNoAnswer, "certificate signed by unknown authority")
	execute(t, []string{address, token}, nil, "version", "list").want(t, exitNoAnswer) // in plain text, as on loopback
	execute(t, []string{address, token, "EVALONCE_TLS_CA_FILE=" + server.Key}, nil, "version", "list").want(t, exitUsage, "EVALONCE_TLS_CA_FILE: there is no certificate in")
	execute(t, []string{address, token, "EVALONCE_TLS_CERT_FILE=" + client.Cert}, nil, "version", "list").want(t, exitUsage, "EVALONCE_TLS_KEY_FILE")
}
