package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
	"github.com/evalonce/evalonce/services/ticket-api/internal/api"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

// spans receives the spans of all tests: the tracer provider is the process's.
var spans = tracetest.NewSpanRecorder()

func TestMain(m *testing.M) {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	goleak.VerifyTestMain(m)
}

// ticketAPI is the API on a database of its own, with two clients.
type ticketAPI struct {
	t           *testing.T
	db          *pgxpool.Pool
	conn        *grpc.ClientConn
	http        string
	acme, other string // tokens
}

// start serves the API until the test ends, with version v1 active.
func start(t *testing.T) *ticketAPI {
	t.Helper()
	db := pgtest.New(t)
	a := serve(t, db)
	a.promote("v1")
	return a
}

// serve serves the API on a database; change may adjust it.
func serve(t *testing.T, db *pgxpool.Pool, change ...func(*rpc.Options, *api.Limits)) *ticketAPI {
	t.Helper()
	a := &ticketAPI{t: t, db: db}
	var acmeHash, otherHash string
	a.acme, acmeHash = rpc.MintToken()
	a.other, otherHash = rpc.MintToken()
	tokens, err := rpc.ParseTokens("acme=" + acmeHash + ",other=" + otherHash)
	if err != nil {
		t.Fatal(err)
	}
	keys := &webhook.Keyring{}
	if err := keys.UnmarshalText([]byte("k=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err != nil {
		t.Fatal(err)
	}
	service := pgtest.PoolAs(t, db, pgtest.TicketAPI)
	submitter := submit.New(service, submit.Options{Retention: time.Hour})
	limits := api.Limits{SubjectCharacters: 1000, MessageBytes: 64 << 10}
	options := rpc.Options{
		Transport:   rpc.Transport{Plaintext: true},
		GRPCAddress: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0",
		Register: func(r grpc.ServiceRegistrar) {
			api.Register(api.New(submitter, ticketdb.New(service), limits), api.NewWebhooks(webhook.NewEndpoints(service, keys), false))(r)
		},
		Gateways:      api.Gateways(),
		Authenticator: rpc.Grant(tokens, rpc.TicketsWrite, rpc.TicketsRead, rpc.WebhooksWrite), Policy: api.Policy(), Created: api.Creating(), Errors: api.Errors, Ready: service.Ping,
		Public:          map[string]http.Handler{"GET /openapi.json": api.Document()},
		MaxRequestBytes: 3 << 20, CallTimeout: 20 * time.Second, Grace: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&options, &limits)
	}
	server, err := rpc.Listen(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	a.http = "http://" + server.HTTPAddress()
	if a.conn, err = grpc.NewClient(server.GRPCAddress(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(t.Context()))
	submitting, stopSubmitting := context.WithCancel(context.WithoutCancel(t.Context()))
	served, submitted := make(chan error, 1), make(chan error, 1)
	go func() { submitted <- submitter.Run(submitting) }()
	go func() { served <- server.Run(serving) }()
	t.Cleanup(func() {
		_ = a.conn.Close()
		stopServing()
		if err := <-served; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		stopSubmitting()
		if err := <-submitted; err != nil {
			t.Errorf("the submitter ended with %v", err)
		}
	})
	return a
}

// promote registers a version under this id and makes it the active one.
func (a *ticketAPI) promote(id string) {
	a.t.Helper()
	v := evaluation.Version{
		ID: id, PromptVersion: "p-" + id, Provider: "openai", Model: "model", Prompt: "Judge. " + id, MaxOutputTokens: 100, Route: "openai",
		Departments: []evaluation.Department{{Name: "billing", Description: "Invoices"}, {Name: "technical", Description: "Faults"}},
	}.WithDefaults()
	err := postgres.InTx(a.t.Context(), a.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, id, "", "test")
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *ticketAPI) client() ticketv1.TicketServiceClient {
	return ticketv1.NewTicketServiceClient(a.conn)
}

// as returns a context of a call with this token and these further metadata.
func (a *ticketAPI) as(token string, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(a.t.Context(), append([]string{"authorization", "Bearer " + token}, pairs...)...)
}

func (a *ticketAPI) create(r *ticketv1.CreateTicketRequest) *ticketv1.Ticket {
	a.t.Helper()
	ticket, err := a.client().CreateTicket(a.as(a.acme), r)
	if err != nil {
		a.t.Fatal(err)
	}
	return ticket
}

func (a *ticketAPI) get(id string) *ticketv1.Ticket {
	a.t.Helper()
	ticket, err := a.client().GetTicket(a.as(a.acme), &ticketv1.GetTicketRequest{Id: id})
	if err != nil {
		a.t.Fatal(err)
	}
	return ticket
}

func (a *ticketAPI) exec(sql string, args ...any) {
	a.t.Helper()
	tag, err := a.db.Exec(a.t.Context(), sql, args...)
	if err != nil {
		a.t.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		a.t.Fatalf("%s: no row", sql)
	}
}

func (a *ticketAPI) count(sql string, args ...any) (n int) {
	a.t.Helper()
	if err := a.db.QueryRow(a.t.Context(), sql, args...).Scan(&n); err != nil {
		a.t.Fatal(err)
	}
	return n
}

// rows is how much is stored of everything that a create writes.
func (a *ticketAPI) rows() [3]int {
	a.t.Helper()
	return [3]int{
		a.count(`SELECT count(*) FROM ticket`), a.count(`SELECT count(*) FROM client_request`), a.count(`SELECT count(*) FROM evaluation_outbox`),
	}
}

// answer finishes an evaluation as a worker would.
func (a *ticketAPI) answer(key, department string, urgency float64) {
	a.t.Helper()
	a.exec(`INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome, trace_id)
		VALUES (uuid_v7(), $1, 'v1', gen_random_uuid(), 1, now(), 'answered', '0af7651916cd43dd8448eb211c80319c')`, key)
	a.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department,
			urgency_score, model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT o.idempotency_key, o.content_hash, o.ticket_id, o.version_id, $3, $2, $3, 'model-1', 'p-v1', 'builtin-1',
			'normal', $2, c.id
		FROM evaluation_outbox o JOIN model_call c USING (idempotency_key) WHERE o.idempotency_key = $1`, key, department, urgency)
	a.exec(`DELETE FROM evaluation_outbox WHERE idempotency_key = $1`, key)
}

func (a *ticketAPI) bury(key, class, reason string) {
	a.t.Helper()
	a.exec(`UPDATE evaluation_outbox SET status = 'dead', dead_at = now(), last_class = $2, last_reason = $3, attempts = 8
		WHERE idempotency_key = $1`, key, class, reason)
}

type reply struct {
	status int
	header http.Header
	body   string
}

// rest sends a JSON body as acme, with further headers of the form "Name: value".
func (a *ticketAPI) rest(method, path, body string, headers ...string) reply {
	a.t.Helper()
	r, err := a.do(method, path, body, headers...)
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func (a *ticketAPI) do(method, path, body string, headers ...string) (reply, error) {
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.http+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Authorization", "Bearer "+a.acme)
	req.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b)}, err
}

func (r reply) decode(t *testing.T, message proto.Message) {
	t.Helper()
	if err := protojson.Unmarshal([]byte(r.body), message); err != nil {
		t.Fatalf("%d %s: %v", r.status, r.body, err)
	}
}

func (r reply) ticket(t *testing.T) *ticketv1.Ticket {
	t.Helper()
	ticket := &ticketv1.Ticket{}
	r.decode(t, ticket)
	return ticket
}

// jsonOf is the JSON of a create request; texts need not be UTF-8, because their bytes go out as they are.
func jsonOf(t *testing.T, fields map[string]string) string {
	t.Helper()
	var b strings.Builder
	b.WriteByte('{')
	for name, text := range fields {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + name + `":"`)
		for i := range len(text) {
			switch c := text[i]; {
			case c < 0x20 || c == '"' || c == '\\':
				escaped, err := json.Marshal(string(rune(c)))
				if err != nil {
					t.Fatal(err)
				}
				b.Write(escaped[1 : len(escaped)-1])
			default:
				b.WriteByte(c)
			}
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// raw sends bytes as they are, which no generated client would.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

type problem struct {
	code   codes.Code
	reason string
	fields map[string]string // violations' reasons by field
	retry  bool
}

func problemOf(st *status.Status) problem {
	p := problem{code: st.Code(), fields: map[string]string{}}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			p.reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				p.fields[v.GetField()] = v.GetReason()
			}
		case *errdetails.RetryInfo:
			p.retry = true
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
