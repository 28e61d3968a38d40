package api_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// tickets stores n tickets of a content of their own each, so long ago.
func (a *adminAPI) tickets(name string, n int, ago string) {
	a.t.Helper()
	a.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		SELECT uuid_v7(now() - $3::interval), 'acme', '', $1 || i, sha256(convert_to($1 || i, 'UTF8')), now() - $3::interval FROM generate_series(1, $2) i`,
		name, n, ago)
}

// answerFirst writes results of a version to the contents of the first n tickets of a name.
func (a *adminAPI) answerFirst(name string, n int, version string) {
	a.t.Helper()
	a.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT DISTINCT ON (t.content_hash) evaluation_key(t.content_hash, v.digest), t.content_hash, t.id, v.id, 0, 'billing', 0,
			'm', v.prompt_version, 'builtin-1', 'low', 'billing', gen_random_uuid()
		FROM ticket t, evaluator_version v WHERE v.id = $3 AND t.message IN (SELECT $1 || i FROM generate_series(1, $2) i)`, name, n, version)
}

func TestPromotionNeedsCoverage(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustRegister("v2")
	a.tickets("recent", 20, "1 hour")
	a.tickets("recent", 20, "2 days") // the same contents
	a.tickets("older", 20, "20 days")
	a.tickets("ancient", 20, "31 days")
	// The first of all needs none.
	first, _, err := a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v1"})
	if err != nil || first.GetCoverage() != nil {
		t.Fatalf("%v, %v", first, err)
	}
	promote := func(r *adminv1.PromoteVersionRequest) (*adminv1.PromoteVersionResponse, error) {
		r.Id, r.ExpectedActiveId, r.DryRun = "v2", "v1", true
		response, _, err := a.promotes(a.as(a.ana), r)
		return response, err
	}
	a.answerFirst("recent", 19, "v2")
	a.answerFirst("older", 20, "v1") // of no use
	_, err = promote(&adminv1.PromoteVersionRequest{})
	p := wantProblem(t, err, codes.FailedPrecondition, "COVERAGE_TOO_LOW")
	const line = "evalctl reprocess start --since 30d --version v2"
	if p.metadata["contents"] != "40" || p.metadata["answered"] != "19" || p.metadata["coverage"] != "0.475" || p.metadata["reprocessCommand"] != line ||
		!strings.Contains(err.Error(), "19 of 40 distinct contents of the last 30d") || !strings.Contains(err.Error(), line) {
		t.Errorf("%v %v", err, p.metadata)
	}
	for name, c := range map[string]struct {
		r    *adminv1.PromoteVersionRequest
		want string // the coverage, or the reason of a refusal
	}{
		"a shorter window":          {&adminv1.PromoteVersionRequest{Window: durationpb.New(72 * time.Hour)}, "19/20 3d"},
		"a window of hours":         {&adminv1.PromoteVersionRequest{Window: durationpb.New(90 * time.Minute)}, "19/20 1h30m0s"},
		"a window without tickets":  {&adminv1.PromoteVersionRequest{Window: durationpb.New(time.Minute)}, "0/0"},
		"less will do":              {&adminv1.PromoteVersionRequest{MinCoverage: proto.Float64(0.475)}, "19/40 30d"},
		"more will not":             {&adminv1.PromoteVersionRequest{MinCoverage: proto.Float64(0.476)}, "COVERAGE_TOO_LOW"},
		"none will do":              {&adminv1.PromoteVersionRequest{MinCoverage: proto.Float64(0)}, "19/40 30d"},
		"all is asked for":          {&adminv1.PromoteVersionRequest{MinCoverage: proto.Float64(1), Window: durationpb.New(72 * time.Hour)}, "COVERAGE_TOO_LOW"},
		"forced":                    {&adminv1.PromoteVersionRequest{Force: true}, "19/40 30d"},
		"beyond one":                {&adminv1.PromoteVersionRequest{MinCoverage: proto.Float64(1.01)}, "INVALID_FIELD"},
		"no number":                 {&adminv1.PromoteVersionRequest{MinCoverage: proto.Float64(math.NaN())}, "INVALID_FIELD"},
		"a window without a length": {&adminv1.PromoteVersionRequest{Window: &durationpb.Duration{}}, "INVALID_FIELD"},
	} {
		response, err := promote(c.r)
		got := problemOf(statusOf(err)).reason
		if coverage := response.GetCoverage(); err == nil {
			got = a.text(`SELECT $1::bigint || '/' || $2::bigint`, coverage.GetAnswered(), coverage.GetContents())
			if line := coverage.GetReprocessCommand(); line != "" {
				got += " " + strings.Fields(line)[4]
			}
			if coverage.GetCapped() {
				t.Errorf("%s: capped", name)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
	a.answerFirst("older", 20, "v2")
	response, _, err := a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v2"})
	if coverage := response.GetCoverage(); err != nil || coverage.GetContents() != 40 || coverage.GetAnswered() != 39 || coverage.GetShare() != 0.975 {
		t.Errorf("%v, %v", response, err)
	}
	if response, _, err := a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v2"}); err != nil || response.GetCoverage() != nil || response.GetReplacedId() != "" {
		t.Errorf("again: %v, %v", response, err)
	}
}

func TestRollback(t *testing.T) {
	t.Parallel()
	a := start(t)
	rollBack := func(r *adminv1.RollbackVersionRequest) (*adminv1.PromoteVersionResponse, error) {
		return a.client().RollbackVersion(a.as(a.bob), r)
	}
	_, err := rollBack(&adminv1.RollbackVersionRequest{})
	wantProblem(t, err, codes.FailedPrecondition, "NOTHING_TO_ROLL_BACK_TO")
	a.mustRegister("v1")
	a.mustRegister("v2")
	a.mustPromote("v1") // the first replaces nothing
	_, err = rollBack(&adminv1.RollbackVersionRequest{})
	wantProblem(t, err, codes.FailedPrecondition, "NOTHING_TO_ROLL_BACK_TO")
	a.tickets("uncovered", 3, "1 hour")
	if _, _, err := a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v2", Force: true}); err != nil {
		t.Fatal(err)
	}
	_, err = rollBack(&adminv1.RollbackVersionRequest{ExpectedActiveId: "v1"})
	wantProblem(t, err, codes.FailedPrecondition, "ACTIVE_VERSION_CHANGED")
	if response, err := rollBack(&adminv1.RollbackVersionRequest{DryRun: true}); err != nil || response.GetVersion().GetId() != "v1" {
		t.Errorf("a dry run: %v, %v", response, err)
	}
	response, err := rollBack(&adminv1.RollbackVersionRequest{ExpectedActiveId: "v2", Reason: "flips", RequestId: "k"})
	if err != nil || response.GetVersion().GetId() != "v1" || !response.GetVersion().GetActive() || response.GetReplacedId() != "v2" || response.GetCoverage() != nil {
		t.Fatalf("%v, %v", response, err)
	}
	// The same request is the same rollback, and not its undoing.
	if again, err := rollBack(&adminv1.RollbackVersionRequest{ExpectedActiveId: "v2", Reason: "flips", RequestId: "k"}); err != nil || !proto.Equal(again, response) {
		t.Errorf("again: %v, %v", again, err)
	}
	if got := a.record(); !strings.HasSuffix(got, "bob VersionService.RollbackVersion activeVersion v2 v1 flips k") {
		t.Errorf("recorded\n%s", got)
	}
	over := &adminv1.PromoteVersionResponse{}
	r := a.rest("POST", "/v1/versions:rollback", `{"expected_active_id":"v1"}`)
	if r.decode(t, over); r.status != 200 || over.GetVersion().GetId() != "v2" {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
	if got := a.history(); got != "v1< v2<v1 v1<v2 v2<v1" {
		t.Errorf("history %s", got)
	}

	var told []string
	request := &adminv1.ListPromotionsRequest{PageSize: 3}
	for pages := 1; ; pages++ {
		page, err := a.client().ListPromotions(a.as(a.bob), request)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.GetPromotions() {
			told = append(told, p.GetPrincipal()+":"+p.GetVersionId()+"<"+p.GetReplacedId())
			if p.GetTime() == nil {
				t.Errorf("%v has no time", p)
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			if pages != 2 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if got := strings.Join(told, " "); got != "ana:v2<v1 bob:v1<v2 ana:v2<v1 ana:v1<" {
		t.Errorf("listed %s", got)
	}
	if r := a.rest("GET", "/v1/promotions?page_size=1", ""); r.status != 200 || !strings.Contains(r.body, `"replaced_id":"v1"`) {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
}

func TestDiffVersions(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	if _, _, err := a.register(changed(version("v2"), func(v *adminv1.Version) {
		v.Prompt, v.Model, v.Prices.OutputUsdPerMtok = "Sort v1\nwith care", "other", "2.50"
	})); err != nil {
		t.Fatal(err)
	}
	diff, err := a.client().DiffVersions(a.as(a.ana), &adminv1.DiffVersionsRequest{Id: "v1", OtherId: "v2"})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.DiffVersionsResponse{Differences: []*adminv1.FieldDifference{
		{Field: "model", OldValue: "model", NewValue: "other", AffectsAnswers: true},
		{Field: "prompt", AffectsAnswers: true, UnifiedDiff: "--- v1\n+++ v2\n@@ -1 +1,2 @@\n-Sort v1\n\\ No newline at end of file\n+Sort v1\n+with care\n\\ No newline at end of file\n"},
		{Field: "prices.output_usd_per_mtok", OldValue: "2", NewValue: "2.5"},
	}}
	if !proto.Equal(diff, want) {
		t.Errorf("%v\nwant %v", diff, want)
	}
	over := &adminv1.DiffVersionsResponse{}
	r := a.rest("GET", "/v1/versions/v1:diff?other_id=v2", "")
	if r.decode(t, over); r.status != 200 || !proto.Equal(over, want) {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
	if same, err := a.client().DiffVersions(a.as(a.ana), &adminv1.DiffVersionsRequest{Id: "v1", OtherId: "v1"}); err != nil || len(same.GetDifferences()) != 0 {
		t.Errorf("%v, %v", same, err)
	}
	_, err = a.client().DiffVersions(a.as(a.ana), &adminv1.DiffVersionsRequest{Id: "v1", OtherId: "v3"})
	wantProblem(t, err, codes.NotFound, "VERSION_NOT_FOUND")
	_, err = a.client().DiffVersions(a.as(a.ana), &adminv1.DiffVersionsRequest{Id: "V1"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "id", "other_id")
}

func TestVersionsInPages(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		a.mustRegister(id)
	}
	a.mustPromote("b")
	var ids []string
	for r := (&adminv1.ListVersionsRequest{PageSize: 2}); ; {
		page, err := a.client().ListVersions(a.as(a.ana), r)
		if err != nil || page.GetActiveId() != "b" {
			t.Fatalf("%v, %v", page, err)
		}
		for _, v := range page.GetVersions() {
			ids = append(ids, v.GetId())
		}
		if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
			break
		}
	}
	if got := strings.Join(ids, ""); got != "edcba" {
		t.Errorf("listed %s", got)
	}
}
