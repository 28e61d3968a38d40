package rpc_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestWhatCannotBeDecodedIsTheCallersFault(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	create := ticketv1.TicketService_CreateTicket_FullMethodName
	wantStatus(t, e.send(e.authorized(), create, invalidUTF8), codes.InvalidArgument, rpc.ReasonMalformedRequest)
	wantStatus(t, e.send(e.authorized(), create, []byte{0x0a, 200}), codes.InvalidArgument, rpc.ReasonMalformedRequest)
	_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: strings.Repeat("x", maxRequestBytes)})
	wantStatus(t, err, codes.InvalidArgument, rpc.ReasonRequestTooLarge)
}

func TestWhatIsFarTooLargeIsNotReceived(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: func(context.Context, *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		t.Error("it has reached the handler")
		return nil, nil
	}})
	_, err := e.client().CreateTicket(e.authorized(), &ticketv1.CreateTicketRequest{Message: strings.Repeat("x", 9*maxRequestBytes)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestAHandlersOwnStatusIsPassedOn(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{get: func(context.Context, *ticketv1.GetTicketRequest) (*ticketv1.Ticket, error) {
		return nil, status.Error(codes.AlreadyExists, "chosen")
	}})
	_, err := e.client().GetTicket(e.authorized(), &ticketv1.GetTicketRequest{Id: "1"})
	if status.Code(err) != codes.AlreadyExists || status.Convert(err).Message() != "chosen" {
		t.Errorf("gRPC: %v", err)
	}
	if a := e.rest("GET", "/v1/tickets/1", ""); a.status != http.StatusConflict || !strings.Contains(a.body, "chosen") {
		t.Errorf("REST: %d %s", a.status, a.body)
	}
	if a := e.rest("GET", "/v1/tickets/1/evaluations", ""); a.status != http.StatusNotImplemented {
		t.Errorf("REST, a method without a handler: %d %s", a.status, a.body)
	}
}

func TestJSONIsStrict(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	for name, body := range map[string]string{
		"unknown field":            `{"message":"secret","subjct":"a"}`,
		"unknown field, null":      `{"message":"secret","subjct":null}`,
		"repeated field":           `{"message":"secret","message":"b"}`,
		"one field, two names":     `{"message":"secret","request_id":"a","requestId":"a"}`,
		"a second value":           `{"message":"secret"}{"message":"b"}`,
		"a bracket after it":       `{"message":"secret"}]`,
		"a word after it":          `{"message":"secret"} x`,
		"another type":             `{"message":{"secret":1}}`,
		"a number for a text":      `{"message":12345}`,
		"an array":                 `[{"message":"secret"}]`,
		"null":                     `null`,
		"a string":                 `"secret"`,
		"no JSON":                  `secret`,
		"cut":                      `{"message":"secret`,
		"nothing":                  ``,
		"white space":              " \n",
		"comment":                  `{"message":"secret"/**/}`,
		"trailing comma":           `{"message":"secret",}`,
		"bare invalid UTF-8":       "{\"message\":\"secret\xff\"}",
		"overlong NUL":             "{\"message\":\"secret\xc0\x80\"}",
		"encoded surrogate":        "{\"message\":\"secret\xed\xa0\x80\"}",
		"lone high surrogate":      `{"message":"secret\ud800 and more"}`,
		"lone low surrogate":       `{"message":"secret\udc00 and more"}`,
		"surrogates the wrong way": `{"message":"secret\udc00\ud800 and more"}`,
		"surrogate at the end":     `{"message":"secret\ud800"}`,
		"bad UTF-8 in a name":      "{\"message\":\"secret\",\"\xff\":1}",
		"raw control character":    "{\"message\":\"secret\x00\"}",
		"byte order mark":          "\ufeff{\"message\":\"secret\"}",
		"UTF-16":                   "\xff\xfe{\x00}\x00",
		"deep nesting":             strings.Repeat(`{"requests":[`, 5000),
	} {
		t.Run(name, func(t *testing.T) {
			a := e.rest("POST", "/v1/tickets", body, "=Content-Type: application/json")
			wantREST(t, a, http.StatusBadRequest, rpc.ReasonMalformedRequest)
			if strings.Contains(a.body, "secret") || strings.Contains(a.body, "12345") {
				t.Errorf("the error quotes the body: %s", a.body)
			}
		})
	}
	if strings.Contains(e.logs.String(), "secret") {
		t.Error("the log quotes a body")
	}
	a := e.rest("POST", "/v1/tickets", `{"message":"secret","subjct":"a"}`)
	if !strings.Contains(a.body, `unknown field \"subjct\" (line 1:21)`) {
		t.Errorf("the error does not say where and what: %s", a.body)
	}
	a = e.rest("POST", "/v1/tickets", " {\"message\":\"\\ud83d\\ude00 \\u0041\", \"subject\": null}\n\n")
	if a.status != http.StatusCreated || !strings.Contains(a.body, "😀 A") {
		t.Errorf("valid JSON: %d %s", a.status, a.body)
	}
}

func TestMediaType(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo, list: func(context.Context, *ticketv1.ListTicketsRequest) (*ticketv1.ListTicketsResponse, error) {
		t.Error("a form has become a GET")
		return nil, nil
	}})
	const body = `{"message":"x"}`
	for _, ok := range []string{"application/json", "application/json; charset=UTF-8", "Application/JSON"} {
		if a := e.rest("POST", "/v1/tickets", body, "=Content-Type: "+ok); a.status != http.StatusCreated {
			t.Errorf("%s: %d %s", ok, a.status, a.body)
		}
	}
	for _, headers := range [][]string{
		{"=Content-Type"},
		{"=Content-Type: text/plain"},
		{"=Content-Type: application/x-www-form-urlencoded"},
		{"=Content-Type: application/json; charset=latin1"},
		{"=Content-Type: application/"},
		{"Content-Type: text/plain"},
		{"Content-Encoding: gzip"},
	} {
		a := e.rest("POST", "/v1/tickets", body, headers...)
		wantREST(t, a, http.StatusUnsupportedMediaType, rpc.ReasonUnsupportedMediaType)
	}
	a := e.rest("POST", "/v1/tickets", "page_size=1", "=Content-Type: application/x-www-form-urlencoded", "X-HTTP-Method-Override: GET")
	wantREST(t, a, http.StatusUnsupportedMediaType, rpc.ReasonUnsupportedMediaType)
	a = e.rest("POST", "/v1/tickets/1", body, "X-HTTP-Method-Override: GET")
	wantREST(t, a, http.StatusMethodNotAllowed, rpc.ReasonNoSuchMethod)
}

func TestBodySize(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: func(context.Context, *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		t.Error("too large a request has reached the handler")
		return nil, nil
	}})
	// The size is judged before the JSON: this would be malformed.
	tooLarge := strings.Repeat("x", maxRequestBytes+1)
	wantREST(t, e.rest("POST", "/v1/tickets", tooLarge), http.StatusRequestEntityTooLarge, rpc.ReasonRequestTooLarge)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+e.server.HTTPAddress()+"/v1/tickets",
		io.MultiReader(strings.NewReader(tooLarge))) // of unknown length: sent in chunks
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.token)
	req.Header.Set("Content-Type", "application/json")
	wantREST(t, e.do(req), http.StatusRequestEntityTooLarge, rpc.ReasonRequestTooLarge)
}

func TestTheLargestBodyPasses(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: echo})
	const empty = len(`{"message":""}`)
	a := e.rest("POST", "/v1/tickets", `{"message":"`+strings.Repeat("x", maxRequestBytes-empty)+`"}`)
	if a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestPathsAndParameters(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{
		create: echo,
		get: func(_ context.Context, r *ticketv1.GetTicketRequest) (*ticketv1.Ticket, error) {
			return &ticketv1.Ticket{Id: r.GetId()}, nil
		},
		list: func(_ context.Context, r *ticketv1.ListTicketsRequest) (*ticketv1.ListTicketsResponse, error) {
			return &ticketv1.ListTicketsResponse{NextPageToken: fmt.Sprintf("%d,%s,%v", r.GetPageSize(), r.GetDepartment(), r.MinUrgency != nil)}, nil
		},
	})
	for _, c := range []struct {
		method, path string
		status       int
		reason       string
	}{
		{"GET", "/v1/tickets?page_sise=3", 400, rpc.ReasonInvalidField},
		{"GET", "/v1/tickets?page_size.x=3", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets?page_size=3&pageSize=4", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets?page_size=x", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets?page_size=3;department=a", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets?department=%ff", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets?department=%zz", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets?state=NO_SUCH", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/tickets/%ff", 400, rpc.ReasonMalformedRequest},
		{"GET", "/v1/nothing", 404, rpc.ReasonNoSuchMethod},
		{"DELETE", "/v1/tickets", 405, rpc.ReasonNoSuchMethod},
		{"POST", "/healthz", 404, rpc.ReasonNoSuchMethod},
	} {
		body := ""
		if c.method == "POST" {
			body = "{}"
		}
		wantREST(t, e.rest(c.method, c.path, body), c.status, c.reason)
	}
	// A key in the query would be ignored: the caller would believe in a guarantee that it does not have.
	a := e.rest("POST", "/v1/tickets?request_id=a", `{"message":"x"}`)
	wantREST(t, a, http.StatusBadRequest, rpc.ReasonInvalidField)

	a = e.rest("GET", "/v1/tickets?pageSize=3&department=a%20b&min_urgency=0", "")
	if a.status != http.StatusOK || !strings.Contains(a.body, `"next_page_token":"3,a b,true"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestResponsesNameWhatIsThere(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{get: func(_ context.Context, r *ticketv1.GetTicketRequest) (*ticketv1.Ticket, error) {
		ticket := &ticketv1.Ticket{Id: r.GetId(), Evaluation: &ticketv1.Evaluation{State: ticketv1.Evaluation_PENDING}}
		if r.GetId() == "answered" {
			ticket.Evaluation.Answer = &ticketv1.Answer{Department: "billing"}
		}
		return ticket, nil
	}})
	a := e.rest("GET", "/v1/tickets/answered", "")
	for _, want := range []string{`"urgency_score":0`, `"is_urgent":0`, `"answered_without_call":false`, `"external_id":""`} {
		if !strings.Contains(strings.ReplaceAll(a.body, " ", ""), want) {
			t.Errorf("%s is missing in %s", want, a.body)
		}
	}
	a = e.rest("GET", "/v1/tickets/pending", "")
	if strings.Contains(a.body, "urgency_score") || strings.Contains(a.body, "answer\"") || strings.Contains(a.body, "dead_letter") {
		t.Errorf("an answer that is not there is shown: %s", a.body)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	var got string
	e := start(t, handlers{create: func(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		key, v := rpc.IdempotencyKey(ctx, "request_id", r.GetRequestId())
		if v != nil {
			return nil, rpc.InvalidFields(*v)
		}
		got = key
		if key != "" {
			if err := rpc.MarkReplayed(ctx); err != nil {
				return nil, err
			}
		}
		return echo(ctx, r)
	}})
	const malformed = "\x00" // what no key is
	for name, c := range map[string]struct {
		field   string
		headers []string
		want    string
	}{
		"none":                      {"", nil, ""},
		"field":                     {"a-1", nil, "a-1"},
		"bare header":               {"", []string{"a-1"}, "a-1"},
		"quoted header":             {"", []string{`"a-1"`}, "a-1"},
		"escapes":                   {"", []string{`"a\"b\\c"`}, `a"b\c`},
		"both":                      {"a-1", []string{`"a-1"`}, "a-1"},
		"white space around":        {"", []string{"  a-1 "}, "a-1"},
		"longest":                   {strings.Repeat("k", 255), nil, strings.Repeat("k", 255)},
		"the field is not unquoted": {`"a-1"`, nil, `"a-1"`},
		"too long":                  {strings.Repeat("k", 256), nil, malformed},
		"too long in the header":    {"", []string{strings.Repeat("k", 256)}, malformed},
		"different":                 {"a-1", []string{"a-2"}, malformed},
		"two headers":               {"", []string{"a-1", "a-2"}, malformed},
		"one header twice":          {"", []string{"a-1", "a-1"}, malformed},
		"empty header":              {"", []string{" "}, malformed},
		"empty string":              {"", []string{`""`}, malformed},
		"white space within":        {"", []string{"a 1"}, malformed},
		"white space in quotes":     {"", []string{`"a 1"`}, malformed},
		"open quote":                {"", []string{`"a-1`}, malformed},
		"after the quote":           {"", []string{`"a-1";x`}, malformed},
		"two strings":               {"", []string{`"a","b"`}, malformed},
		"unknown escape":            {"", []string{`"a\1"`}, malformed},
		"escape at the end":         {"", []string{`"a\`}, malformed},
		"not ASCII":                 {"ключ", nil, malformed},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(transport string, ok bool, replayed string) {
				t.Helper()
				switch {
				case c.want == malformed && ok:
					t.Errorf("%s: accepted as %q", transport, got)
				case c.want != malformed && (!ok || got != c.want):
					t.Errorf("%s: got %q, ok %v", transport, got, ok)
				case ok && (replayed == "true") != (got != ""):
					t.Errorf("%s: Idempotent-Replayed is %q", transport, replayed)
				}
			}
			ctx := e.authorized()
			for _, h := range c.headers {
				ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", h)
			}
			var header metadata.MD
			_, err := e.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x", RequestId: c.field}, grpc.Header(&header))
			if err != nil {
				wantStatus(t, err, codes.InvalidArgument, rpc.ReasonInvalidField)
			}
			check("gRPC", err == nil, strings.Join(header.Get("idempotent-replayed"), ","))

			var headers []string
			for _, h := range c.headers {
				headers = append(headers, "Idempotency-Key: "+h)
			}
			a := e.rest("POST", "/v1/tickets", fmt.Sprintf(`{"message":"x","request_id":%q}`, c.field), headers...)
			check("REST", a.status == http.StatusCreated, a.header.Get("Idempotent-Replayed"))
			for name := range a.header {
				if strings.HasPrefix(name, "Grpc-") {
					t.Errorf("the header %s leaks", name)
				}
			}
		})
	}
	t.Run("a header that gRPC cannot carry is not dropped", func(t *testing.T) {
		a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, "Idempotency-Key: ключ")
		wantREST(t, a, http.StatusBadRequest, rpc.ReasonInvalidField)
	})
}

func TestTheCallersTraceGoesOn(t *testing.T) {
	t.Parallel()
	var span trace.SpanContext
	e := start(t, handlers{create: func(ctx context.Context, r *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		span = trace.SpanContextFromContext(ctx)
		return echo(ctx, r)
	}})
	const id = "0af7651916cd43dd8448eb211c80319c"
	const parent = "00-" + id + "-b7ad6b7169203331-01"
	if a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, "Traceparent: "+parent); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if span.TraceID().String() != id {
		t.Errorf("REST: trace %s", span.TraceID())
	}
	ctx := metadata.AppendToOutgoingContext(e.authorized(), "traceparent", parent)
	if _, err := e.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"}); err != nil {
		t.Fatal(err)
	}
	if span.TraceID().String() != id {
		t.Errorf("gRPC: trace %s", span.TraceID())
	}
}

func TestCallsEndByTheServersLimit(t *testing.T) {
	t.Parallel()
	e := start(t, handlers{create: func(ctx context.Context, _ *ticketv1.CreateTicketRequest) (*ticketv1.Ticket, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("store: %w", ctx.Err())
	}}, func(o *rpc.Options) { o.CallTimeout = 50 * time.Millisecond })
	ctx, cancel := context.WithTimeout(e.authorized(), time.Hour)
	defer cancel()
	_, err := e.client().CreateTicket(ctx, &ticketv1.CreateTicketRequest{Message: "x"})
	wantStatus(t, err, codes.DeadlineExceeded, rpc.ReasonDeadlineExceeded)
	a := e.rest("POST", "/v1/tickets", `{"message":"x"}`, "Grpc-Timeout: 100H")
	wantREST(t, a, http.StatusGatewayTimeout, rpc.ReasonDeadlineExceeded)
}
