package api_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func (a *adminAPI) routes() adminv1.RouteServiceClient { return adminv1.NewRouteServiceClient(a.conn) }

func (a *adminAPI) route(name string) *adminv1.Route {
	a.t.Helper()
	r, err := a.routes().GetRoute(a.as(a.bob), &adminv1.GetRouteRequest{Name: name})
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

// answerPairs makes tickets from and to, exclusive, of which each pair has one content, with the results of active version v1,
// whose calls cost a cent each and were made just now.
func (a *adminAPI) answerPairs(from, to int) {
	a.t.Helper()
	a.exec(`WITH n AS (SELECT n, n % 2 AS twin, sha256(convert_to('answered ' || n / 2, 'UTF8')) AS hash, uuid_v7() AS ticket, uuid_v7() AS call FROM generate_series($1::int, $2::int - 1) n),
	ticket AS (INSERT INTO ticket (id, client_id, subject, message, content_hash) SELECT ticket, 'c', 's', 'answered ' || n / 2, hash FROM n),
	call AS (INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome, http_status, response, cost_usd)
	         SELECT call, evaluation_key(hash, v.digest), v.id, gen_random_uuid(), 1, now(), 'answered', 200, '{}', 0.01
	         FROM n, evaluator_version v WHERE v.id = 'v1' AND twin = 0)
	INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score, model_version, prompt_version, policy_version, priority, queue, model_call_id)
	SELECT evaluation_key(hash, v.digest), hash, ticket, v.id, 0, 'billing', 0, 'm', v.prompt_version, 'p', 'low', 'q', call
	FROM n, evaluator_version v WHERE v.id = 'v1' AND twin = 0`, from, to)
}

func TestRoutesTellTheirLoad(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustPromote("v1")
	a.answerPairs(0, 20)
	a.bury("v1", 0, 4)
	r := a.route("main")
	load := r.GetLoad()
	if r.GetState() != "closed" || r.GetPause() != nil || r.GetCallTimeout().AsDuration() != time.Minute || r.GetLimits().RequestsLeft != nil {
		t.Errorf("the route is %v", r)
	}
	if len(load.GetLanes()) != 2 || load.GetLanes()[0].GetDead().GetValue() != 4 || load.GetLanes()[0].GetReady().GetValue() != 0 || load.GetLanes()[0].GetOldestReadyAge() != nil {
		t.Errorf("its lanes are %v", load.GetLanes())
	}
	if tp := load.GetThroughput(); tp.GetCalls() != 10 || tp.GetAnswered() != 10 || tp.GetFailed() != 0 || tp.GetAnsweredPerMinute() < 1.9 {
		t.Errorf("its throughput is %v", tp)
	}
	if s := load.GetSavings(); s.GetTickets() != 20 || s.GetAnsweredWithoutCall() != 10 || s.GetSavedUsd() != "0.1" {
		t.Errorf("its savings are %v", s)
	}
	if s := load.GetSpend(); len(s) != 2 || s[0].GetPeriod() != "day" || s[0].GetLimitUsd() != "" || s[1].GetUsedUsd() == "0" || s[1].GetEstimated() {
		t.Errorf("its spend is %v", s)
	}
	list, err := a.routes().ListRoutes(a.as(a.bob), &adminv1.ListRoutesRequest{})
	if err != nil || len(list.GetRoutes()) != 1 || list.GetRoutes()[0].GetLoad() == nil {
		t.Errorf("listed %v, %v", list, err)
	}
	_, err = a.routes().GetRoute(a.as(a.bob), &adminv1.GetRouteRequest{Name: "nowhere"})
	wantProblem(t, err, codes.NotFound, "ROUTE_NOT_FOUND")
	_, err = a.routes().GetRoute(a.as(a.bob), &adminv1.GetRouteRequest{Name: "No where"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "name")
}

func TestRoutesAreSteered(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	for range 2 {
		r, err := a.routes().PauseRoute(a.as(a.ana), &adminv1.PauseRouteRequest{Name: "main", Reason: "their migration"})
		if err != nil || r.GetPause().GetPausedBy() != "ana" || r.GetPause().GetReason() != "their migration" {
			t.Fatalf("paused: %v, %v", r, err)
		}
	}
	a.exec("UPDATE provider_route SET state = 'halted', reason = 'quota_exhausted', consecutive_failures = 7, not_before = now() + interval '1 hour'")
	if r := a.route("main"); r.GetState() != "halted" || r.GetStateReason() != "quota_exhausted" || r.GetNextProbeTime() == nil || r.GetConsecutiveFailures() != 7 {
		t.Errorf("halted: %v", r)
	}
	if r, err := a.routes().ResumeRoute(a.as(a.bob), &adminv1.ResumeRouteRequest{Name: "main", DryRun: true}); err != nil || r.GetPause() != nil {
		t.Errorf("a dry run: %v, %v", r, err)
	}
	if a.route("main").GetPause() == nil {
		t.Error("a dry run has resumed it")
	}
	if r, err := a.routes().ResumeRoute(a.as(a.bob), &adminv1.ResumeRouteRequest{Name: "main"}); err != nil || r.GetPause() != nil || r.GetState() != "halted" {
		t.Errorf("resumed: %v, %v", r, err)
	}
	if r := a.rest("POST", "/v1/routes/main:reset", `{"reason": "paid the bill"}`); r.status != 200 || !strings.Contains(r.body, `"state":"closed"`) {
		t.Errorf("reset: %+v", r)
	}
	r, err := a.routes().SetRouteLimits(a.as(a.ana), &adminv1.SetRouteLimitsRequest{
		Name: "main", Limits: &adminv1.RouteLimits{RequestsPerMinute: 60, TokensPerMinute: 1000, ConcurrentCalls: 5, CountOutput: true},
	})
	if err != nil || r.GetLimits().GetConcurrentCalls() != 5 || r.GetLimits().RequestsLeft == nil || !r.GetLimits().GetCountOutput() {
		t.Errorf("limited: %v, %v", r, err)
	}
	r, err = a.routes().SetRouteCallTimeout(a.as(a.ana), &adminv1.SetRouteCallTimeoutRequest{Name: "main", CallTimeout: durationpb.New(45 * time.Second)})
	if err != nil || r.GetCallTimeout().AsDuration() != 45*time.Second {
		t.Errorf("timed: %v, %v", r, err)
	}
	_, err = a.routes().SetRouteLimits(a.as(a.ana), &adminv1.SetRouteLimitsRequest{Name: "main", Limits: &adminv1.RouteLimits{RequestsPerMinute: -1, TokensPerMinute: -1}})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "limits.requests_per_minute", "limits.tokens_per_minute")
	_, err = a.routes().SetRouteLimits(a.as(a.ana), &adminv1.SetRouteLimitsRequest{})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "name", "limits")
	_, err = a.routes().SetRouteCallTimeout(a.as(a.ana), &adminv1.SetRouteCallTimeoutRequest{Name: "main"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "call_timeout")
	_, err = a.routes().PauseRoute(a.as(a.ana), &adminv1.PauseRouteRequest{Name: "nowhere"})
	wantProblem(t, err, codes.NotFound, "ROUTE_NOT_FOUND")
	if got, want := a.text("SELECT string_agg(principal || ' ' || substring(method FROM 14) || ' ' || target, ', ' ORDER BY id) FROM admin_audit WHERE method LIKE 'Route%'"),
		"ana PauseRoute routes/main, bob ResumeRoute routes/main, ana ResetRoute routes/main, ana SetRouteLimits routes/main, ana SetRouteCallTimeout routes/main"; got != want {
		t.Errorf("the audit has\n%s, want\n%s", got, want)
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustPromote("v1")
	a.answerPairs(0, 20)
	set := func(scope, period, limit string, dry bool) (*adminv1.Budget, error) {
		return a.routes().SetBudget(a.as(a.ana), &adminv1.SetBudgetRequest{Scope: scope, Period: period, LimitUsd: limit, DryRun: dry})
	}
	budgets := func() string {
		t.Helper()
		list, err := a.routes().ListBudgets(a.as(a.bob), &adminv1.ListBudgetsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, b := range list.GetBudgets() {
			told = append(told, b.GetScope()+" "+b.GetPeriod()+" "+b.GetUsedUsd()+" of "+b.GetLimitUsd())
		}
		return strings.Join(told, ", ")
	}
	if b, err := set("main", "month", "25", true); err != nil || b.GetUsedUsd() != "0.1" || b.GetLimitUsd() != "25" {
		t.Errorf("a dry run: %v, %v", b, err)
	}
	if got := budgets(); got != "" {
		t.Errorf("a dry run has left %s", got)
	}
	for _, limit := range []string{"25", "30.5", "30.5"} {
		if b, err := set("main", "month", limit, false); err != nil || b.GetLimitUsd() != limit || b.GetPeriodStartTime() == nil {
			t.Errorf("set to %s: %v, %v", limit, b, err)
		}
	}
	if _, err := set("*", "month", "500", false); err != nil {
		t.Error(err)
	}
	if got, want := budgets(), "* month 0.1 of 500, main month 0.1 of 30.5"; got != want {
		t.Errorf("budgets are %s, want %s", got, want)
	}
	if s := a.route("main").GetLoad().GetSpend(); s[1].GetLimitUsd() != "30.5" || s[1].GetUsedUsd() != "0.1" {
		t.Errorf("the route's spend is %v", s)
	}
	if b, err := set("main", "month", "", false); err != nil || b.GetLimitUsd() != "" {
		t.Errorf("removed: %v, %v", b, err)
	}
	if got, want := a.text("SELECT string_agg(target || ' ' || coalesce(before ->> 'limit_usd', '') || '>' || coalesce(after ->> 'limit_usd', ''), ', ' ORDER BY id) FROM admin_audit WHERE method = 'RouteService.SetBudget'"),
		"budgets/main/month >25, budgets/main/month 25>30.5, budgets/*/month >500, budgets/main/month 30.5>"; got != want {
		t.Errorf("the audit has %s, want %s", got, want)
	}
	_, err := set("No", "week", "-1", false)
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "scope", "period", "limit_usd")
	_, err = set("nowhere", "day", "1", false)
	wantProblem(t, err, codes.NotFound, "ROUTE_NOT_FOUND")
	r := a.rest("POST", "/v1/budgets:set", `{"scope": "*", "period": "day", "limit_usd": "7"}`)
	b := &adminv1.Budget{}
	if err := protojson.Unmarshal([]byte(r.body), b); err != nil || b.GetLimitUsd() != "7" {
		t.Errorf("over REST: %+v, %v", r, err)
	}
	fscktest.Require(t, a.db)
}
