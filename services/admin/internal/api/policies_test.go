package api_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/job"
	"github.com/evalonce/evalonce/services/admin/internal/redecide"
)

func (a *adminAPI) policies() adminv1.PolicyServiceClient {
	return adminv1.NewPolicyServiceClient(a.conn)
}

// refunds is a policy that sends billing to the queue of refunds, and calls nothing but the very urgent urgent.
func refunds(id string) *adminv1.Policy {
	return &adminv1.Policy{Id: id, Description: "d", UrgentThreshold: 0.9, Rules: []*adminv1.PolicyRule{
		{Name: "urgent", When: "is_urgent >= urgent_threshold", Priority: "urgent"},
		{Name: "billing", When: `department == "billing"`, Priority: "low", Queue: "refunds"},
		{Name: "rest", When: "true", Priority: "low"},
	}}
}

func (a *adminAPI) registerPolicy(p *adminv1.Policy) (stored *adminv1.Policy, replayed bool, err error) {
	var header metadata.MD
	stored, err = a.policies().RegisterPolicy(a.as(a.ana), &adminv1.RegisterPolicyRequest{Policy: p}, grpc.Header(&header))
	return stored, len(header.Get("idempotent-replayed")) == 1, err
}

func (a *adminAPI) mustActivate(id string) {
	a.t.Helper()
	if _, _, err := a.registerPolicy(refunds(id)); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.policies().ActivatePolicy(a.as(a.ana), &adminv1.ActivatePolicyRequest{Id: id}); err != nil {
		a.t.Fatal(err)
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	a := start(t)
	stored, replayed, err := a.registerPolicy(refunds("p1"))
	if err != nil || replayed || stored.GetCreatedBy() != "ana" || len(stored.GetDigest()) != 64 || stored.GetActive() || len(stored.GetRules()) != 3 {
		t.Fatalf("%v, replayed %t, %v", stored, replayed, err)
	}
	if again, replayed, err := a.registerPolicy(stored); err != nil || !replayed || !proto.Equal(again, stored) {
		t.Errorf("again: %v, replayed %t, %v", again, replayed, err)
	}
	edited := refunds("p1")
	edited.UrgentThreshold, edited.Rules = 0.8, edited.Rules[1:]
	_, _, err = a.registerPolicy(edited)
	p := wantProblem(t, err, codes.AlreadyExists, "POLICY_EXISTS", "policy.urgent_threshold", "policy.rules")
	if p.fields["policy.urgent_threshold"] != `is stored as "0.9", not "0.8"` || !strings.Contains(p.fields["policy.rules"], `-"urgent": when "is_urgent >= urgent_threshold"`) {
		t.Errorf("told %q", p.fields)
	}
	broken := refunds("P 2")
	broken.Rules[0].When, broken.Rules[1].When, broken.Rules[2].Priority = "is_urgent >=\n  urgent_treshold", "department", "asap"
	_, _, err = a.registerPolicy(broken)
	p = wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "policy.id", "policy.rules[0].when", "policy.rules[1].when", "policy.rules[2].priority")
	if !strings.Contains(p.fields["policy.rules[0].when"], "line 2, column 3: undeclared reference to 'urgent_treshold'") {
		t.Errorf("told %q", p.fields)
	}
	_, _, err = a.registerPolicy(nil)
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "policy")

	activate := func(r *adminv1.ActivatePolicyRequest) (*adminv1.ActivatePolicyResponse, error) {
		return a.policies().ActivatePolicy(a.as(a.bob), r)
	}
	_, err = activate(&adminv1.ActivatePolicyRequest{Id: "p2"})
	wantProblem(t, err, codes.NotFound, "POLICY_NOT_FOUND")
	_, err = activate(&adminv1.ActivatePolicyRequest{Id: "p1", ExpectedActiveId: "p1"})
	if p := wantProblem(t, err, codes.FailedPrecondition, "ACTIVE_POLICY_CHANGED"); p.metadata["activeId"] != "builtin-1" {
		t.Errorf("told %v", p.metadata)
	}
	if response, err := activate(&adminv1.ActivatePolicyRequest{Id: "p1", DryRun: true}); err != nil || !response.GetPolicy().GetActive() {
		t.Errorf("a dry run: %v, %v", response, err)
	}
	for _, replaced := range []string{"builtin-1", ""} {
		response, err := activate(&adminv1.ActivatePolicyRequest{Id: "p1", Reason: "why"})
		if err != nil || response.GetReplacedId() != replaced || !response.GetPolicy().GetActive() {
			t.Errorf("%v, %v; want %q replaced", response, err, replaced)
		}
	}
	if got, err := a.policies().GetPolicy(a.as(a.bob), &adminv1.GetPolicyRequest{Id: "p1"}); err != nil || !got.GetActive() || got.GetDescription() != "d" {
		t.Errorf("%v, %v", got, err)
	}
	list, err := a.policies().ListPolicies(a.as(a.bob), &adminv1.ListPoliciesRequest{PageSize: 1})
	if err != nil || list.GetActiveId() != "p1" || len(list.GetPolicies()) != 1 || list.GetPolicies()[0].GetId() != "p1" || list.GetNextPageToken() == "" {
		t.Fatalf("%v, %v", list, err)
	}
	list, err = a.policies().ListPolicies(a.as(a.bob), &adminv1.ListPoliciesRequest{PageSize: 1, PageToken: list.GetNextPageToken()})
	if err != nil || len(list.GetPolicies()) != 1 || list.GetPolicies()[0].GetId() != "builtin-1" || list.GetNextPageToken() != "" {
		t.Errorf("%v, %v", list, err)
	}
	history, err := a.policies().ListPolicyActivations(a.as(a.bob), &adminv1.ListPolicyActivationsRequest{})
	if err != nil || len(history.GetActivations()) != 2 || history.GetActivations()[0].GetPrincipal() != "bob" || history.GetActivations()[0].GetReplacedId() != "builtin-1" {
		t.Errorf("%v, %v", history, err)
	}
	if got, want := a.record(), "ana PolicyService.RegisterPolicy policies/p1 - -\nbob PolicyService.ActivatePolicy activePolicy - - why"; got != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
	if r := a.rest("POST", "/v1/policies", jsonOf(t, refunds("p3"))); r.status != 201 || !strings.Contains(r.body, `"id":"p3"`) {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
	if r := a.rest("POST", "/v1/policies/p3:activate", `{"expected_active_id":"p1"}`); r.status != 200 || !strings.Contains(r.body, `"replaced_id":"p1"`) {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
}

// results writes n answers of a department, of which the first urgent are urgent, as the first policy decides them.
func (a *adminAPI) results(department string, n, urgent int) {
	a.t.Helper()
	a.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT md5($1 || i), sha256(convert_to($1 || i, 'UTF8')), gen_random_uuid(), 'v1', (i <= $3)::int, $1, 0,
			'm', 'p', 'builtin-1', CASE WHEN i <= $3 THEN 'high' ELSE 'low' END, $1, gen_random_uuid()
		FROM generate_series(1, $2) i`, department, n, urgent)
}

// runJobs works on the jobs of policies until the test ends.
func (a *adminAPI) runJobs(settle time.Duration) {
	runner := job.New(job.Options{
		DB: pgtest.PoolAs(a.t, a.db, pgtest.Admin), Steps: map[jobdb.Kind]job.Step{jobdb.Policy: redecide.Step(settle)}, Worker: "test",
		Poll: 10 * time.Millisecond, Lease: time.Minute, Retry: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(a.t.Context()))
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	a.t.Cleanup(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			a.t.Errorf("the runner ended with %v", err)
		}
	})
}

// eventually polls until something has happened.
func (a *adminAPI) eventually(what string, happened func() bool) {
	a.t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-deadline:
			a.t.Fatalf("not within two minutes: %s", what)
		case <-tick.C:
		}
	}
}

// application waits until a job is in a state.
func (a *adminAPI) application(id, state string) (shown *adminv1.PolicyApplication) {
	a.t.Helper()
	a.eventually("job "+id+" is "+state, func() bool {
		var err error
		if shown, err = a.policies().GetPolicyApplication(a.as(a.bob), &adminv1.GetPolicyApplicationRequest{Id: id}); err != nil {
			a.t.Fatal(err)
		}
		return shown.GetState() == state
	})
	return shown
}

func TestAPolicyIsAppliedToStoredAnswers(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.results("billing", 3000, 100)
	a.results("technical", 2000, 100)
	a.mustActivate("p1")
	before := a.everything()
	foretold, err := a.policies().ApplyPolicy(a.as(a.ana), &adminv1.ApplyPolicyRequest{ExpectedActiveId: "p1", DryRun: true})
	want := &adminv1.PolicyPreview{Answers: 5000, Changed: 3100, Changes: []*adminv1.PolicyChange{
		{OldPriority: "low", OldQueue: "billing", NewPriority: "low", NewQueue: "refunds", Answers: 2900},
		{OldPriority: "high", OldQueue: "billing", NewPriority: "urgent", NewQueue: "billing", Answers: 100},
		{OldPriority: "high", OldQueue: "technical", NewPriority: "urgent", NewQueue: "technical", Answers: 100},
	}}
	if err != nil || !proto.Equal(foretold.GetPreview(), want) {
		t.Fatalf("%v, %v; want %v", foretold, err, want)
	}
	if after := a.everything(); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
	_, err = a.policies().ApplyPolicy(a.as(a.ana), &adminv1.ApplyPolicyRequest{ExpectedActiveId: "builtin-1"})
	wantProblem(t, err, codes.FailedPrecondition, "ACTIVE_POLICY_CHANGED")

	untouched := `SELECT md5(string_agg(xmin::text || ctid::text, '' ORDER BY idempotency_key)) FROM evaluation_result WHERE department = 'technical' AND is_urgent = 0`
	rows := a.text(untouched)
	a.runJobs(0)
	begun, err := a.policies().ApplyPolicy(a.as(a.ana), &adminv1.ApplyPolicyRequest{Reason: "refunds have a queue", RequestId: "k"})
	if err != nil || begun.GetPreview() != nil || begun.GetPolicyId() != "p1" {
		t.Fatalf("%v, %v", begun, err)
	}
	if again, err := a.policies().ApplyPolicy(a.as(a.ana), &adminv1.ApplyPolicyRequest{Reason: "refunds have a queue", RequestId: "k"}); err != nil || again.GetId() != begun.GetId() {
		t.Errorf("again: %v, %v", again, err)
	}
	done := a.application(begun.GetId(), "done")
	if done.GetSeen() != 5000 || done.GetChanged() != 3100 || done.GetFinishTime() == nil || len(done.GetPriorityChanges()) != 1 ||
		!proto.Equal(done.GetPriorityChanges()[0], &adminv1.PriorityChange{OldPriority: "high", NewPriority: "urgent", Answers: 200}) {
		t.Errorf("done %v", done)
	}
	decided := `SELECT string_agg(concat_ws(' ', n, department, priority, queue, policy_version), ', ' ORDER BY department, priority) FROM (
		SELECT count(*) AS n, department, priority, queue, policy_version FROM evaluation_result GROUP BY 2, 3, 4, 5) r`
	const after = "2900 billing low refunds p1, 100 billing urgent billing p1, 1900 technical low technical builtin-1, 100 technical urgent technical p1"
	if got := a.text(decided); got != after {
		t.Errorf("decided %s\nwant    %s", got, after)
	}
	if got := a.text(untouched); got != rows {
		t.Error("decisions that stay were written")
	}
	// Once more changes nothing.
	second, err := a.policies().ApplyPolicy(a.as(a.ana), &adminv1.ApplyPolicyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if done := a.application(second.GetId(), "done"); done.GetSeen() != 5000 || done.GetChanged() != 0 {
		t.Errorf("the second time: %v", done)
	}
	list, err := a.policies().ListPolicyApplications(a.as(a.bob), &adminv1.ListPolicyApplicationsRequest{PageSize: 1})
	if err != nil || len(list.GetApplications()) != 1 || list.GetApplications()[0].GetId() != second.GetId() {
		t.Fatalf("%v, %v", list, err)
	}
	list, err = a.policies().ListPolicyApplications(a.as(a.bob), &adminv1.ListPolicyApplicationsRequest{PageSize: 1, PageToken: list.GetNextPageToken()})
	if err != nil || len(list.GetApplications()) != 1 || !proto.Equal(list.GetApplications()[0], done) || list.GetNextPageToken() != "" {
		t.Errorf("%v, %v", list, err)
	}
	if calls := a.text(`SELECT count(*)::text FROM model_call`); calls != "0" {
		t.Errorf("%s calls were made", calls)
	}
}

// What a job writes is the active policy's: it waits until the workers know of it, and gives way to the next one.
func TestAnApplicationAndItsPolicy(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.results("billing", 10, 1)
	a.mustActivate("p1")
	begun, err := a.policies().ApplyPolicy(a.as(a.ana), &adminv1.ApplyPolicyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	a.runJobs(time.Hour)
	a.eventually("the job waits", func() bool {
		return a.text(`SELECT (not_before > now() + interval '50 minutes')::text FROM reprocess_job`) == "true"
	})
	if got := a.application(begun.GetId(), "running"); got.GetSeen() != 0 {
		t.Errorf("it has not waited: %v", got)
	}
	a.mustActivate("p2")
	a.exec(`UPDATE reprocess_job SET not_before = now()`)
	if got := a.application(begun.GetId(), "paused"); got.GetStateReason() != "superseded: policy p2 is active now" || got.GetSeen() != 0 {
		t.Errorf("%v", got)
	}
	id := begun.GetId()
	resumed, err := a.policies().ResumePolicyApplication(a.as(a.ana), &adminv1.ResumePolicyApplicationRequest{Id: id, DryRun: true})
	if err != nil || resumed.GetState() != "running" {
		t.Errorf("%v, %v", resumed, err)
	}
	if paused, err := a.policies().PausePolicyApplication(a.as(a.ana), &adminv1.PausePolicyApplicationRequest{Id: id}); err != nil || paused.GetState() != "paused" {
		t.Errorf("%v, %v", paused, err)
	}
	for range 2 {
		if canceled, err := a.policies().CancelPolicyApplication(a.as(a.ana), &adminv1.CancelPolicyApplicationRequest{Id: id, Reason: "p2"}); err != nil || canceled.GetState() != "canceled" {
			t.Errorf("%v, %v", canceled, err)
		}
	}
	_, err = a.policies().ResumePolicyApplication(a.as(a.ana), &adminv1.ResumePolicyApplicationRequest{Id: id})
	wantProblem(t, err, codes.FailedPrecondition, "JOB_STATE")
	_, err = a.policies().GetPolicyApplication(a.as(a.ana), &adminv1.GetPolicyApplicationRequest{Id: "01932c07-209c-7000-8000-000000000000"})
	wantProblem(t, err, codes.NotFound, "JOB_NOT_FOUND")
	if got := a.record(); strings.Count(got, "CancelPolicyApplication") != 1 || strings.Contains(got, "PausePolicyApplication") {
		t.Errorf("recorded\n%s", got)
	}
	if got := a.text(`SELECT count(*)::text FROM evaluation_result WHERE policy_version <> 'builtin-1'`); got != "0" {
		t.Errorf("%s answers were decided by p1 when it was no longer active", got)
	}
}
