package api_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func TestWhatATicketShows(t *testing.T) {
	t.Parallel()
	a := start(t)
	ticket := a.create(item("x", ""))
	key := ticket.GetEvaluation().GetEvaluationKey()

	a.exec(`UPDATE evaluation_outbox SET status = 'processing', lease_id = gen_random_uuid(), locked_by = 'w', locked_until = now(), attempts = 3`)
	if e := a.get(ticket.GetId()).GetEvaluation(); e.GetState() != ticketv1.Evaluation_PROCESSING || e.GetAttempts() != 3 || e.Answer != nil || e.DeadLetter != nil {
		t.Errorf("processing: %v", e)
	}
	a.exec(`UPDATE evaluation_outbox SET status = 'pending', lease_id = NULL, locked_by = NULL, locked_until = NULL`)
	a.bury(key, "permanent", "contract_violation")
	e := a.get(ticket.GetId()).GetEvaluation()
	if e.GetState() != ticketv1.Evaluation_DEAD_LETTER || e.GetDeadLetter().GetClass() != "permanent" ||
		e.GetDeadLetter().GetReason() != "contract_violation" || !e.GetDeadLetter().GetDeadTime().IsValid() || e.Answer != nil {
		t.Errorf("dead: %v", e)
	}
	if r := a.rest("GET", "/v1/tickets/"+ticket.GetId(), ""); !strings.Contains(r.body, `"reason":"contract_violation"`) &&
		!strings.Contains(r.body, `"reason": "contract_violation"`) {
		t.Errorf("dead: %s", r.body)
	}

	a.exec(`UPDATE evaluation_outbox SET status = 'pending', dead_at = NULL`)
	a.answer(key, "billing", 0)
	e = a.get(ticket.GetId()).GetEvaluation()
	answer := e.GetAnswer()
	if e.GetState() != ticketv1.Evaluation_SUCCEEDED || e.GetAnsweredWithoutCall() || e.GetAttempts() != 0 || e.DeadLetter != nil {
		t.Errorf("succeeded: %v", e)
	}
	if answer.GetDepartment() != "billing" || answer.GetModelVersion() != "model-1" || answer.GetPromptVersion() != "p-v1" ||
		answer.GetPolicyVersion() != "builtin-1" || answer.GetPriority() != "normal" || answer.GetQueue() != "billing" ||
		len(answer.GetModelCallId()) != 36 || !answer.GetComputeTime().IsValid() || answer.GetTraceId() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("answer: %v", answer)
	}
	var shown struct {
		Evaluation struct {
			State  string
			Answer map[string]any
		}
	}
	r := a.rest("GET", "/v1/tickets/"+ticket.GetId(), "")
	if err := json.Unmarshal([]byte(r.body), &shown); err != nil {
		t.Fatal(err)
	}
	for _, score := range []string{"urgency_score", "is_urgent"} {
		if v, printed := shown.Evaluation.Answer[score]; !printed || v != 0.0 {
			t.Errorf("a %s of 0 is shown as %v in %s", score, v, r.body)
		}
	}

	twin := a.create(item(" x\n", ""))
	if e := twin.GetEvaluation(); e.GetState() != ticketv1.Evaluation_SUCCEEDED || !e.GetAnsweredWithoutCall() || e.GetEvaluationKey() != key ||
		!proto.Equal(e.GetAnswer(), answer) {
		t.Errorf("the twin is told %v", e)
	}
	if stored := a.get(twin.GetId()); !proto.Equal(stored, twin) {
		t.Errorf("the twin is told %v and shown %v", twin, stored)
	}
}

func TestEvaluationsOfAllVersions(t *testing.T) {
	t.Parallel()
	a := start(t)
	ticket := a.create(item("x", ""))
	a.answer(ticket.GetEvaluation().GetEvaluationKey(), "billing", 0.25)
	a.promote("v2")
	// v2 was never asked about this ticket: the ticket shows what v1 made of it, and v2 is left out.
	if e := a.get(ticket.GetId()).GetEvaluation(); e.GetVersionId() != "v1" || e.GetState() != ticketv1.Evaluation_SUCCEEDED {
		t.Errorf("shown %v", e)
	}
	a.create(item("x", "")) // the same content asks v2
	for transport, evaluations := range map[string][]*ticketv1.Evaluation{
		"gRPC": a.evaluations(ticket.GetId()),
		"REST": a.evaluationsOverREST(ticket.GetId()),
	} {
		if len(evaluations) != 2 || evaluations[0].GetVersionId() != "v2" || evaluations[1].GetVersionId() != "v1" {
			t.Fatalf("%s: %v", transport, evaluations)
		}
		if evaluations[0].GetState() != ticketv1.Evaluation_PENDING || evaluations[1].GetAnswer().GetUrgencyScore() != 0.25 {
			t.Errorf("%s: %v", transport, evaluations)
		}
	}
}

// A ticket shows the active version's answer, else the newest older one's, else that of a version that was rolled back;
// and says which. Work that is under way hides no answer.
func TestWhichVersionATicketShows(t *testing.T) {
	t.Parallel()
	a := start(t)
	ticket := a.create(item("x", ""))
	shows := func(when, version string, state ticketv1.Evaluation_State, department string) {
		t.Helper()
		e := a.get(ticket.GetId()).GetEvaluation()
		if e.GetVersionId() != version || e.GetState() != state || e.GetAnswer().GetDepartment() != department {
			t.Errorf("%s: shown %v, want %s %s of %s", when, e, state, department, version)
		}
		listed, err := a.client().ListTickets(a.as(a.acme), &ticketv1.ListTicketsRequest{State: state, Department: department, PageSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(listed.GetTickets()) != 1 {
			t.Errorf("%s: not listed as %s %s", when, state, department)
		}
	}
	shows("at first", "v1", ticketv1.Evaluation_PENDING, "")
	a.answer(ticket.GetEvaluation().GetEvaluationKey(), "billing", 0)
	shows("answered", "v1", ticketv1.Evaluation_SUCCEEDED, "billing")
	a.promote("v2")
	second := a.create(item("x", "")).GetEvaluation().GetEvaluationKey()
	shows("while v2 is at it", "v1", ticketv1.Evaluation_SUCCEEDED, "billing")
	a.bury(second, "permanent", "contract_violation")
	shows("when v2 has failed", "v1", ticketv1.Evaluation_SUCCEEDED, "billing")
	a.exec(`UPDATE evaluation_outbox SET status = 'pending', dead_at = NULL`)
	a.answer(second, "technical", 0)
	shows("answered by v2", "v2", ticketv1.Evaluation_SUCCEEDED, "technical")
	a.promote("v3")
	shows("v3 was never asked", "v2", ticketv1.Evaluation_SUCCEEDED, "technical")
	a.promote("v1")
	shows("rolled back", "v1", ticketv1.Evaluation_SUCCEEDED, "billing")
	a.exec(`DELETE FROM evaluation_result WHERE version_id = 'v1'`)
	shows("rolled back, without an answer", "v2", ticketv1.Evaluation_SUCCEEDED, "technical")
}

// What a newer release has written, this one shows as it is: a department that no version it knows of has, a priority, a
// policy. Lists go on, with it.
func TestWhatANewerReleaseHasWritten(t *testing.T) {
	t.Parallel()
	a := start(t)
	ticket, other := a.create(item("x", "")), a.create(item("y", ""))
	a.answer(ticket.GetEvaluation().GetEvaluationKey(), "quantum_desk", 0.5)
	a.answer(other.GetEvaluation().GetEvaluationKey(), "billing", 0.5)
	a.exec(`UPDATE evaluation_result SET priority = 'asap', policy_version = 'p-next', queue = 'nowhere' WHERE department = 'quantum_desk'`)
	shown := a.get(ticket.GetId())
	if e := shown.GetEvaluation().GetAnswer(); e.GetDepartment() != "quantum_desk" || e.GetPriority() != "asap" || e.GetPolicyVersion() != "p-next" || e.GetQueue() != "nowhere" {
		t.Errorf("shown %v", e)
	}
	for name, c := range map[string]struct {
		filter *ticketv1.ListTicketsRequest
		want   int
	}{
		"all":                {&ticketv1.ListTicketsRequest{}, 2},
		"the new department": {&ticketv1.ListTicketsRequest{Department: "quantum_desk"}, 1},
		"a known one":        {&ticketv1.ListTicketsRequest{Department: "billing"}, 1},
		"by state":           {&ticketv1.ListTicketsRequest{State: ticketv1.Evaluation_SUCCEEDED}, 2},
	} {
		for transport, page := range map[string]*ticketv1.ListTicketsResponse{"gRPC": a.page(c.filter), "REST": a.pageOverREST(c.filter)} {
			if got := page.GetTickets(); len(got) != c.want {
				t.Errorf("%s over %s: %d tickets, want %d", name, transport, len(got), c.want)
			}
		}
	}
	if evaluations := a.evaluations(ticket.GetId()); len(evaluations) != 1 || !proto.Equal(evaluations[0], shown.GetEvaluation()) {
		t.Errorf("evaluations %v", evaluations)
	}
	if twin := a.create(item("x", "")).GetEvaluation(); twin.GetAnswer().GetDepartment() != "quantum_desk" {
		t.Errorf("a twin is told %v", twin)
	}
}

func (a *ticketAPI) evaluations(id string) []*ticketv1.Evaluation {
	a.t.Helper()
	r, err := a.client().ListEvaluations(a.as(a.acme), &ticketv1.ListEvaluationsRequest{TicketId: id})
	if err != nil {
		a.t.Fatal(err)
	}
	return r.GetEvaluations()
}

func (a *ticketAPI) evaluationsOverREST(id string) []*ticketv1.Evaluation {
	a.t.Helper()
	r := a.rest("GET", "/v1/tickets/"+id+"/evaluations", "")
	response := &ticketv1.ListEvaluationsResponse{}
	r.decode(a.t, response)
	return response.GetEvaluations()
}

func TestAnotherClientsTicketsDoNotExist(t *testing.T) {
	t.Parallel()
	a := start(t)
	ticket := a.create(item("x", ""))
	theirs := a.as(a.other)
	_, err := a.client().GetTicket(theirs, &ticketv1.GetTicketRequest{Id: ticket.GetId()})
	wantProblem(t, err, codes.NotFound, "TICKET_NOT_FOUND")
	_, unknown := a.client().GetTicket(theirs, &ticketv1.GetTicketRequest{Id: "018bcfe5-687b-7000-8000-000000000001"})
	if unknown == nil || unknown.Error() != err.Error() {
		t.Errorf("another client's ticket gives %v, an unknown one %v", err, unknown)
	}
	_, err = a.client().ListEvaluations(theirs, &ticketv1.ListEvaluationsRequest{TicketId: ticket.GetId()})
	wantProblem(t, err, codes.NotFound, "TICKET_NOT_FOUND")
	list, err := a.client().ListTickets(theirs, &ticketv1.ListTicketsRequest{})
	if err != nil || len(list.GetTickets()) != 0 {
		t.Errorf("the other client's list is %v, %v", list, err)
	}
	wantREST(t, a.rest("GET", "/v1/tickets/018bcfe5-687b-7000-8000-000000000001", ""), 404, "TICKET_NOT_FOUND")
}

func TestIdentifiersAreUUIDs(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, id := range []string{"", "1", "018bcfe5687b70008000000000000001", "{018bcfe5-687b-7000-8000-000000000001}", "018bcfe5-687b-7000-8000-00000000000g"} {
		_, err := a.client().GetTicket(a.as(a.acme), &ticketv1.GetTicketRequest{Id: id})
		wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "id")
		_, err = a.client().ListEvaluations(a.as(a.acme), &ticketv1.ListEvaluationsRequest{TicketId: id})
		wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "ticket_id")
	}
	wantREST(t, a.rest("GET", "/v1/tickets/%00", ""), 400, "INVALID_FIELD")
}

func TestListing(t *testing.T) {
	t.Parallel()
	a := start(t)
	// 60 tickets, a second apart: of each ten, seven wait, one is dead, two are answered.
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	batch := &ticketv1.BatchCreateTicketsRequest{}
	for i := range 60 {
		batch.Requests = append(batch.Requests, &ticketv1.CreateTicketRequest{Message: fmt.Sprintf("message %d", i), ExternalId: fmt.Sprint(i)})
	}
	created, err := a.client().BatchCreateTickets(a.as(a.acme), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, ticket := range created.GetTickets() {
		a.exec(`UPDATE ticket SET created_at = $2 WHERE id = $1`, ticket.GetId(), epoch.Add(time.Duration(i)*time.Second))
		key := ticket.GetEvaluation().GetEvaluationKey()
		switch i % 10 {
		case 0:
			a.bury(key, "permanent", "refusal")
		case 1:
			a.answer(key, "billing", 0)
		case 2:
			a.answer(key, "technical", float64(i)/100)
		}
	}
	at := func(second int) *timestamppb.Timestamp {
		return timestamppb.New(epoch.Add(time.Duration(second) * time.Second))
	}
	for name, c := range map[string]struct {
		filter *ticketv1.ListTicketsRequest
		want   func(i int) bool
	}{
		"all":           {&ticketv1.ListTicketsRequest{}, func(int) bool { return true }},
		"pending":       {&ticketv1.ListTicketsRequest{State: ticketv1.Evaluation_PENDING}, func(i int) bool { return i%10 > 2 }},
		"processing":    {&ticketv1.ListTicketsRequest{State: ticketv1.Evaluation_PROCESSING}, func(int) bool { return false }},
		"dead":          {&ticketv1.ListTicketsRequest{State: ticketv1.Evaluation_DEAD_LETTER}, func(i int) bool { return i%10 == 0 }},
		"succeeded":     {&ticketv1.ListTicketsRequest{State: ticketv1.Evaluation_SUCCEEDED}, func(i int) bool { return i%10 == 1 || i%10 == 2 }},
		"department":    {&ticketv1.ListTicketsRequest{Department: "technical"}, func(i int) bool { return i%10 == 2 }},
		"urgency of 0":  {&ticketv1.ListTicketsRequest{MinUrgency: proto.Float64(0)}, func(i int) bool { return i%10 == 1 || i%10 == 2 }},
		"urgency":       {&ticketv1.ListTicketsRequest{MinUrgency: proto.Float64(0.32)}, func(i int) bool { return i%10 == 2 && i >= 32 }},
		"created":       {&ticketv1.ListTicketsRequest{CreatedFrom: at(10), CreatedTo: at(20)}, func(i int) bool { return i >= 10 && i < 20 }},
		"created after": {&ticketv1.ListTicketsRequest{CreatedFrom: timestamppb.New(epoch.Add(58*time.Second + 1))}, func(i int) bool { return i > 58 }},
		"several": {
			&ticketv1.ListTicketsRequest{State: ticketv1.Evaluation_SUCCEEDED, Department: "billing", MinUrgency: proto.Float64(0), CreatedFrom: at(5)},
			func(i int) bool { return i%10 == 1 && i >= 5 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			for i := 59; i >= 0; i-- {
				if c.want(i) {
					want = append(want, fmt.Sprint(i))
				}
			}
			for _, size := range []int32{0, 1, 7, 1000, 5000} {
				request := proto.CloneOf(c.filter)
				request.PageSize = size
				if got := a.listAll(request, a.page); !slices.Equal(got, want) {
					t.Errorf("gRPC, pages of %d: got %v, want %v", size, got, want)
				}
			}
			request := proto.CloneOf(c.filter)
			request.PageSize = 7
			if got := a.listAll(request, a.pageOverREST); !slices.Equal(got, want) {
				t.Errorf("REST: got %v, want %v", got, want)
			}
		})
	}
}

// listAll follows the pages to the end and returns the external ids.
func (a *ticketAPI) listAll(r *ticketv1.ListTicketsRequest, page func(*ticketv1.ListTicketsRequest) *ticketv1.ListTicketsResponse) (ids []string) {
	a.t.Helper()
	for range 100 {
		response := page(r)
		if size := int(r.GetPageSize()); size > 0 && len(response.GetTickets()) > min(size, 1000) {
			a.t.Errorf("a page of %d has %d tickets", size, len(response.GetTickets()))
		}
		for _, ticket := range response.GetTickets() {
			ids = append(ids, ticket.GetExternalId())
		}
		if r.PageToken = response.GetNextPageToken(); r.PageToken == "" {
			return ids
		}
	}
	a.t.Fatal("the list does not end")
	return nil
}

func (a *ticketAPI) page(r *ticketv1.ListTicketsRequest) *ticketv1.ListTicketsResponse {
	a.t.Helper()
	response, err := a.client().ListTickets(a.as(a.acme), r)
	if err != nil {
		a.t.Fatal(err)
	}
	return response
}

func (a *ticketAPI) pageOverREST(r *ticketv1.ListTicketsRequest) *ticketv1.ListTicketsResponse {
	a.t.Helper()
	query := url.Values{"page_size": {fmt.Sprint(r.GetPageSize())}, "page_token": {r.GetPageToken()}, "department": {r.GetDepartment()}, "state": {r.GetState().String()}}
	if r.MinUrgency != nil {
		query.Set("min_urgency", fmt.Sprint(r.GetMinUrgency()))
	}
	if r.CreatedFrom != nil {
		query.Set("created_from", r.GetCreatedFrom().AsTime().Format(time.RFC3339Nano))
	}
	if r.CreatedTo != nil {
		query.Set("created_to", r.GetCreatedTo().AsTime().Format(time.RFC3339Nano))
	}
	response := &ticketv1.ListTicketsResponse{}
	a.rest("GET", "/v1/tickets?"+query.Encode(), "").decode(a.t, response)
	return response
}

// Tickets that arrive while a client reads, and pages that text cuts short, lose nothing.
func TestPagesHoldWhileTicketsArrive(t *testing.T) {
	t.Parallel()
	a := start(t)
	large := strings.Repeat("x", 60<<10)
	for i := range 2 {
		batch := &ticketv1.BatchCreateTicketsRequest{}
		for j := range 25 {
			batch.Requests = append(batch.Requests, &ticketv1.CreateTicketRequest{Message: fmt.Sprint(i, j, large), ExternalId: fmt.Sprint(25*i + j)})
		}
		if _, err := a.client().BatchCreateTickets(a.as(a.acme), batch); err != nil {
			t.Fatal(err)
		}
	}
	request := &ticketv1.ListTicketsRequest{PageSize: 1000}
	seen := map[string]bool{}
	pages := 0
	for {
		response := a.page(request)
		pages++
		for _, ticket := range response.GetTickets() {
			if seen[ticket.GetExternalId()] {
				t.Errorf("ticket %s comes twice", ticket.GetExternalId())
			}
			seen[ticket.GetExternalId()] = true
		}
		a.create(&ticketv1.CreateTicketRequest{Message: "newer", ExternalId: fmt.Sprintf("newer %d", pages)})
		if request.PageToken = response.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if len(seen) != 50 || pages < 2 {
		t.Errorf("%d tickets on %d pages, want 50 on some", len(seen), pages)
	}
}

func TestListRequestsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	a := start(t)
	for range 2 {
		a.create(item("x", ""))
	}
	token := a.page(&ticketv1.ListTicketsRequest{PageSize: 1}).GetNextPageToken()
	if token == "" {
		t.Fatal("one page holds two tickets")
	}
	now := timestamppb.Now()
	for name, c := range map[string]struct {
		request *ticketv1.ListTicketsRequest
		field   string
	}{
		"negative size":       {&ticketv1.ListTicketsRequest{PageSize: -1}, "page_size"},
		"state of no name":    {&ticketv1.ListTicketsRequest{State: 99}, "state"},
		"NUL":                 {&ticketv1.ListTicketsRequest{Department: "a\x00"}, "department"},
		"long department":     {&ticketv1.ListTicketsRequest{Department: strings.Repeat("x", 257)}, "department"},
		"urgency above 1":     {&ticketv1.ListTicketsRequest{MinUrgency: proto.Float64(1.01)}, "min_urgency"},
		"urgency below 0":     {&ticketv1.ListTicketsRequest{MinUrgency: proto.Float64(-0.01)}, "min_urgency"},
		"urgency that is NaN": {&ticketv1.ListTicketsRequest{MinUrgency: proto.Float64(math.NaN())}, "min_urgency"},
		"no time":             {&ticketv1.ListTicketsRequest{CreatedFrom: &timestamppb.Timestamp{Seconds: 1 << 60}}, "created_from"},
		"no nanoseconds":      {&ticketv1.ListTicketsRequest{CreatedTo: &timestamppb.Timestamp{Nanos: -1}}, "created_to"},
		"the first instant":   {&ticketv1.ListTicketsRequest{CreatedTo: timestamppb.New(time.Time{})}, "created_to"},
		"empty range":         {&ticketv1.ListTicketsRequest{CreatedFrom: now, CreatedTo: now}, "created_to"},
		"a word for a token":  {&ticketv1.ListTicketsRequest{PageToken: "next"}, "page_token"},
		"a cut token":         {&ticketv1.ListTicketsRequest{PageToken: token[:20]}, "page_token"},
		"another filter":      {&ticketv1.ListTicketsRequest{PageToken: token, State: ticketv1.Evaluation_PENDING}, "page_token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.client().ListTickets(a.as(a.acme), c.request)
			wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", c.field)
		})
	}
	_, err := a.client().ListTickets(a.as(a.other), &ticketv1.ListTicketsRequest{PageToken: token})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "page_token")
	if _, err := a.client().ListTickets(a.as(a.acme), &ticketv1.ListTicketsRequest{PageToken: token, PageSize: 9}); err != nil {
		t.Errorf("the size of a page may change: %v", err)
	}
	wantREST(t, a.rest("GET", "/v1/tickets?departmnt=billing", ""), 400, "INVALID_FIELD")
}
