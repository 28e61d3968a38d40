package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// said is an answer in a test: department, is_urgent, urgency_score.
type said struct {
	department string
	isUrgent   float64
	score      float64
}

// answered is a ticket with what two versions have made of it; nil where they were not asked.
type answered struct {
	external, client, content string
	a, b                      *said
}

// beginning is when the tickets of these tests begin to come in, one each minute.
var beginning = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// withAnswers registers versions a, with departments billing and technical, and b, with Billing and sales, and stores
// tickets with their answers. It returns the tickets' ids.
func withAnswers(a *adminAPI, tickets ...answered) []string {
	a.t.Helper()
	for id, departments := range map[string][]string{"a": {"billing", "technical"}, "b": {"Billing", "sales"}} {
		v := changed(version(id), func(v *adminv1.Version) {
			v.Departments = nil
			for _, name := range departments {
				v.Departments = append(v.Departments, &adminv1.Department{Name: name})
			}
		})
		if _, _, err := a.register(v); err != nil {
			a.t.Fatal(err)
		}
	}
	ids := make([]string, len(tickets))
	for i, t := range tickets {
		ids[i] = a.text(`INSERT INTO ticket (id, client_id, external_id, subject, message, content_hash, created_at)
			VALUES (uuid_v7($1), $2, $3, 'secret subject', 'secret message', sha256($4::text::bytea), $1) RETURNING id::text`,
			beginning.Add(time.Duration(i)*time.Minute), t.client, t.external, t.content)
		for id, s := range map[string]*said{"a": t.a, "b": t.b} {
			if s != nil {
				a.answer(ids[i], id, *s)
			}
		}
	}
	return ids
}

// answer stores a version's answer to a ticket, of a call that took two seconds and cost a cent, after one that failed.
// The answer of a content that has one stays.
func (a *adminAPI) answer(ticket, version string, s said) {
	a.t.Helper()
	const sql = `
		WITH key AS (
		  SELECT t.id, t.content_hash, evaluation_key(t.content_hash, v.digest) AS key
		  FROM ticket t, evaluator_version v WHERE t.id = $1 AND v.id = $2
		), failed AS (
		  INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, started_at, finished_at, outcome, class, reason)
		  SELECT uuid_v7(), key, $2, gen_random_uuid(), 1, now(), now(), 'failed', 'transient', 'server_error' FROM key
		  WHERE NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = key)
		), call AS (
		  INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, started_at, finished_at, outcome, cost_usd, response)
		  SELECT uuid_v7(), key, $2, gen_random_uuid(), 2, now(), now() + interval '2 seconds', 'answered', 0.01, convert_to('raw of ' || $2, 'UTF8') || '\xff' FROM key
		  WHERE NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = key)
		  RETURNING id
		)
		INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
		  model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT k.key, k.content_hash, k.id, $2, $3, $4, $5, 'm', 'p', 'builtin-1', 'low', 'q', c.id FROM key k, call c`
	if _, err := a.db.Exec(a.t.Context(), sql, ticket, version, s.isUrgent, s.department, s.score); err != nil {
		a.t.Fatal(err)
	}
}

// compare compares as ana, and returns the summary and the disagreements.
func (a *adminAPI) compare(r *adminv1.CompareRequest) (*adminv1.Comparison, []*adminv1.Disagreement, error) {
	stream, err := adminv1.NewCompareServiceClient(a.conn).Compare(a.as(a.ana), r)
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	var worst []*adminv1.Disagreement
	for {
		next, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return first.GetSummary(), worst, nil
		}
		if err != nil {
			return nil, nil, err
		}
		worst = append(worst, next.GetDisagreement())
	}
}

func (a *adminAPI) mustCompare(r *adminv1.CompareRequest) (*adminv1.Comparison, []*adminv1.Disagreement) {
	a.t.Helper()
	summary, worst, err := a.compare(r)
	if err != nil {
		a.t.Fatal(err)
	}
	return summary, worst
}

// day is a request for the day of the tests' tickets.
func day(change func(*adminv1.CompareRequest)) *adminv1.CompareRequest {
	r := &adminv1.CompareRequest{
		VersionId: "a", OtherVersionId: "b", CreatedFrom: timestamppb.New(beginning), CreatedTo: timestamppb.New(beginning.AddDate(0, 0, 1)),
	}
	if change != nil {
		change(r)
	}
	return r
}

func matrix(s *adminv1.Comparison) map[string]int64 {
	cells := map[string]int64{}
	for _, c := range s.GetConfusion() {
		cells[c.GetDepartment()+"→"+c.GetOtherDepartment()] = c.GetTickets()
	}
	return cells
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s is %s, want %s", what, g, w)
	}
}

func wantMessage(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", jsonOf(t, got), jsonOf(t, want))
	}
}

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	a := start(t)
	ids := withAnswers(a,
		answered{external: "x0", client: "acme", content: "0", a: &said{"billing", 0.9, 0.75}, b: &said{"Billing", 0.9, 0.75}},
		answered{external: "x1", client: "acme", content: "0", a: &said{"billing", 0.9, 0.75}, b: &said{"Billing", 0.9, 0.75}}, // a twin
		answered{external: "x2", client: "acme", content: "2", a: &said{"technical", 0.5, 0.5}, b: &said{"sales", 0.25, 0.25}},
		answered{external: "x3", client: "bolt", content: "3", a: &said{"technical", 0.25, 0}, b: &said{"Billing", 0.75, 1}},
		answered{external: "x4", client: "acme", content: "4", a: &said{"billing", 0, 0}},
		answered{external: "x5", client: "acme", content: "5"},
	)
	if _, err := a.db.Exec(t.Context(), `
		INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT evaluation_key(t.content_hash, v.digest), t.content_hash, t.id, v.id, 'main', 'live'
		FROM ticket t, evaluator_version v WHERE t.id = $1 AND v.id = 'b'`, ids[4]); err != nil {
		t.Fatal(err)
	}
	summary, worst := a.mustCompare(day(nil))

	wantEqual(t, "tickets", summary.GetTickets(), 6)
	wantMessage(t, summary.GetCoverage(), &adminv1.Coverage{Answered: 5, Unasked: 1})
	wantMessage(t, summary.GetOtherCoverage(), &adminv1.Coverage{Answered: 4, Waiting: 1, Unasked: 1})
	wantEqual(t, "compared, agreed, agreement", []any{summary.GetCompared(), summary.GetAgreed(), summary.GetAgreement()}, []any{4, 2, 0.5})
	wantEqual(t, "confusion", matrix(summary), map[string]int64{"billing→billing": 2, "technical→sales": 1, "technical→billing": 1})
	for i, want := range []*adminv1.DepartmentAgreement{
		{Name: "billing", Known: true, OtherKnown: true, Tickets: 2, OtherTickets: 3, Agreed: 2},
		{Name: "technical", Known: true, Tickets: 2},
		{Name: "sales", OtherKnown: true, OtherTickets: 1},
	} {
		wantMessage(t, summary.GetDepartments()[i], want)
	}
	wantMessage(t, summary.GetUrgency(), &adminv1.UrgencyAgreement{BothUrgent: 2, OnlyUrgent: 1, OnlyOtherUrgent: 1, Agreement: proto.Float64(0.5)})
	wantMessage(t, summary.GetScores(), &adminv1.ScoreDistribution{
		Mean: 0.5, Bins: []int64{1, 0, 0, 0, 0, 1, 0, 2, 0, 0}, Deciles: []float64{0, 0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75, 0.75},
	})
	wantEqual(t, "the mean of the other and the shift", []float64{summary.GetOtherScores().GetMean(), summary.GetScoreShift()}, []float64{0.6875, 0.1875})
	wantMessage(t, summary.GetExpense(), &adminv1.Expense{
		Answers: 4, Calls: 8, CostUsd: "0.04", CostPerAnswerUsd: "0.01", MeanLatencySeconds: 2, P50LatencySeconds: 2, P95LatencySeconds: 2,
	})
	wantEqual(t, "answers of the other", summary.GetOtherExpense().GetAnswers(), 3)
	wantEqual(t, "policy", []any{summary.GetPolicyId(), summary.GetUrgentThreshold()}, []any{"builtin-1", 0.5})

	var order []string
	for _, d := range worst {
		order = append(order, d.GetExternalId())
	}
	wantEqual(t, "disagreements", order, []string{"x3", "x2"})
	wantEqual(t, "distances", []float64{worst[0].GetDistance(), worst[1].GetDistance()}, []float64{2.5, 1.5})
	if got := worst[0]; got.GetTicketId() != ids[3] || got.GetClientId() != "bolt" || got.GetAnswer().GetRawResponse() != "raw of a\uFFFD" ||
		got.GetOtherAnswer().GetRawResponse() != "raw of b\uFFFD" || got.GetOtherAnswer().GetDepartment() != "Billing" {
		t.Errorf("the worst is %s", jsonOf(t, got))
	}
	if strings.Contains(jsonOf(t, worst[0])+jsonOf(t, summary), "secret") {
		t.Error("what a customer wrote is told")
	}
	// The built-in policy: queues follow departments, whose letter case is another one of them.
	wantEqual(t, "changed decisions", summary.GetChangedDecisions(), 4)
	// By another policy, in which 0.9 is the least that is urgent, and everything goes to one queue.
	strict := refunds("strict")
	strict.Rules = []*adminv1.PolicyRule{{Name: "all", When: "true", Priority: "low", Queue: "one"}}
	if _, _, err := a.registerPolicy(strict); err != nil {
		t.Fatal(err)
	}
	if _, err := a.policies().ActivatePolicy(a.as(a.ana), &adminv1.ActivatePolicyRequest{Id: "strict"}); err != nil {
		t.Fatal(err)
	}
	summary, worst = a.mustCompare(day(nil))
	wantEqual(t, "policy", []any{summary.GetPolicyId(), summary.GetUrgentThreshold(), summary.GetChangedDecisions()}, []any{"strict", 0.9, 0})
	wantMessage(t, summary.GetUrgency(), &adminv1.UrgencyAgreement{BothUrgent: 2, NeitherUrgent: 2, Agreement: proto.Float64(1)})
	wantEqual(t, "decision", worst[0].GetAnswer().GetPriority()+" "+worst[0].GetAnswer().GetQueue(), "low one")

	_, worst = a.mustCompare(day(func(r *adminv1.CompareRequest) { r.MaxDisagreements = proto.Int32(1) }))
	wantEqual(t, "disagreements, of one", len(worst), 1)
	_, worst = a.mustCompare(day(func(r *adminv1.CompareRequest) { r.MaxDisagreements = proto.Int32(0) }))
	wantEqual(t, "disagreements, of none", len(worst), 0)
	summary, _ = a.mustCompare(day(func(r *adminv1.CompareRequest) { r.ClientId = "bolt" }))
	wantEqual(t, "tickets of a client", []int64{summary.GetTickets(), summary.GetCompared(), summary.GetExpense().GetAnswers()}, []int64{1, 1, 1})
	// Half-open: the second minute, and not the third.
	summary, _ = a.mustCompare(day(func(r *adminv1.CompareRequest) {
		r.CreatedFrom, r.CreatedTo = timestamppb.New(beginning.Add(time.Minute)), timestamppb.New(beginning.Add(2*time.Minute))
	}))
	wantEqual(t, "tickets of a minute", summary.GetTickets(), 1)
	summary, worst = a.mustCompare(day(func(r *adminv1.CompareRequest) {
		r.CreatedFrom, r.CreatedTo = timestamppb.New(beginning.AddDate(1, 0, 0)), timestamppb.New(beginning.AddDate(1, 0, 1))
	}))
	if summary.GetTickets() != 0 || summary.Agreement != nil || summary.ScoreShift != nil || len(worst) != 0 || len(summary.GetDepartments()) != 3 {
		t.Errorf("of nothing: %s", jsonOf(t, summary))
	}
}

func TestCompareWithTruth(t *testing.T) {
	t.Parallel()
	a := start(t)
	ids := withAnswers(a,
		answered{external: "x0", client: "acme", content: "0", a: &said{"billing", 0.9, 0.75}},
		answered{external: "x1", client: "acme", content: "1", a: &said{"billing", 0.4, 0.5}},
		answered{external: "x2", client: "acme", content: "2", a: &said{"technical", 0.6, 0}},
		answered{external: "twin", client: "acme", content: "3", a: &said{"billing", 0, 0}},
		answered{external: "twin", client: "acme", content: "3"},
		answered{external: "x5", client: "acme", content: "5"},
		answered{external: "x6", client: "acme", content: "6", a: &said{"billing", 0, 0}},
		answered{external: "", client: "acme", content: "7", a: &said{"technical", 0.2, 0}},
		answered{external: "x8", client: "acme", content: "8", a: &said{"technical", 0.2, 0}},
	)
	yes, no := proto.Bool(true), proto.Bool(false)
	request := &adminv1.CompareRequest{VersionId: "a", Truth: []*adminv1.Truth{
		{ExternalId: "x0", Department: " BILLING ", Urgent: yes},
		{ExternalId: "x1", Department: "privacy", Urgent: yes},
		{ExternalId: "x2", Department: "billing", Urgent: no},
		{ExternalId: "x0", Department: "billing"},                   // a duplicate
		{ExternalId: "twin", Department: "billing"},                 // ambiguous
		{ExternalId: "x5", Department: "billing"},                   // unanswered
		{ExternalId: "none", Department: "billing"},                 // unknown
		{ExternalId: "x6", Department: "billing"},                   // contradicted
		{ExternalId: "x6", Department: "technical"},                 //
		{TicketId: ids[7], Department: "technical"},                 // without a word on urgency
		{TicketId: ids[2], Department: "billing"},                   // a duplicate by the other id
		{ExternalId: "x8", Department: "technical", Urgent: yes},    // contradicted
		{TicketId: ids[8], Department: "technical", Urgent: no},     // by the other id
		{TicketId: strings.Repeat("0", 32), Department: "whatever"}, // unknown
	}}
	summary, worst := a.mustCompare(request)
	wantMessage(t, summary.GetTruth(), &adminv1.TruthAccount{
		Rows: 14, Used: 4, Duplicates: 2, Contradictions: 4, Unknown: 2, Ambiguous: 1, Unanswered: 1,
		ContradictionExamples: []string{"x6", "x8", ids[8]}, UnknownExamples: []string{"none", "00000000-0000-0000-0000-000000000000"},
		AmbiguousExamples: []string{"twin"},
	})
	wantEqual(t, "tickets", summary.GetTickets(), 9)
	wantMessage(t, summary.GetCoverage(), &adminv1.Coverage{Answered: 8, Unasked: 1})
	wantEqual(t, "compared, agreed, accuracy", []any{summary.GetCompared(), summary.GetAgreed(), summary.GetAgreement()}, []any{4, 2, 0.5})
	wantEqual(t, "confusion", matrix(summary), map[string]int64{"billing→billing": 1, "billing→privacy": 1, "technical→billing": 1, "technical→technical": 1})
	for i, want := range []*adminv1.DepartmentAgreement{
		{Name: "billing", Known: true, OtherKnown: true, Tickets: 2, OtherTickets: 2, Agreed: 1, Precision: proto.Float64(0.5), Recall: proto.Float64(0.5), F1: proto.Float64(0.5)},
		{Name: "technical", Known: true, OtherKnown: true, Tickets: 2, OtherTickets: 1, Agreed: 1, Precision: proto.Float64(0.5), Recall: proto.Float64(1), F1: proto.Float64(2.0 / 3)},
		{Name: "privacy", OtherKnown: true, OtherTickets: 1, Recall: proto.Float64(0), F1: proto.Float64(0)},
	} {
		wantMessage(t, summary.GetDepartments()[i], want)
	}
	wantMessage(t, summary.GetUrgency(), &adminv1.UrgencyAgreement{BothUrgent: 1, OnlyUrgent: 1, OnlyOtherUrgent: 1, Agreement: proto.Float64(1.0 / 3)})
	if summary.OtherCoverage != nil || summary.OtherScores != nil || summary.OtherExpense != nil || summary.ChangedDecisions != nil {
		t.Errorf("a truth has a version's figures: %s", jsonOf(t, summary))
	}
	var order []string
	for _, d := range worst {
		order = append(order, d.GetExternalId())
	}
	wantEqual(t, "disagreements", order, []string{"x1", "x2"}) // both 1.6
	if worst[0].GetTrueDepartment() != "privacy" || !worst[0].GetTrueUrgent() || worst[0].OtherAnswer != nil {
		t.Errorf("the worst is %s", jsonOf(t, worst[0]))
	}

	slices.Reverse(request.Truth)
	again, _ := a.mustCompare(request)
	wantEqual(t, "agreement in the other order", []any{again.GetAgreement(), again.GetTruth().GetUsed()}, []any{0.5, 4})
	request.CreatedTo = timestamppb.New(beginning.Add(time.Minute))
	first, _ := a.mustCompare(request)
	wantEqual(t, "used, unknown of one minute", []int64{first.GetTruth().GetUsed(), first.GetTruth().GetDuplicates()}, []int64{1, 1})
}

func TestCompareRefuses(t *testing.T) {
	t.Parallel()
	a := start(t)
	withAnswers(a)
	truth := func(rows ...*adminv1.Truth) func(*adminv1.CompareRequest) {
		return func(r *adminv1.CompareRequest) { r.OtherVersionId, r.Truth = "", rows }
	}
	for name, test := range map[string]struct {
		change func(*adminv1.CompareRequest)
		fields []string
	}{
		"nothing":               {func(r *adminv1.CompareRequest) { proto.Reset(r) }, []string{"version_id", "other_version_id", "created_from", "created_to"}},
		"both":                  {func(r *adminv1.CompareRequest) { r.Truth = []*adminv1.Truth{{ExternalId: "x", Department: "d"}} }, []string{"truth"}},
		"itself":                {func(r *adminv1.CompareRequest) { r.OtherVersionId = "a" }, []string{"other_version_id"}},
		"a range that is none":  {func(r *adminv1.CompareRequest) { r.CreatedTo = r.CreatedFrom }, []string{"created_to"}},
		"a sample and a range":  {func(r *adminv1.CompareRequest) { r.SampleId = "s" }, []string{"sample_id"}},
		"too many":              {func(r *adminv1.CompareRequest) { r.MaxDisagreements = proto.Int32(10_001) }, []string{"max_disagreements"}},
		"truth without an id":   {truth(&adminv1.Truth{Department: "d"}), []string{"truth[0]"}},
		"truth with two ids":    {truth(&adminv1.Truth{Department: "d", ExternalId: "x", TicketId: strings.Repeat("0", 32)}), []string{"truth[0]"}},
		"truth without a word":  {truth(&adminv1.Truth{ExternalId: "x", Department: " "}), []string{"truth[0].department"}},
		"truth of no ticket id": {truth(&adminv1.Truth{TicketId: "7", Department: "d"}), []string{"truth[0].ticket_id"}},
		"too much truth":        {truth(make([]*adminv1.Truth, 200_001)...), []string{"truth"}},
		"NUL":                   {func(r *adminv1.CompareRequest) { r.ClientId = "a\x00" }, []string{"client_id"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := a.compare(day(test.change))
			reason := rpc.ReasonInvalidField
			if name == "too much truth" {
				reason = rpc.ReasonFieldTooLarge
			}
			wantProblem(t, err, codes.InvalidArgument, reason, test.fields...)
		})
	}
	_, _, err := a.compare(day(func(r *adminv1.CompareRequest) { r.OtherVersionId = "none" }))
	wantProblem(t, err, codes.NotFound, "VERSION_NOT_FOUND")
	_, _, err = a.compare(day(func(r *adminv1.CompareRequest) { r.CreatedFrom, r.CreatedTo, r.SampleId = nil, nil, "none" }))
	wantProblem(t, err, codes.NotFound, "SAMPLE_NOT_FOUND")
}

// Over REST each message is a line.
func TestCompareOverREST(t *testing.T) {
	t.Parallel()
	a := start(t)
	withAnswers(a, answered{external: "x0", client: "acme", content: "0", a: &said{"billing", 0.9, 0.75}, b: &said{"sales", 0.9, 0.75}})
	const body = `{"version_id":"a","other_version_id":"b","created_from":"2026-03-01T01:00:00+01:00","created_to":"2026-03-02T00:00:00Z"}`
	got := a.rest(http.MethodPost, "/v1/versions:compare", body)
	if got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	var messages []*adminv1.CompareResponse
	lines := bufio.NewScanner(strings.NewReader(got.body))
	for lines.Scan() {
		var line struct{ Result json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		m := &adminv1.CompareResponse{}
		if err := protojson.Unmarshal(line.Result, m); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		messages = append(messages, m)
	}
	if len(messages) != 2 || messages[0].GetSummary().GetCompared() != 1 || messages[1].GetDisagreement().GetExternalId() != "x0" {
		t.Errorf("got %s", got.body)
	}
	for body, reason := range map[string]string{
		`{"version_id":"a"}`: rpc.ReasonInvalidField,
		`{"version_id":"a","other_version_id":"none","created_from":"2026-03-01T00:00:00Z","created_to":"2026-03-02T00:00:00Z"}`: "VERSION_NOT_FOUND",
		`{"version_id":"a","other_version_id":"b","created_from":"2026-03-01","created_to":"2026-03-02"}`:                        "MALFORMED_REQUEST",
	} {
		if got := a.rest(http.MethodPost, "/v1/versions:compare", body); got.status/100 != 4 || !strings.Contains(got.body, reason) {
			t.Errorf("%s: %d %s, want %s", body, got.status, got.body, reason)
		}
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	a := start(t)
	var tickets []answered
	for i := range 40 {
		content := fmt.Sprint(i)
		tickets = append(tickets, answered{external: "x" + content, client: "acme", content: content, a: &said{"billing", 0.9, 0.75}, b: &said{"sales", 0.1, 0.75}})
	}
	withAnswers(a, tickets...)
	client := adminv1.NewCompareServiceClient(a.conn)
	ctx := a.as(a.ana)
	create := func(id string, seed int64, change func(*adminv1.CreateSampleRequest)) (*adminv1.Sample, error) {
		r := &adminv1.CreateSampleRequest{Id: id, CreatedFrom: timestamppb.New(beginning), CreatedTo: timestamppb.New(beginning.AddDate(0, 0, 1)), Size: 10, Seed: seed}
		if change != nil {
			change(r)
		}
		return client.CreateSample(ctx, r)
	}
	must := func(s *adminv1.Sample, err error) *adminv1.Sample {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	members := func(id string) string {
		return a.text(`SELECT coalesce(string_agg(ticket_id::text, ' ' ORDER BY ticket_id), '') FROM ticket_sample_member WHERE sample_id = $1`, id)
	}
	dry := must(create("dry", 1, func(r *adminv1.CreateSampleRequest) { r.DryRun = true }))
	if dry.GetTickets() != 10 || members("dry") != "" {
		t.Errorf("a dry run: %s, and it has drawn %q", jsonOf(t, dry), members("dry"))
	}
	one := must(create("one", 1, nil))
	if one.GetTickets() != 10 || one.GetCreatedBy() != "ana" {
		t.Errorf("drawn: %s", jsonOf(t, one))
	}
	must(create("again", 1, nil))
	must(create("other", 2, nil))
	if members("one") != members("again") || members("one") == members("other") {
		t.Error("the seed does not decide what is drawn")
	}
	wantMessage(t, must(create("one", 1, nil)), one)
	_, err := create("one", 2, nil)
	wantProblem(t, err, codes.AlreadyExists, "SAMPLE_EXISTS")
	all := must(create("all", 1, func(r *adminv1.CreateSampleRequest) { r.Size = 1000 }))
	wantEqual(t, "tickets of a sample that is larger than its range", all.GetTickets(), 40)
	_, err = create("Bad Id", 1, func(r *adminv1.CreateSampleRequest) { r.Size, r.CreatedTo = 0, nil })
	wantProblem(t, err, codes.InvalidArgument, rpc.ReasonInvalidField, "id", "size", "created_to")

	// What is drawn stays drawn: a ticket that is gone is missed, and one that came since is none of it.
	if _, err := a.db.Exec(t.Context(), `DELETE FROM ticket WHERE id IN (SELECT ticket_id FROM ticket_sample_member WHERE sample_id = 'one' LIMIT 1)`); err != nil {
		t.Fatal(err)
	}
	summary, worst := a.mustCompare(&adminv1.CompareRequest{VersionId: "a", OtherVersionId: "b", SampleId: "one"})
	wantEqual(t, "tickets, missing, compared, disagreements", []any{summary.GetTickets(), summary.GetMissingTickets(), summary.GetCompared(), len(worst)}, []any{9, 1, 9, 9})
	summary, _ = a.mustCompare(&adminv1.CompareRequest{VersionId: "a", SampleId: "one", Truth: []*adminv1.Truth{
		{ExternalId: worst[0].GetExternalId(), Department: "billing"}, {ExternalId: "none", Department: "billing"},
	}})
	wantEqual(t, "used, unknown, answers", []int64{summary.GetTruth().GetUsed(), summary.GetTruth().GetUnknown(), summary.GetExpense().GetAnswers()}, []int64{1, 1, 1})

	list, err := client.ListSamples(ctx, &adminv1.ListSamplesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "samples", len(list.GetSamples()), 4)
	if got, err := client.GetSample(ctx, &adminv1.GetSampleRequest{Id: "one"}); err != nil || !proto.Equal(got, one) {
		t.Errorf("get: %v, %v", got, err)
	}
	if _, err := client.DeleteSample(ctx, &adminv1.DeleteSampleRequest{Id: "one", DryRun: true}); err != nil || members("one") == "" {
		t.Errorf("a dry run has deleted: %v", err)
	}
	if _, err := client.DeleteSample(ctx, &adminv1.DeleteSampleRequest{Id: "one", Reason: "done"}); err != nil || members("one") != "" {
		t.Errorf("delete: %v", err)
	}
	_, err = client.DeleteSample(ctx, &adminv1.DeleteSampleRequest{Id: "one"})
	wantProblem(t, err, codes.NotFound, "SAMPLE_NOT_FOUND")
	wantEqual(t, "the record", a.text(`SELECT string_agg(concat_ws(' ', method, target, before IS NULL, after IS NULL, reason), ', ' ORDER BY id)
		FROM admin_audit WHERE target LIKE 'samples/one'`),
		"CompareService.CreateSample samples/one t f , CompareService.DeleteSample samples/one f t done")
	if _, err := client.CreateSample(context.WithoutCancel(ctx), &adminv1.CreateSampleRequest{}); err == nil {
		t.Error("nothing is asked for, and drawn")
	}
}
