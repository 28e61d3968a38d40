package systemtest

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/telemetry"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// What is said in confidence, in each place where it can be.
const (
	inSubject  = "sentinel-in-subject"
	inMessage  = "sentinel-in-message"
	inExternal = "sentinel-in-external-id"
	inKey      = "sentinel-in-idempotency-key"
	inPrompt   = "sentinel-in-prompt"
	inAnswer   = "sentinel-in-answer"
	inError    = "sentinel-in-provider-error"
	inPath     = "sentinel-in-path"
	inQuery    = "sentinel-in-query"
	inUserinfo = "sentinel-in-userinfo"
	inReceiver = "sentinel-in-receivers-answer"
	ofProvider = "sk-test" // the worker's key
)

// traced is one system whose processes all export to one collector. Nothing is sampled but what its caller samples.
type traced struct {
	*system
	*collector
	processes []*stack.Process
	created   map[string]*ticketv1.Ticket
}

// submit creates a ticket in a trace of the caller's.
func (x *traced) submit(what string, n int, sampled bool) {
	x.system.t.Helper()
	ctx := metadata.AppendToOutgoingContext(x.ctx, "traceparent", callersTrace(n, sampled), "idempotency-key", fmt.Sprint(inKey, n))
	ticket, err := x.api.CreateTicket(ctx, &ticketv1.CreateTicketRequest{Subject: "Help " + inSubject, Message: what + " " + inMessage, ExternalId: inExternal})
	if err != nil {
		x.system.t.Fatal(err)
	}
	x.created[what] = ticket
}

func callersTrace(n int, sampled bool) string {
	flags := "00"
	if sampled {
		flags = "01"
	}
	return fmt.Sprintf("00-%s-%016x-%s", traceOf(n), n, flags)
}

// traceOf has no leading zeros: Jaeger leaves them out.
func traceOf(n int) string { return fmt.Sprintf("a%031x", n) }

func named(name string, more ...func(*tracev1.Span) bool) func(*tracev1.Span) bool {
	return func(s *tracev1.Span) bool {
		return s.GetName() == name && !slices.ContainsFunc(more, func(is func(*tracev1.Span) bool) bool { return !is(s) })
	}
}

func linkedTo(trace string) func(*tracev1.Span) bool {
	return func(s *tracev1.Span) bool {
		return slices.ContainsFunc(s.GetLinks(), func(l *tracev1.Span_Link) bool { return hex.EncodeToString(l.GetTraceId()) == trace })
	}
}

func inTrace(trace string) func(*tracev1.Span) bool {
	return func(s *tracev1.Span) bool { return hex.EncodeToString(s.GetTraceId()) == trace }
}

func failed(s *tracev1.Span) bool { return s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR }

// The whole path is run with words in it that nobody but the client, the provider and the receiver may read. Each failure
// is exported though nobody has sampled its creation, and each evaluation can be found from its ticket.
func TestNoTelemetryTellsWhatTicketsSay(t *testing.T) {
	t.Parallel()
	const follower, own, broken, rejected = 1, 2, 3, 4
	c := collect(t)
	never := "OTEL_TRACES_SAMPLER=parentbased_always_off"
	s := startSystem(t, options{
		rules: []providersim.Rule{
			{Match: providersim.Match{Text: "broken"}, Action: providersim.Action{Status: http.StatusInternalServerError, Body: `{"error":{"message":"` + inError + `","code":"` + inError + `"}}`}},
			{Match: providersim.Match{Text: "rejected"}, Action: providersim.Action{Content: `{"department": "` + inAnswer + `"}`}},
			{Match: providersim.Match{Text: "shared"}, Action: providersim.Action{Hang: providersim.HangBeforeAnswer}, Times: 1},
		},
		version: func(v *evaluation.Version) { v.Prompt = "Sort the ticket. " + inPrompt },
		api:     c.overHTTP(never, "EVALONCE_WEBHOOK_KEYS="+webhookKeys, "EVALONCE_WEBHOOK_ALLOW_HTTP=true"),
	})
	x := &traced{system: s, collector: c, created: map[string]*ticketv1.Ticket{}}

	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/"+inReceiver)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, inReceiver)
	}))
	t.Cleanup(receiver.Close)
	hook := receiver.URL + "/" + inPath + "?token=" + inQuery
	webhooks := x.webhooks()
	if _, err := webhooks.CreateWebhookEndpoint(s.ctx, &ticketv1.CreateWebhookEndpointRequest{
		Url: strings.Replace(hook, "://", "://"+inUserinfo+":"+inUserinfo+"@", 1), RequestId: "userinfo",
	}); err == nil {
		t.Error("a URL with a password in it is taken")
	}
	if _, err := webhooks.CreateWebhookEndpoint(s.ctx, &ticketv1.CreateWebhookEndpointRequest{Url: hook, RequestId: "hook"}); err != nil {
		t.Fatal(err)
	}

	token, hash := rpc.MintToken()
	var err error
	if s.admin, err = s.stack.StartAdmin(t.Context(), "ops="+hash, c.overHTTP()...); err != nil {
		t.Fatal(err)
	}
	s.adminToken = token
	worker := s.worker(append(c.overGRPC(never), webhookEnv()...)...)
	x.processes = []*stack.Process{s.server.Process, s.admin.Process, worker}

	x.submit("shared", own, true)
	s.hanging(1)
	x.submit("shared", follower, true) // it comes while the call is under way
	s.sim.Release()
	x.submit("rejected", rejected, false)
	x.submit("broken", broken, false)

	shared := c.await(t, "evaluation of two tickets", named(telemetry.SpanProcessEvaluation, linkedTo(traceOf(own)), linkedTo(traceOf(follower))))
	call := hex.EncodeToString(shared.GetTraceId())
	c.await(t, "creation", named(telemetry.SpanSendEvaluation, inTrace(traceOf(own))))
	stored := c.await(t, "transaction of the creation", named(telemetry.SpanStoreTickets, linkedTo(traceOf(own))))
	c.await(t, "statements of the creation", named("batch", inTrace(hex.EncodeToString(stored.GetTraceId()))))
	c.await(t, "call", named(telemetry.ChatSpan(s.version.Model), inTrace(call)))
	settle := c.await(t, "settlement", named(telemetry.SpanSettleEvaluation, linkedTo(call)))
	c.await(t, "statement of the settlement", named("COMMIT", inTrace(hex.EncodeToString(settle.GetTraceId()))))
	bad := c.await(t, "evaluation that failed", named(telemetry.SpanProcessEvaluation, linkedTo(traceOf(rejected)), failed))
	c.await(t, "call that failed", named(telemetry.ChatSpan(s.version.Model), inTrace(hex.EncodeToString(bad.GetTraceId()))))
	c.await(t, "call that the provider refused", named(telemetry.SpanProcessEvaluation, linkedTo(traceOf(broken)), failed))
	c.await(t, "delivery that failed", named(telemetry.SpanDeliverWebhook, linkedTo(traceOf(own)), failed))
	for what, trace := range map[string]string{"shared": traceOf(follower), "broken": traceOf(broken)} {
		if got := s.get(x.created[what].GetId()).GetTraceId(); got != trace {
			t.Errorf("the ticket %s names the trace %s, want %s", what, got, trace)
		}
	}
	if got := s.get(x.created["shared"].GetId()).GetEvaluation().GetAnswer().GetTraceId(); got != call {
		t.Errorf("the evaluation names the trace %q, want %q", got, call)
	}

	s.reprocessUnder(s.version.ID)
	request := c.await(t, "request for a job", named("evalonce.admin.v1.ReprocessService/StartReprocess"))
	c.await(t, "chunk of the job", named(telemetry.SpanJobChunk, linkedTo(hex.EncodeToString(request.GetTraceId()))))
	swept, err := s.stack.Sweep(t.Context(), c.overHTTP()...)
	if err != nil {
		t.Fatal(err)
	}
	c.await(t, "sweep", named(telemetry.SpanSweep))
	c.await(t, "step of the sweep", named(telemetry.SweepStepSpan("reclaim")))

	told := map[string]string{"the sweep": string(swept)}
	for _, health := range append(s.workers, s.server.Health, s.admin.Health) {
		told["what "+health+" measures"] = x.page(health + "/metrics")
	}
	for _, p := range x.processes {
		if err := p.Stop(); err != nil {
			t.Errorf("stop %s: %v", p.Name, err)
		}
		if told["the log of "+p.Name], err = p.Log(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(told["the log of "+p.Name], "trace_id") && p != s.admin.Process {
			t.Errorf("%s logs no trace", p.Name)
		}
	}
	for _, secret := range []string{
		inSubject, inMessage, inExternal, inKey, inPrompt, inAnswer, inError, inPath, inQuery, inUserinfo, inReceiver, ofProvider, s.token, s.adminToken,
	} {
		if c.contains(secret) {
			t.Errorf("a span or a metric tells %s", secret)
		}
		for where, text := range told {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s tells %s: …%s", where, secret, text[max(0, i-300):min(len(text), i+100)])
			}
		}
	}
	if !c.contains(x.created["shared"].GetTraceId()) && !c.contains("evalonce.tickets") {
		t.Error("no metric came")
	}
	if s.count("model_call WHERE convert_from(response, 'UTF8') LIKE $1", "%"+inAnswer+"%") == 0 {
		t.Error("nobody has kept the answer either: the run proves nothing")
	}
}

func (x *traced) webhooks() ticketv1.WebhookServiceClient {
	x.system.t.Helper()
	conn, err := grpc.NewClient(x.server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		x.system.t.Fatal(err)
	}
	x.system.t.Cleanup(func() { _ = conn.Close() })
	return ticketv1.NewWebhookServiceClient(conn)
}

// page is what a URL shows.
func (x *traced) page(url string) string {
	x.system.t.Helper()
	req, err := http.NewRequestWithContext(x.system.t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		x.system.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		x.system.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		x.system.t.Fatal(err)
	}
	return string(body)
}
