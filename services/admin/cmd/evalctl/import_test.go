package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// desk is a ticket service that keeps what it is given in memory, under the contract's rules for keys. What the real one
// makes of an import is the system's test; here it is how the importer takes every kind of answer.
type desk struct {
	ticketv1.UnimplementedTicketServiceServer
	mu      sync.Mutex
	tickets map[string]*ticketv1.Ticket // by key
	calls   int
	largest int // of the batches that were taken
	// interfere is asked before each batch, with its number.
	interfere func(call int, r *ticketv1.BatchCreateTicketsRequest) error
	// lose loses the answer to a batch that was stored, by its number.
	lose func(call int) bool
}

func (d *desk) BatchCreateTickets(_ context.Context, r *ticketv1.BatchCreateTicketsRequest) (*ticketv1.BatchCreateTicketsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.interfere != nil {
		if err := d.interfere(d.calls, r); err != nil {
			return nil, err
		}
	}
	var violations []rpc.Violation
	for i, one := range r.GetRequests() {
		if strings.Contains(one.GetMessage(), "bad") {
			violations = append(violations, rpc.Violation{Field: fmt.Sprintf("requests[%d].message", i), Reason: "BLANK", Description: "is bad"})
		}
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	for i, one := range r.GetRequests() {
		if known := d.tickets[one.GetRequestId()]; known != nil && known.GetMessage() != one.GetMessage() {
			return nil, &rpc.Error{
				Code: codes.FailedPrecondition, Reason: rpc.ReasonKeyReused, Message: "reused",
				Metadata: map[string]string{"field": fmt.Sprintf("requests[%d].request_id", i)},
			}
		}
	}
	d.largest = max(d.largest, len(r.GetRequests()))
	response := &ticketv1.BatchCreateTicketsResponse{}
	for _, one := range r.GetRequests() {
		t := d.tickets[one.GetRequestId()]
		response.Replayed = append(response.Replayed, t != nil)
		if t == nil {
			t = &ticketv1.Ticket{
				Id: uuid.NewString(), Message: one.GetMessage(), Subject: one.GetSubject(), ExternalId: one.GetExternalId(),
				CreateTime: &timestamppb.Timestamp{Seconds: int64(d.calls)},
			}
			d.tickets[one.GetRequestId()] = t
		}
		response.Tickets = append(response.Tickets, t)
	}
	if d.lose != nil && d.lose(d.calls) {
		return nil, &rpc.Error{Code: codes.Unavailable, Reason: rpc.ReasonOutcomeUnknown, Message: "lost"}
	}
	return response, nil
}

// importing is a client of a desk's.
func importing(t *testing.T) (*desk, func(args ...string) outcome) {
	t.Helper()
	d := &desk{tickets: map[string]*ticketv1.Ticket{}}
	policy := rpc.Policy{"/" + ticketv1.TicketService_ServiceDesc.ServiceName + "/*": rpc.Authenticated}
	o := serve(t, policy, func(r grpc.ServiceRegistrar) { ticketv1.RegisterTicketServiceServer(r, d) })
	environ := []string{"EVALONCE_API_ADDRESS=" + o.address, "EVALONCE_API_TOKEN=" + o.token}
	return d, func(args ...string) outcome {
		return execute(t, environ, nil, append([]string{"tickets", "import"}, args...)...)
	}
}

// wantImported checks the exit code and the figures.
func wantImported(t *testing.T, got outcome, code, rows, created, there, rejected int) {
	t.Helper()
	figures := strings.Fields(got.out)
	want := []string{"rows", fmt.Sprint(rows), "created", fmt.Sprint(created), "already", "there", fmt.Sprint(there), "rejected", fmt.Sprint(rejected)}
	if got.code != code || len(figures) < len(want) || !slices.Equal(figures[:len(want)], want) {
		t.Errorf("exit code %d, %q, want %d, %q: %s", got.code, figures, code, want, got.err)
	}
}

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "{\"message\":\"m%d\",\"external_id\":%d}\n", i, i)
	}
	return b.String()
}

func TestImportIsRepeated(t *testing.T) {
	t.Parallel()
	d, run := importing(t)
	wantImported(t, run(file(t, "a.jsonl", lines(0, 95)), "--batch", "10"), 0, 95, 95, 0, 0)
	if d.largest != 10 {
		t.Errorf("batches of up to %d", d.largest)
	}
	wantImported(t, run(file(t, "a.jsonl", lines(0, 95)), "--batch", "7"), 0, 95, 0, 95, 0)
	// Rows may come and go around those that are there, and the same content may be meant twice.
	wantImported(t, run(file(t, "a.jsonl", lines(100, 105)+lines(20, 95)+lines(20, 21)), "--batch", "9", "--concurrency", "1"), 0, 81, 6, 75, 0)
	wantImported(t, run(file(t, "a.jsonl", ""), "-o", "table"), 0, 0, 0, 0, 0)
	if len(d.tickets) != 101 {
		t.Errorf("%d tickets", len(d.tickets))
	}
}

func TestImportTriesAgain(t *testing.T) {
	t.Parallel()
	d, run := importing(t)
	d.interfere = func(call int, _ *ticketv1.BatchCreateTicketsRequest) error {
		if call == 1 {
			return &rpc.Error{Code: codes.Unavailable, Reason: rpc.ReasonDatabaseUnavailable, Message: "away"}
		}
		return nil
	}
	d.lose = func(call int) bool { return call == 2 }
	// The second call is stored, and its answer is lost.
	wantImported(t, run(file(t, "a.jsonl", lines(0, 5)), "--concurrency", "1"), 0, 5, 0, 5, 0)
	if d.calls != 3 || len(d.tickets) != 5 {
		t.Errorf("%d calls, %d tickets", d.calls, len(d.tickets))
	}
	d.interfere = func(int, *ticketv1.BatchCreateTicketsRequest) error {
		return &rpc.Error{Code: codes.Unavailable, Reason: rpc.ReasonDatabaseUnavailable, Message: "away"}
	}
	got := run(file(t, "a.jsonl", lines(0, 5)), "--patience", "0")
	wantImported(t, got, exitNoAnswer, 5, 0, 0, 0)
	if !strings.Contains(got.err, "the same command goes on") {
		t.Errorf("standard error: %s", got.err)
	}
}

func TestImportTellsBadRows(t *testing.T) {
	t.Parallel()
	d, run := importing(t)
	const text = `{"message":"one"}
{"message":"bad"}
nonsense
{"message":" "}
{"message":"bad as well"}
{"message":"two"}
`
	got := run(file(t, "a.jsonl", text))
	wantImported(t, got, exitFailed, 6, 2, 0, 4)
	for _, want := range []string{"line 2: message: is bad", "line 3: not a JSON object", "line 4: the message is empty", "line 5: message: is bad", "4 rows were not imported"} {
		if !strings.Contains(got.err, want) {
			t.Errorf("no %q in %s", want, got.err)
		}
	}
	// What was mended is all that is new.
	wantImported(t, run(file(t, "a.jsonl", strings.ReplaceAll(text, "nonsense\n", `{"message":"three"}`+"\n"))), exitFailed, 6, 1, 2, 3)
	if got := run(file(t, "a.jsonl", "{}\n"+lines(0, 5)), "--strict"); got.code != exitFailed || len(d.tickets) != 3 || !strings.Contains(got.err, "line 1: no \"message\"") {
		t.Errorf("strict: %+v, %d tickets", got, len(d.tickets))
	}
	// A header without messages, and a table that cannot be read to its end.
	wantImported(t, run(file(t, "a.csv", "subject\nx\n")), exitFailed, 0, 0, 0, 0)
}

func TestImportTakesKeys(t *testing.T) {
	t.Parallel()
	d, run := importing(t)
	text := "id,message\nk1,a\nk2,b\nk1,a\nk2,c\n,d\nk 3,e\n"
	got := run(file(t, "a.csv", text), "--key-column", "id", "--concurrency", "1")
	wantImported(t, got, exitFailed, 6, 2, 1, 3)
	for _, want := range []string{"line 5: request_id: this idempotency key was used with another ticket", `line 6: "id" must be`, `line 7: "id" must be`} {
		if !strings.Contains(got.err, want) {
			t.Errorf("no %q in %s", want, got.err)
		}
	}
	if d.tickets["k2"].GetMessage() != "b" || len(d.tickets) != 2 {
		t.Errorf("stored %v", d.tickets)
	}
}

func TestImportSplitsWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	d, run := importing(t)
	d.interfere = func(_ int, r *ticketv1.BatchCreateTicketsRequest) error {
		if len(r.GetRequests()) > 3 || strings.Contains(r.GetRequests()[0].GetMessage(), "m7") {
			return &rpc.Error{Code: codes.InvalidArgument, Reason: rpc.ReasonRequestTooLarge, Message: "the request is larger than 7 bytes"}
		}
		return nil
	}
	got := run(file(t, "a.jsonl", lines(0, 20)))
	if got.code != exitFailed || !strings.Contains(got.err, "line 8: the request is larger than 7 bytes") || len(d.tickets) != 19 {
		t.Errorf("%+v, %d tickets", got, len(d.tickets))
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	_, run := importing(t)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"none.jsonl"}, exitUsage, "none.jsonl"},
		{[]string{"tickets.xlsx"}, exitUsage, ".jsonl or .csv"},
		{[]string{"-"}, exitUsage, "--format"},
		{[]string{"a.csv", "--batch", "501"}, exitUsage, "--batch"},
		{[]string{"a.csv", "--concurrency", "0"}, exitUsage, "--concurrency"},
		{[]string{"a.csv", "-o", "csv"}, exitUsage, "no output as CSV"},
	} {
		run(test.args...).want(t, test.code, test.want)
	}
	none := execute(t, nil, nil, "tickets", "import", "a.csv")
	none.want(t, exitUsage, "EVALONCE_API_TOKEN")
}
