package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestACreatedTicket(t *testing.T) {
	t.Parallel()
	a := start(t)
	const text = "  Olá,\r\nnão funciona.\n"
	r := a.rest("POST", "/v1/tickets", jsonOf(t, map[string]string{"subject": "s ", "message": text, "external_id": "ext-1"}))
	if r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	ticket := r.ticket(t)
	if ticket.GetSubject() != "s " || ticket.GetMessage() != text || ticket.GetExternalId() != "ext-1" {
		t.Errorf("the text is not as it was sent: %v", ticket)
	}
	e := ticket.GetEvaluation()
	if e.GetState() != ticketv1.Evaluation_PENDING || len(e.GetEvaluationKey()) != 32 || e.GetVersionId() != "v1" || e.Answer != nil || e.DeadLetter != nil {
		t.Errorf("evaluation %v", e)
	}
	if age := time.Since(ticket.GetCreateTime().AsTime()); age < -time.Minute || age > time.Minute {
		t.Errorf("created %v ago", age)
	}
	if stored := a.get(ticket.GetId()); !proto.Equal(stored, ticket) {
		t.Errorf("created %v, stored %v", ticket, stored)
	}
	if strings.Contains(r.body, "urgency_score") || strings.Contains(r.body, `"answer"`) {
		t.Errorf("an answer that is not there is shown: %s", r.body)
	}
	if r.header.Get("Idempotent-Replayed") != "" {
		t.Error("a first response is marked as replayed")
	}
}

func TestAllThatIsWrongIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	const key = "request_id"
	for name, c := range map[string]struct {
		request *ticketv1.CreateTicketRequest
		reason  string
		fields  []string
	}{
		"blank":                  {&ticketv1.CreateTicketRequest{Subject: "s"}, "INVALID_FIELD", []string{"message"}},
		"long subject":           {&ticketv1.CreateTicketRequest{Subject: strings.Repeat("é", 1001), Message: "x"}, "FIELD_TOO_LARGE", []string{"subject"}},
		"long message":           {&ticketv1.CreateTicketRequest{Message: strings.Repeat("é", 32<<10) + "x"}, "FIELD_TOO_LARGE", []string{"message"}},
		"long external id":       {&ticketv1.CreateTicketRequest{Message: "x", ExternalId: strings.Repeat("é", 257)}, "FIELD_TOO_LARGE", []string{"external_id"}},
		"control in external id": {&ticketv1.CreateTicketRequest{Message: "x", ExternalId: "a\nb"}, "INVALID_FIELD", []string{"external_id"}},
		"key with a space":       {&ticketv1.CreateTicketRequest{Message: "x", RequestId: "a b"}, "INVALID_FIELD", []string{key}},
		"everything": {
			&ticketv1.CreateTicketRequest{Subject: "\x00", Message: " ", ExternalId: "\x7f", RequestId: "é"},
			"INVALID_FIELD",
			[]string{"subject", "message", "external_id", key},
		},
		"size and form": {&ticketv1.CreateTicketRequest{Subject: strings.Repeat("x", 1001)}, "FIELD_TOO_LARGE", []string{"subject", "message"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.client().CreateTicket(a.as(a.acme), c.request)
			wantProblem(t, err, codes.InvalidArgument, c.reason, c.fields...)
			r := a.rest("POST", "/v1/tickets", jsonOf(t, map[string]string{
				"subject": c.request.GetSubject(), "message": c.request.GetMessage(),
				"external_id": c.request.GetExternalId(), key: c.request.GetRequestId(),
			}))
			wantREST(t, r, map[string]int{"INVALID_FIELD": 400, "FIELD_TOO_LARGE": 413}[c.reason], c.reason)
		})
	}
	if got := a.rows(); got != [3]int{} {
		t.Errorf("refused, but stored: %v", got)
	}
}

func TestTheLimitsThemselvesAreAllowed(t *testing.T) {
	t.Parallel()
	a := start(t)
	largest := &ticketv1.CreateTicketRequest{
		Subject: strings.Repeat("𝄞", 1000), Message: strings.Repeat("é", 32<<10), ExternalId: strings.Repeat("é", 256),
		RequestId: strings.Repeat("~", 255),
	}
	ticket := a.create(largest)
	if stored := a.get(ticket.GetId()); stored.GetSubject() != largest.GetSubject() || stored.GetMessage() != largest.GetMessage() || stored.GetExternalId() != largest.GetExternalId() {
		t.Error("the largest ticket is not stored as it was sent")
	}
}

func TestTooLargeARequest(t *testing.T) {
	t.Parallel()
	a := start(t)
	message := strings.Repeat("x", 3<<20)
	_, err := a.client().CreateTicket(a.as(a.acme), &ticketv1.CreateTicketRequest{Message: message})
	wantProblem(t, err, codes.InvalidArgument, "REQUEST_TOO_LARGE")
	wantREST(t, a.rest("POST", "/v1/tickets", jsonOf(t, map[string]string{"message": message})), 413, "REQUEST_TOO_LARGE")
	if got := a.rows(); got != [3]int{} {
		t.Errorf("stored %v", got)
	}
}

func TestABatchIsStoredInOrder(t *testing.T) {
	t.Parallel()
	a := start(t)
	request := &ticketv1.BatchCreateTicketsRequest{}
	for i := range 500 {
		request.Requests = append(request.Requests, &ticketv1.CreateTicketRequest{Message: fmt.Sprintf("message %d", i%400), ExternalId: fmt.Sprint(i)})
	}
	response, err := a.client().BatchCreateTickets(a.as(a.acme), request)
	if err != nil {
		t.Fatal(err)
	}
	for i, ticket := range response.GetTickets() {
		if ticket.GetExternalId() != fmt.Sprint(i) || ticket.GetMessage() != fmt.Sprintf("message %d", i%400) {
			t.Fatalf("ticket %d is %v", i, ticket)
		}
	}
	if got, want := a.rows(), [3]int{500, 0, 400}; got != want {
		t.Errorf("stored %v, want %v", got, want)
	}
	r := a.rest("POST", "/v1/tickets:batchCreate", `{"requests":[{"message":"a","external_id":"1"},{"message":"b"}]}`)
	if r.status != 201 || !strings.Contains(r.body, `"tickets"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestABatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	a := start(t)
	taken := "taken"
	if _, err := a.client().BatchCreateTickets(a.as(a.acme), batchOf(item("first", taken))); err != nil {
		t.Fatal(err)
	}
	before := a.rows()
	for name, c := range map[string]struct {
		request *ticketv1.BatchCreateTicketsRequest
		code    codes.Code
		reason  string
		fields  []string
	}{
		"empty":        {batchOf(), codes.InvalidArgument, "INVALID_FIELD", []string{"requests"}},
		"one too many": {batchOf(slices.Repeat([]*ticketv1.CreateTicketRequest{item("x", "")}, 501)...), codes.InvalidArgument, "FIELD_TOO_LARGE", []string{"requests"}},
		"a bad item":   {batchOf(item("x", ""), item(" ", "é")), codes.InvalidArgument, "INVALID_FIELD", []string{"requests[1].message", "requests[1].request_id"}},
		"two bad items": {
			batchOf(item("", ""), item("x", ""), &ticketv1.CreateTicketRequest{Message: "x", Subject: strings.Repeat("x", 1001)}),
			codes.InvalidArgument, "FIELD_TOO_LARGE",
			[]string{"requests[0].message", "requests[2].subject"},
		},
		"one key, equal":     {batchOf(item("x", "k"), item("y", ""), item("x", "k")), codes.InvalidArgument, "INVALID_FIELD", []string{"requests[2].request_id"}},
		"one key, different": {batchOf(item("x", "k"), item("y", "k")), codes.InvalidArgument, "INVALID_FIELD", []string{"requests[1].request_id"}},
		"a reused key":       {batchOf(item("x", "new"), item("second", taken)), codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.client().BatchCreateTickets(a.as(a.acme), c.request)
			wantProblem(t, err, c.code, c.reason, c.fields...)
			if c.reason == "IDEMPOTENCY_KEY_REUSED" && !strings.Contains(err.Error(), "requests[1].request_id") {
				t.Errorf("the error does not name the request: %v", err)
			}
			if strings.HasPrefix(name, "one key") && !strings.Contains(err.Error(), "requests[0]") {
				t.Errorf("the error does not name the other request: %v", err)
			}
		})
	}
	t.Run("the header", func(t *testing.T) {
		_, err := a.client().BatchCreateTickets(a.as(a.acme, "idempotency-key", "k"), batchOf(item("x", "")))
		wantProblem(t, err, codes.InvalidArgument, "IDEMPOTENCY_KEY_NOT_SUPPORTED", "idempotency-key")
		r := a.rest("POST", "/v1/tickets:batchCreate", `{"requests":[{"message":"x"}]}`, "Idempotency-Key: k")
		wantREST(t, r, 400, "IDEMPOTENCY_KEY_NOT_SUPPORTED")
	})
	if after := a.rows(); after != before {
		t.Errorf("refused, but stored: %v became %v", before, after)
	}
}

func TestABatchIsReplayed(t *testing.T) {
	t.Parallel()
	a := start(t)
	first, err := a.client().BatchCreateTickets(a.as(a.acme), batchOf(item("x", "k1"), item("y", "k2")))
	if err != nil {
		t.Fatal(err)
	}
	before := a.rows()
	var header metadata.MD
	again, err := a.client().BatchCreateTickets(a.as(a.acme), batchOf(item("x", "k1"), item("y", "k2")), grpc.Header(&header))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first.GetReplayed(), []bool{false, false}) || !slices.Equal(again.GetReplayed(), []bool{true, true}) {
		t.Errorf("replayed: first %v, again %v", first.GetReplayed(), again.GetReplayed())
	}
	first.Replayed, again.Replayed = nil, nil
	if !proto.Equal(first, again) || !slices.Equal(header.Get("idempotent-replayed"), []string{"true"}) {
		t.Errorf("first %v, again %v with %v", first, again, header)
	}
	if after := a.rows(); after != before {
		t.Errorf("a replay has stored: %v became %v", before, after)
	}
	header = nil
	half, err := a.client().BatchCreateTickets(a.as(a.acme), batchOf(item("y", "k2"), item("z", "k3")), grpc.Header(&header))
	if err != nil {
		t.Fatal(err)
	}
	if half.GetTickets()[0].GetId() != first.GetTickets()[1].GetId() || len(header.Get("idempotent-replayed")) != 0 ||
		!slices.Equal(half.GetReplayed(), []bool{true, false}) {
		t.Errorf("half a replay: %v with %v", half, header)
	}
	// The other method is another scope.
	single := a.create(item("x", "k1"))
	if single.GetId() == first.GetTickets()[0].GetId() {
		t.Error("CreateTicket has replayed a ticket of BatchCreateTickets")
	}
}

func batchOf(items ...*ticketv1.CreateTicketRequest) *ticketv1.BatchCreateTicketsRequest {
	return &ticketv1.BatchCreateTicketsRequest{Requests: items}
}

func item(message, key string) *ticketv1.CreateTicketRequest {
	return &ticketv1.CreateTicketRequest{Message: message, RequestId: key}
}

func TestWithoutAnActiveVersionNothingIsStored(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.exec(`DELETE FROM active_version`)
	_, err := a.client().CreateTicket(a.as(a.acme), item("x", "k"))
	if p := wantProblem(t, err, codes.Unavailable, "NO_ACTIVE_VERSION"); !p.retry {
		t.Error("no RetryInfo")
	}
	r := a.rest("POST", "/v1/tickets:batchCreate", `{"requests":[{"message":"x"}]}`)
	wantREST(t, r, 503, "NO_ACTIVE_VERSION")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if got := a.rows(); got != [3]int{} {
		t.Errorf("stored %v", got)
	}
}

// The span that the evaluation will be linked to is of the caller's trace, and is what is stored with the work.
func TestTheCallersTraceIsStored(t *testing.T) {
	t.Parallel()
	a := start(t)
	for i, create := range []func(traceparent string) *ticketv1.Ticket{
		func(parent string) *ticketv1.Ticket {
			r := a.rest("POST", "/v1/tickets", `{"message":"over REST"}`, "Traceparent: "+parent)
			return r.ticket(t)
		},
		func(parent string) *ticketv1.Ticket {
			ticket, err := a.client().CreateTicket(a.as(a.acme, "traceparent", parent), item("over gRPC", ""))
			if err != nil {
				t.Fatal(err)
			}
			return ticket
		},
		func(parent string) *ticketv1.Ticket {
			r, err := a.client().BatchCreateTickets(a.as(a.acme, "traceparent", parent), batchOf(item("in a batch", ""), item("too", "")))
			if err != nil {
				t.Fatal(err)
			}
			return r.GetTickets()[1]
		},
	} {
		id := fmt.Sprintf("%032x", time.Now().UnixNano()+int64(i))
		ticket := create("00-" + id + "-b7ad6b7169203331-01")
		if ticket.GetTraceId() != id {
			t.Errorf("the trace shown is %q, not the caller's %s", ticket.GetTraceId(), id)
		}
		var stored string
		if err := a.db.QueryRow(t.Context(), `SELECT trace_context FROM ticket WHERE id = $1`, ticket.GetId()).Scan(&stored); err != nil {
			t.Fatal(err)
		}
		sent := ""
		for _, s := range spans.Ended() {
			if s.SpanContext().TraceID().String() == id && s.SpanKind() == trace.SpanKindProducer && s.Name() == "send evaluation" {
				sent = fmt.Sprintf("00-%s-%s-01", id, s.SpanContext().SpanID())
			}
		}
		if sent == "" || stored != sent {
			t.Errorf("the ticket's trace context is %q, the span sent is %q", stored, sent)
		}
	}
	if n := a.count(`SELECT count(*) FROM evaluation_outbox WHERE trace_context = ''`); n != 0 {
		t.Errorf("%d evaluations without a trace", n)
	}
}
