package api_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestFiftyFirstRequestsAtOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	const requests = 50
	type outcome struct {
		ticket   *ticketv1.Ticket
		replayed string
		err      error
	}
	outcomes := make([]outcome, requests)
	ready := make(chan struct{})
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			<-ready
			o := &outcomes[i]
			// Two transports and four spellings of one key.
			switch i % 4 {
			case 0:
				var header metadata.MD
				o.ticket, o.err = a.client().CreateTicket(a.as(a.acme), item("one effect", "k-1"), grpc.Header(&header))
				o.replayed = strings.Join(header.Get("idempotent-replayed"), ",")
				return
			case 1:
				var header metadata.MD
				o.ticket, o.err = a.client().CreateTicket(a.as(a.acme, "idempotency-key", `"k-1"`), item("one effect", ""), grpc.Header(&header))
				o.replayed = strings.Join(header.Get("idempotent-replayed"), ",")
				return
			}
			body, headers := `{"message":"one effect","request_id":"k-1"}`, []string(nil)
			if i%4 == 3 {
				body, headers = `{"message": "one \u0065ffect"}`, []string{"Idempotency-Key: k-1"}
			}
			r, err := a.do("POST", "/v1/tickets", body, headers...)
			o.ticket, o.err, o.replayed = &ticketv1.Ticket{}, err, r.header.Get("Idempotent-Replayed")
			if err == nil && r.status != 201 {
				o.err = fmt.Errorf("%d %s", r.status, r.body)
			}
			if o.err == nil {
				o.err = protojson.Unmarshal([]byte(r.body), o.ticket)
			}
		})
	}
	close(ready)
	wg.Wait()
	firsts := 0
	for i, o := range outcomes {
		if o.err != nil {
			t.Fatalf("request %d: %v", i, o.err)
		}
		if !proto.Equal(o.ticket, outcomes[0].ticket) {
			t.Errorf("request %d got %v, request 0 got %v", i, o.ticket, outcomes[0].ticket)
		}
		switch o.replayed {
		case "":
			firsts++
		case "true":
		default:
			t.Errorf("request %d: Idempotent-Replayed: %s", i, o.replayed)
		}
	}
	if firsts != 1 {
		t.Errorf("%d responses are not marked as replayed, want 1", firsts)
	}
	if got, want := a.rows(), [3]int{1, 1, 1}; got != want {
		t.Errorf("stored %v, want %v", got, want)
	}
}

// The first response comes again, not what has become of the ticket since.
func TestAReplayIsTheFirstResponse(t *testing.T) {
	t.Parallel()
	a := start(t)
	first := a.rest("POST", "/v1/tickets", `{"message":"x","subject":"s"}`, `Idempotency-Key: "k-1"`)
	if first.status != 201 {
		t.Fatalf("%d %s", first.status, first.body)
	}
	ticket := first.ticket(t)
	a.answer(ticket.GetEvaluation().GetEvaluationKey(), "billing", 0)
	a.promote("v2")
	again := a.rest("POST", "/v1/tickets", `{"request_id":"k-1","subject":"s","message":"x"}`)
	if again.status != 201 || again.header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("%d %v", again.status, again.header)
	}
	if !proto.Equal(again.ticket(t), ticket) {
		t.Errorf("first %s, again %s", first.body, again.body)
	}
	if now := a.get(ticket.GetId()); now.GetEvaluation().GetState() != ticketv1.Evaluation_SUCCEEDED {
		t.Errorf("the ticket itself is %v", now)
	}
	if got := a.rows(); got != [3]int{1, 1, 0} {
		t.Errorf("stored %v", got)
	}
}

func TestAKeyHasOnePayload(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.create(&ticketv1.CreateTicketRequest{Message: "x", Subject: "s", ExternalId: "e", RequestId: "k-1"})
	before := a.rows()
	for _, other := range []*ticketv1.CreateTicketRequest{
		{Message: "y", Subject: "s", ExternalId: "e", RequestId: "k-1"},
		{Message: "x", Subject: "", ExternalId: "e", RequestId: "k-1"},
		{Message: "x", Subject: "s", ExternalId: "", RequestId: "k-1"},
		{Message: "x ", Subject: "s", ExternalId: "e", RequestId: "k-1"}, // the same evaluation, not the same ticket
		{Message: "e", Subject: "s", ExternalId: "x", RequestId: "k-1"},
	} {
		_, err := a.client().CreateTicket(a.as(a.acme), other)
		wantProblem(t, err, codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED")
		r := a.rest("POST", "/v1/tickets", jsonOf(t, map[string]string{
			"message": other.GetMessage(), "subject": other.GetSubject(), "external_id": other.GetExternalId(),
		}), "Idempotency-Key: k-1")
		wantREST(t, r, 422, "IDEMPOTENCY_KEY_REUSED")
	}
	if after := a.rows(); after != before {
		t.Errorf("refused, but stored: %v became %v", before, after)
	}
	// An invalid request does not take its key.
	_, err := a.client().CreateTicket(a.as(a.acme), item("", "k-2"))
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "message")
	a.create(item("x", "k-2"))
}

func TestAKeyIsTheClientsOwn(t *testing.T) {
	t.Parallel()
	a := start(t)
	mine := a.create(item("x", "k-1"))
	theirs, err := a.client().CreateTicket(a.as(a.other), item("y", "k-1"))
	if err != nil {
		t.Fatal(err)
	}
	if mine.GetId() == theirs.GetId() {
		t.Error("two clients share a key")
	}
}

func TestAKeyEndsWithItsRetention(t *testing.T) {
	t.Parallel()
	a := start(t)
	first := a.create(item("x", "k-1"))
	a.exec(`UPDATE client_request SET created_at = now() - interval '2 hours', expires_at = now() - interval '1 hour'`)
	second := a.create(item("y", "k-1"))
	if first.GetId() == second.GetId() {
		t.Error("an expired key is replayed")
	}
	if n := a.count(`SELECT count(*) FROM client_request WHERE expires_at BETWEEN now() + interval '59 minutes' AND now() + interval '1 hour'`); n != 1 {
		t.Error("the key's new retention is not an hour of the database's clock")
	}
}

func TestMalformedKeys(t *testing.T) {
	t.Parallel()
	a := start(t)
	for name, headers := range map[string][]string{
		"different from the field": {"Idempotency-Key: k-2"},
		"two headers":              {"Idempotency-Key: k-1", "Idempotency-Key: k-1"},
		"not ASCII":                {"Idempotency-Key: ключ"},
		"open quote":               {`Idempotency-Key: "k-1`},
		"empty":                    {`Idempotency-Key: ""`},
	} {
		r := a.rest("POST", "/v1/tickets", `{"message":"x","request_id":"k-1"}`, headers...)
		if r.status != 400 || !strings.Contains(r.body, "idempotency-key") {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if got := a.rows(); got != [3]int{} {
		t.Errorf("refused, but stored: %v", got)
	}
}

// A key that is taken when it is asked for, and gone when the first response is to be read: the call had no effect, and
// the caller is told to make it again.
func TestAKeyThatExpiresDuringTheCall(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.create(item("x", "k"))
	_, err := a.db.Exec(t.Context(), `
		CREATE FUNCTION prune() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN DELETE FROM client_request; RETURN NULL; END $$;
		CREATE TRIGGER prune AFTER INSERT ON client_request FOR EACH STATEMENT EXECUTE FUNCTION prune()`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.client().CreateTicket(a.as(a.acme), item("x", "k"))
	if p := wantProblem(t, err, codes.Unavailable, "IDEMPOTENCY_KEY_EXPIRED"); !p.retry {
		t.Error("no RetryInfo")
	}
	if got, want := a.rows(), [3]int{1, 0, 1}; got != want {
		t.Errorf("stored %v, want %v", got, want)
	}
	if _, err := a.db.Exec(t.Context(), "DROP TRIGGER prune ON client_request"); err != nil {
		t.Fatal(err)
	}
	a.create(item("x", "k"))
	if got, want := a.rows(), [3]int{2, 1, 1}; got != want {
		t.Errorf("stored %v after the retry, want %v", got, want)
	}
}
