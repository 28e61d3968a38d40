package api_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (a *adminAPI) credentials() adminv1.CredentialServiceClient {
	return adminv1.NewCredentialServiceClient(a.conn)
}

// holds reports whether a row of any table of the admin's has the text.
func (a *adminAPI) holds(text string) bool {
	a.t.Helper()
	var found bool
	err := a.db.QueryRow(a.t.Context(), `
		SELECT EXISTS (SELECT FROM api_credential c WHERE strpos(c::text, $1) > 0)
		    OR EXISTS (SELECT FROM admin_audit e WHERE strpos(e::text, $1) > 0)
		    OR EXISTS (SELECT FROM admin_request r WHERE position(convert_to($1, 'UTF8') IN r.response) > 0)`, text).Scan(&found)
	if err != nil {
		a.t.Fatal(err)
	}
	return found
}

func TestATokenIsShownOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := &adminv1.CreateTokenRequest{
		ClientId: "shop", Name: "checkout", Roles: []string{"tickets:write", "tickets:read"}, Life: durationpb.New(time.Hour), RequestId: "k", Reason: "new shop",
	}
	made, err := a.credentials().CreateToken(a.as(a.ana), r)
	if err != nil || made.GetToken() == "" || made.GetCredential().GetCreatedBy() != "ana" {
		t.Fatalf("got %v, %v", made.GetCredential(), err)
	}
	p, err := credentialdb.NewAuthenticator(a.db).Authenticate(t.Context(), made.GetToken())
	if err != nil || p.ClientID != "shop" || !slices.Equal(p.Roles, []rpc.Role{rpc.TicketsWrite, rpc.TicketsRead}) {
		t.Errorf("it is %+v, %v", p, err)
	}
	again, err := a.credentials().CreateToken(a.as(a.ana), r)
	if err != nil || again.GetToken() != "" || again.GetCredential().GetId() != made.GetCredential().GetId() {
		t.Errorf("repeated: %v, %v", again, err)
	}
	if a.holds(made.GetToken()) || a.holds(made.GetToken()[4:]) {
		t.Error("the database has the token")
	}
	if !a.holds("checkout") {
		t.Error("the search finds nothing at all")
	}
	r.RequestId = "k2"
	_, err = a.credentials().CreateToken(a.as(a.ana), r)
	wantProblem(t, err, codes.AlreadyExists, "CREDENTIAL_EXISTS")
	r.RequestId, r.Name, r.DryRun = "k3", "another", true
	dry, err := a.credentials().CreateToken(a.as(a.ana), r)
	if err != nil || dry.GetToken() != "" {
		t.Errorf("dry run: %v, %v", dry, err)
	}
	list, err := a.credentials().ListCredentials(a.as(a.bob), &adminv1.ListCredentialsRequest{ClientId: "shop"})
	if err != nil || len(list.GetCredentials()) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
}

func TestRevokeCredential(t *testing.T) {
	t.Parallel()
	a := start(t)
	made, err := a.credentials().CreateToken(a.as(a.ana), &adminv1.CreateTokenRequest{ClientId: "shop", Name: "x", Roles: []string{"tickets:write"}})
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetCredential().GetId()
	for range 2 {
		revoked, err := a.credentials().RevokeCredential(a.as(a.bob), &adminv1.RevokeCredentialRequest{Id: id, Reason: "lost"})
		if err != nil || revoked.GetRevokedBy() != "bob" || revoked.GetRevokeTime() == nil {
			t.Errorf("got %v, %v", revoked, err)
		}
	}
	if _, err := credentialdb.NewAuthenticator(a.db).Authenticate(t.Context(), made.GetToken()); !errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("got %v", err)
	}
	var entries int
	if err := a.db.QueryRow(t.Context(), "SELECT count(*) FROM admin_audit WHERE method = 'CredentialService.RevokeCredential' AND reason = 'lost'").Scan(&entries); err != nil || entries != 1 {
		t.Errorf("%d entries, %v: what changed nothing is none", entries, err)
	}
	_, err = a.credentials().RevokeCredential(a.as(a.bob), &adminv1.RevokeCredentialRequest{Id: "01900000-0000-7000-8000-000000000000"})
	wantProblem(t, err, codes.NotFound, "CREDENTIAL_NOT_FOUND")
}

func TestAdmitCertificate(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := &adminv1.AdmitCertificateRequest{ClientId: "shop", Name: "mesh", Roles: []string{"tickets:write"}, SubjectAlternativeName: "URI:spiffe://mesh/shop"}
	c, err := a.credentials().AdmitCertificate(a.as(a.ana), r)
	if err != nil || c.GetSubjectAlternativeName() != "URI:spiffe://mesh/shop" || c.GetExpireTime() != nil {
		t.Fatalf("got %v, %v", c, err)
	}
	got, err := a.credentials().GetCredential(a.as(a.ana), &adminv1.GetCredentialRequest{Id: c.GetId()})
	if err != nil || got.GetName() != "mesh" {
		t.Errorf("got %v, %v", got, err)
	}
	r.Name, r.ClientId = "mesh2", "other"
	_, err = a.credentials().AdmitCertificate(a.as(a.ana), r)
	wantProblem(t, err, codes.AlreadyExists, "CREDENTIAL_EXISTS")
}

func TestCredentialsAreRefusedForAllThatIsWrongWithThem(t *testing.T) {
	t.Parallel()
	a := start(t)
	_, err := a.credentials().CreateToken(a.as(a.ana), &adminv1.CreateTokenRequest{
		ClientId: "a b", Roles: []string{"tickets:raed"}, Life: &durationpb.Duration{Nanos: 1},
	})
	wantProblem(t, err, codes.InvalidArgument, rpc.ReasonInvalidField, "client_id", "name", "roles", "life")
	_, err = a.credentials().AdmitCertificate(a.as(a.ana), &adminv1.AdmitCertificateRequest{SubjectAlternativeName: "CN=shop"})
	wantProblem(t, err, codes.InvalidArgument, rpc.ReasonInvalidField, "client_id", "name", "roles", "subject_alternative_name")
	_, err = a.credentials().GetCredential(a.as(a.ana), &adminv1.GetCredentialRequest{Id: "x"})
	wantProblem(t, err, codes.InvalidArgument, rpc.ReasonInvalidField, "id")
	wantREST(t, a.rest(http.MethodPost, "/v1/credentials:createToken", `{"client_id":"shop","name":"checkout2","roles":["tickets:read"]}`), http.StatusCreated, "checkout2")
}
