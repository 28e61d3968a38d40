package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func TestListAuditEntries(t *testing.T) {
	t.Parallel()
	a := start(t)
	for i := range 5 {
		a.mustRegister(fmt.Sprintf("v%d", i))
	}
	if _, err := a.client().PromoteVersion(a.as(a.bob), &adminv1.PromoteVersionRequest{Id: "v1", Reason: "the first", RequestId: "k"}); err != nil {
		t.Fatal(err)
	}
	a.mustPromote("v2")
	list := func(r *adminv1.ListAuditEntriesRequest) (all []*adminv1.AuditEntry, pages int) {
		t.Helper()
		for {
			page, err := adminv1.NewAuditServiceClient(a.conn).ListAuditEntries(a.as(a.bob), r)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page.GetEntries()...)
			pages++
			if page.GetNextPageToken() == "" {
				return all, pages
			}
			r = proto.CloneOf(r)
			r.PageToken = page.GetNextPageToken()
		}
	}
	targets := func(r *adminv1.ListAuditEntriesRequest) string {
		t.Helper()
		entries, _ := list(r)
		var targets []string
		for _, e := range entries {
			targets = append(targets, e.GetTarget())
		}
		return strings.Join(targets, " ")
	}
	const everything = "activeVersion activeVersion versions/v4 versions/v3 versions/v2 versions/v1 versions/v0"
	all, _ := list(&adminv1.ListAuditEntriesRequest{})
	for name, c := range map[string]struct {
		r    *adminv1.ListAuditEntriesRequest
		want string
	}{
		"all":           {&adminv1.ListAuditEntriesRequest{}, everything},
		"in pages":      {&adminv1.ListAuditEntriesRequest{PageSize: 2}, everything},
		"by target":     {&adminv1.ListAuditEntriesRequest{TargetPrefix: "versions/v3"}, "versions/v3"},
		"by principal":  {&adminv1.ListAuditEntriesRequest{Principal: "bob"}, "activeVersion"},
		"by method":     {&adminv1.ListAuditEntriesRequest{Method: "VersionService.PromoteVersion", PageSize: 1}, "activeVersion activeVersion"},
		"a wildcard":    {&adminv1.ListAuditEntriesRequest{TargetPrefix: "%"}, ""},
		"from a time":   {&adminv1.ListAuditEntriesRequest{StartTime: all[1].GetTime()}, "activeVersion activeVersion"},
		"before a time": {&adminv1.ListAuditEntriesRequest{EndTime: all[4].GetTime(), PageSize: 1}, "versions/v1 versions/v0"},
		"long ago":      {&adminv1.ListAuditEntriesRequest{EndTime: timestamppb.New(time.Unix(0, 0))}, ""},
	} {
		if got := targets(c.r); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if _, pages := list(&adminv1.ListAuditEntriesRequest{PageSize: 2}); pages != 4 {
		t.Errorf("7 entries on %d pages", pages)
	}
	first := all[1]
	if first.GetPrincipal() != "bob" || first.GetReason() != "the first" || first.GetRequestId() != "k" || first.GetBefore() != nil ||
		first.GetAfter().GetStructValue().GetFields()["version_id"].GetStringValue() != "v1" {
		t.Errorf("the first promotion is %v", first)
	}
	if before := all[0].GetBefore().GetStructValue().GetFields()["version_id"].GetStringValue(); before != "v1" {
		t.Errorf("the second has replaced %q", before)
	}
	over := &adminv1.ListAuditEntriesResponse{}
	r := a.rest("GET", "/v1/auditEntries?target_prefix=activeVersion&principal=bob", "")
	if r.decode(t, over); r.status != 200 || len(over.GetEntries()) != 1 || !proto.Equal(over.GetEntries()[0], first) {
		t.Errorf("REST: %d %s", r.status, r.body)
	}

	page, err := adminv1.NewAuditServiceClient(a.conn).ListAuditEntries(a.as(a.ana), &adminv1.ListAuditEntriesRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		r      *adminv1.ListAuditEntriesRequest
		fields []string
	}{
		"another filter": {&adminv1.ListAuditEntriesRequest{PageToken: page.GetNextPageToken(), Principal: "ana"}, []string{"page_token"}},
		"no token":       {&adminv1.ListAuditEntriesRequest{PageToken: "?"}, []string{"page_token"}},
		"a token's head": {&adminv1.ListAuditEntriesRequest{PageToken: page.GetNextPageToken()[:12]}, []string{"page_token"}},
		"all at once": {&adminv1.ListAuditEntriesRequest{
			PageSize: -1, TargetPrefix: "a\x00", Principal: strings.Repeat("x", 1001), StartTime: &timestamppb.Timestamp{Nanos: -1},
		}, []string{"page_size", "target_prefix", "principal", "start_time"}},
	} {
		_, err := adminv1.NewAuditServiceClient(a.conn).ListAuditEntries(a.as(a.ana), c.r)
		if p := problemOf(statusOf(err)); p.code != codes.InvalidArgument || len(p.fields) != len(c.fields) {
			t.Errorf("%s: %v %v", name, err, p.fields)
		} else {
			for _, field := range c.fields {
				if p.fields[field] == "" {
					t.Errorf("%s: %v, without %s", name, p.fields, field)
				}
			}
		}
	}
}
