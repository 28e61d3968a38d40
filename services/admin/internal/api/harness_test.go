package api_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// awake needs no waking.
type awake struct{}

func (awake) Wake() {}

// adminAPI is the API on a database of its own, with two operators.
type adminAPI struct {
	t        *testing.T
	db       *pgxpool.Pool
	conn     *grpc.ClientConn
	http     string
	ana, bob string // tokens
}

// start serves the API until the test ends; change may adjust it.
func start(t *testing.T, change ...func(*rpc.Options)) *adminAPI {
	t.Helper()
	a := &adminAPI{t: t, db: pgtest.New(t)}
	var anasHash, bobsHash string
	a.ana, anasHash = rpc.MintToken()
	a.bob, bobsHash = rpc.MintToken()
	tokens, err := rpc.ParseTokens("ana=" + anasHash + ",bob=" + bobsHash)
	if err != nil {
		t.Fatal(err)
	}
	service := pgtest.PoolAs(t, a.db, pgtest.Admin)
	options := rpc.Options{
		Transport:   rpc.Transport{Plaintext: true},
		GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
		Register: func(r grpc.ServiceRegistrar) { api.Register(r, service, service, awake{}) }, Gateways: api.Gateways(),
		Authenticator: rpc.Grant(tokens, rpc.AdminWrite), Policy: api.Policy(), Created: api.Creating(), Errors: api.Errors, Ready: service.Ping,
		Public:          map[string]http.Handler{"GET /openapi.json": api.Document()},
		MaxRequestBytes: 4 << 20, CallTimeout: 20 * time.Second, Grace: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&options)
	}
	server, err := rpc.Listen(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	a.http = "http://" + server.HTTPAddress()
	if a.conn, err = grpc.NewClient(server.GRPCAddress(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Run(serving) }()
	t.Cleanup(func() {
		_ = a.conn.Close()
		stop()
		if err := <-served; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return a
}

// version is a valid version with nothing left to defaults.
func version(id string) *adminv1.Version {
	return &adminv1.Version{
		Id: id, PromptVersion: "triage-1", Provider: "openai", Model: "model", Effort: "low", Prompt: "Sort " + id,
		Departments:     []*adminv1.Department{{Name: "billing", Description: "money"}, {Name: "technical"}},
		MaxOutputTokens: 100, Route: "main",
		Prices:      &adminv1.Prices{InputUsdPerMtok: "0.25", CachedInputUsdPerMtok: "0.025", OutputUsdPerMtok: "2"},
		MaxAttempts: 5, UnknownPolicy: "hold", MaxUnknownCalls: proto.Int32(1),
	}
}

// changed is the version with a change made to it.
func changed(v *adminv1.Version, change func(*adminv1.Version)) *adminv1.Version {
	v = proto.CloneOf(v)
	change(v)
	return v
}

func (a *adminAPI) client() adminv1.VersionServiceClient {
	return adminv1.NewVersionServiceClient(a.conn)
}

// as returns a context of a call with this token.
func (a *adminAPI) as(token string) context.Context {
	return metadata.AppendToOutgoingContext(a.t.Context(), "authorization", "Bearer "+token)
}

// register registers a version as ana, and reports whether it was there before.
func (a *adminAPI) register(v *adminv1.Version) (stored *adminv1.Version, replayed bool, err error) {
	var header metadata.MD
	stored, err = a.client().RegisterVersion(a.as(a.ana), &adminv1.RegisterVersionRequest{Version: v}, grpc.Header(&header))
	return stored, len(header.Get("idempotent-replayed")) == 1, err
}

func (a *adminAPI) mustRegister(id string) *adminv1.Version {
	a.t.Helper()
	stored, replayed, err := a.register(version(id))
	if err != nil || replayed {
		a.t.Fatalf("register %s: replayed %t, %v", id, replayed, err)
	}
	return stored
}

// promote promotes a version as ana, and returns it.
func (a *adminAPI) promote(id, expected string) (*adminv1.Version, error) {
	response, err := a.client().PromoteVersion(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: id, ExpectedActiveId: expected})
	return response.GetVersion(), err
}

func (a *adminAPI) mustPromote(id string) {
	a.t.Helper()
	if _, err := a.promote(id, ""); err != nil {
		a.t.Fatalf("promote %s: %v", id, err)
	}
}

func (a *adminAPI) get(id string) *adminv1.Version {
	a.t.Helper()
	v, err := a.client().GetVersion(a.as(a.ana), &adminv1.GetVersionRequest{Id: id})
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

// text is the one text that a query returns.
func (a *adminAPI) text(sql string, args ...any) (s string) {
	a.t.Helper()
	if err := a.db.QueryRow(a.t.Context(), sql, args...).Scan(&s); err != nil {
		a.t.Fatal(err)
	}
	return s
}

// history is every promotion, in order, as version<replaced.
func (a *adminAPI) history() string {
	a.t.Helper()
	return a.text(`SELECT coalesce(string_agg(version_id || '<' || coalesce(replaced, ''), ' ' ORDER BY id), '') FROM version_promotion`)
}

// rows is how much is stored of everything that a registration or a promotion writes.
func (a *adminAPI) rows() string {
	a.t.Helper()
	return a.text(`SELECT concat_ws('/', (SELECT count(*) FROM evaluator_version), (SELECT count(*) FROM provider_route),
		(SELECT count(*) FROM active_version), (SELECT count(*) FROM version_promotion))`)
}

// everything is a digest of every row that operators write.
func (a *adminAPI) everything() string {
	a.t.Helper()
	var parts []string
	for _, table := range []string{
		"admin_audit", "admin_request", "evaluator_version", "provider_route", "active_version", "version_promotion",
		"policy", "active_policy", "policy_activation", "reprocess_job", "evaluation_outbox", "evaluation_result",
	} {
		parts = append(parts, table+" "+a.text(`SELECT count(*) || ' ' || coalesce(md5(string_agg(t::text, '' ORDER BY t::text)), '') FROM `+table+` t`))
	}
	return strings.Join(parts, "\n")
}

func (a *adminAPI) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.db.Exec(a.t.Context(), sql, args...); err != nil {
		a.t.Fatal(err)
	}
}

type reply struct {
	status int
	header http.Header
	body   string
}

// rest sends a JSON body as ana.
func (a *adminAPI) rest(method, path, body string) reply {
	a.t.Helper()
	return a.restAs(a.ana, method, path, body)
}

func (a *adminAPI) restAs(token, method, path, body string) reply {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.http+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b)}
}

func (r reply) version(t *testing.T) *adminv1.Version {
	t.Helper()
	v := &adminv1.Version{}
	r.decode(t, v)
	return v
}

func (r reply) decode(t *testing.T, m proto.Message) {
	t.Helper()
	if err := protojson.Unmarshal([]byte(r.body), m); err != nil {
		t.Fatalf("%d %s: %v", r.status, r.body, err)
	}
}

func jsonOf(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type problem struct {
	code     codes.Code
	reason   string
	metadata map[string]string
	fields   map[string]string // violations' descriptions by field
}

func problemOf(st *status.Status) problem {
	p := problem{code: st.Code(), fields: map[string]string{}}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			p.reason, p.metadata = d.GetReason(), d.GetMetadata()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				p.fields[v.GetField()] = v.GetDescription()
			}
		}
	}
	return p
}

func wantProblem(t *testing.T, err error, code codes.Code, reason string, fields ...string) problem {
	t.Helper()
	p := problemOf(status.Convert(err))
	if p.code != code || p.reason != reason {
		t.Fatalf("got %v with %q, want %v with %s: %v", p.code, p.reason, code, reason, err)
	}
	for _, f := range fields {
		if p.fields[f] == "" {
			t.Errorf("no violation of %s in %v", f, p.fields)
		}
	}
	if len(p.fields) != len(fields) {
		t.Errorf("violations %v, want of %v", p.fields, fields)
	}
	return p
}

func wantREST(t *testing.T, r reply, code int, reason string) {
	t.Helper()
	if r.status != code || !strings.Contains(r.body, `"`+reason+`"`) {
		t.Fatalf("got %d %s, want %d with %s", r.status, r.body, code, reason)
	}
}
