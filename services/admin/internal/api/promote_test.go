package api_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func statusOf(err error) *status.Status { return status.Convert(err) }

func TestPromote(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustRegister("v2")
	if _, err := a.promote("v3", ""); problemOf(statusOf(err)).reason != "VERSION_NOT_FOUND" || status.Code(err) != codes.NotFound {
		t.Errorf("what does not exist: %v", err)
	}
	_, err := a.promote("v1", "v2")
	if p := wantProblem(t, err, codes.FailedPrecondition, "ACTIVE_VERSION_CHANGED"); p.metadata["activeId"] != "" || p.metadata["expectedActiveId"] != "v2" {
		t.Errorf("with none active: %v %v", err, p.metadata)
	}
	promoted, err := a.promote("v1", "")
	if err != nil || !promoted.GetActive() || !proto.Equal(promoted, a.get("v1")) {
		t.Fatalf("%v, %v", promoted, err)
	}
	if a.get("v2").GetActive() {
		t.Error("two are active")
	}
	replaced, err := a.client().PromoteVersion(a.as(a.bob), &adminv1.PromoteVersionRequest{Id: "v2", ExpectedActiveId: "v1"})
	if err != nil || replaced.GetVersion().GetId() != "v2" || !replaced.GetVersion().GetActive() || replaced.GetReplacedId() != "v1" {
		t.Fatalf("%v, %v", replaced, err)
	}
	if by := a.text(`SELECT string_agg(promoted_by, ' ' ORDER BY id) || ' ' || (SELECT promoted_by FROM active_version) FROM version_promotion`); by != "ana bob bob" {
		t.Errorf("promoted by %s", by)
	}
	// Asked again, after an answer that was lost, it says yes; with the expectation of then it cannot.
	if _, err := a.promote("v2", ""); err != nil {
		t.Error(err)
	}
	_, err = a.promote("v2", "v1")
	if p := wantProblem(t, err, codes.FailedPrecondition, "ACTIVE_VERSION_CHANGED"); p.metadata["activeId"] != "v2" || !strings.Contains(err.Error(), "the active version is v2, not v1") {
		t.Errorf("%v %v", err, p.metadata)
	}
	for name, r := range map[string]*adminv1.PromoteVersionRequest{
		"id": {Id: "", ExpectedActiveId: "v2"}, "expected_active_id": {Id: "v1", ExpectedActiveId: "v\x002"},
	} {
		_, err := a.client().PromoteVersion(a.as(a.ana), r)
		wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", name)
	}
	if got := a.history(); got != "v1< v2<v1" {
		t.Errorf("history %s", got)
	}
}

func TestPromoteOverREST(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1.0")
	a.mustRegister("v2_a-b")
	a.mustPromote("v1.0")
	wantREST(t, a.rest("POST", "/v1/versions/v2_a-b:promote", `{"expected_active_id":"v2_a-b"}`), 400, "ACTIVE_VERSION_CHANGED")
	wantREST(t, a.rest("POST", "/v1/versions/absent:promote", `{}`), 404, "VERSION_NOT_FOUND")
	wantREST(t, a.rest("POST", "/v1/versions/v2_a-b:promote", `{"expected":"v1.0"}`), 400, "MALFORMED_REQUEST")
	r := a.rest("POST", "/v1/versions/v2_a-b:promote", `{"expected_active_id":"v1.0"}`)
	response := &adminv1.PromoteVersionResponse{}
	if r.decode(t, response); r.status != 200 || !proto.Equal(response.GetVersion(), a.get("v2_a-b")) || !response.GetVersion().GetActive() {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := a.history(); got != "v1.0< v2_a-b<v1.0" {
		t.Errorf("history %s", got)
	}
}

// Of all who expect the same version to be active, exactly one replaces it.
func TestConcurrentPromotions(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("base")
	a.mustPromote("base")
	const rivals = 8
	for i := range rivals {
		a.mustRegister(fmt.Sprintf("rival-%d", i))
	}
	winners := make(chan string, rivals)
	var wait sync.WaitGroup
	for i := range rivals {
		wait.Go(func() {
			id := fmt.Sprintf("rival-%d", i)
			_, err := a.promote(id, "base")
			if err == nil {
				winners <- id
				return
			}
			if p := problemOf(statusOf(err)); p.code != codes.FailedPrecondition || p.reason != "ACTIVE_VERSION_CHANGED" {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	wait.Wait()
	close(winners)
	var won []string
	for id := range winners {
		won = append(won, id)
	}
	if len(won) != 1 {
		t.Fatalf("%v have won", won)
	}
	if got, active := a.history(), a.text(`SELECT version_id FROM active_version`); got != "base< "+won[0]+"<base" || active != won[0] {
		t.Errorf("history %s, active %s, won %s", got, active, won[0])
	}
}

func TestListIsNewestFirst(t *testing.T) {
	t.Parallel()
	a := start(t)
	list := func() (ids []string, active []string) {
		response, err := a.client().ListVersions(a.as(a.bob), &adminv1.ListVersionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range response.GetVersions() {
			ids = append(ids, v.GetId())
			if v.GetActive() {
				active = append(active, v.GetId())
			}
			if !proto.Equal(v, a.get(v.GetId())) {
				t.Errorf("listed %v, got %v", v, a.get(v.GetId()))
			}
		}
		overREST := &adminv1.ListVersionsResponse{}
		r := a.rest("GET", "/v1/versions", "")
		if err := protojson.Unmarshal([]byte(r.body), overREST); err != nil || r.status != 200 || !proto.Equal(overREST, response) {
			t.Errorf("REST gives %d %s, gRPC %v", r.status, r.body, response)
		}
		return ids, active
	}
	if ids, active := list(); len(ids)+len(active) != 0 {
		t.Errorf("an empty database has %v, active %v", ids, active)
	}
	for _, id := range []string{"m", "z", "a"} {
		a.mustRegister(id)
	}
	if ids, active := list(); !slices.Equal(ids, []string{"a", "z", "m"}) || len(active) != 0 {
		t.Errorf("%v, active %v", ids, active)
	}
	a.mustPromote("z")
	a.mustPromote("m")
	if ids, active := list(); !slices.Equal(ids, []string{"a", "z", "m"}) || !slices.Equal(active, []string{"m"}) {
		t.Errorf("%v, active %v", ids, active)
	}
}
