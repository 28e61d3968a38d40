package api_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/evaluation"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func TestAVersionIsStoredAsItWasSent(t *testing.T) {
	t.Parallel()
	a := start(t)
	sent := changed(version("v1"), func(v *adminv1.Version) { v.MaxAge = durationpb.New(90 * time.Minute) })
	stored, replayed, err := a.register(sent)
	if err != nil || replayed {
		t.Fatalf("replayed %t, %v", replayed, err)
	}
	digest := evaluation.Version{
		Provider: "openai", Model: "model", Effort: "low", Prompt: "Sort v1", MaxOutputTokens: 100, AnswerSchema: evaluation.AnswerSchema,
		Departments: []evaluation.Department{{Name: "billing", Description: "money"}, {Name: "technical"}},
	}.Digest()
	want := changed(sent, func(v *adminv1.Version) {
		v.Digest = hex.EncodeToString(digest[:])
		v.CreateTime, v.CreatedBy = stored.GetCreateTime(), "ana"
	})
	if !proto.Equal(stored, want) {
		t.Errorf("stored %v, want %v", stored, want)
	}
	if age := time.Since(stored.GetCreateTime().AsTime()); age < -time.Minute || age > time.Minute {
		t.Errorf("created %s ago", age)
	}
	if got := a.get("v1"); !proto.Equal(got, stored) {
		t.Errorf("got %v, registered %v", got, stored)
	}
	row := a.text(`SELECT concat_ws('|', created_by, route, input_usd_per_mtok, answer_schema, max_age, encode(digest, 'hex')) FROM evaluator_version`)
	if row != fmt.Sprintf("ana|main|0.25|1|01:30:00|%x", digest) {
		t.Errorf("the row is %s", row)
	}
	if got := a.rows(); got != "1/1/0/0" {
		t.Errorf("rows %s", got)
	}
}

func TestAVersionOverREST(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := a.rest("POST", "/v1/versions", jsonOf(t, version("v1")))
	if r.status != 201 || r.header.Get("Idempotent-Replayed") != "" {
		t.Fatalf("%d %v %s", r.status, r.header, r.body)
	}
	stored := a.get("v1")
	if !proto.Equal(r.version(t), stored) {
		t.Errorf("REST gives %s, gRPC %v", r.body, stored)
	}
	again := a.rest("POST", "/v1/versions", jsonOf(t, version("v1")))
	if again.status != 201 || again.header.Get("Idempotent-Replayed") != "true" || !proto.Equal(again.version(t), stored) {
		t.Errorf("again: %d %v %s", again.status, again.header, again.body)
	}
	wantREST(t, a.rest("POST", "/v1/versions", jsonOf(t, changed(version("v1"), func(v *adminv1.Version) { v.Prompt = "x" }))), 409, "VERSION_EXISTS")
	got := a.rest("GET", "/v1/versions/v1", "")
	if got.status != 200 || !proto.Equal(got.version(t), stored) {
		t.Errorf("%d %s", got.status, got.body)
	}
	wantREST(t, a.rest("GET", "/v1/versions/v2", ""), 404, "VERSION_NOT_FOUND")
	wantREST(t, a.rest("GET", "/v1/versions/V1", ""), 400, "INVALID_FIELD")
	wantREST(t, a.rest("GET", "/v1/versions/%00", ""), 400, "INVALID_FIELD")
	before := a.rows()
	for name, body := range map[string]string{
		"an unknown field":    `{"id":"v2","tone":"kind"}`,
		"a repeated field":    `{"id":"v2","id":"v3"}`,
		"a number as a price": `{"id":"v2","prices":{"input_usd_per_mtok":0.25}}`,
		"the whole request":   `{"version":{"id":"v2"}}`,
		"more than one value": jsonOf(t, version("v2")) + `{}`,
		"a list":              `[]`,
		"nothing":             ``,
		"null":                `null`,
	} {
		if r := a.rest("POST", "/v1/versions", body); r.status != 400 || !strings.Contains(r.body, `"MALFORMED_REQUEST"`) {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if after := a.rows(); after != before {
		t.Errorf("refused, but stored: %s became %s", before, after)
	}
}

func TestWhatIsLeftOutHasDefaults(t *testing.T) {
	t.Parallel()
	a := start(t)
	least := &adminv1.Version{
		Id: "least", PromptVersion: "p", Provider: "openai", Model: "m", MaxOutputTokens: 1, Route: "r",
		Departments: []*adminv1.Department{{Name: "all"}},
	}
	stored, _, err := a.register(least)
	if err != nil {
		t.Fatal(err)
	}
	want := changed(least, func(v *adminv1.Version) {
		v.MaxAttempts, v.UnknownPolicy, v.MaxUnknownCalls, v.MaxAge = 8, "resend", proto.Int32(2), durationpb.New(24*time.Hour)
		v.Prices = &adminv1.Prices{InputUsdPerMtok: "0", CachedInputUsdPerMtok: "0", OutputUsdPerMtok: "0"}
		v.Digest, v.CreateTime, v.CreatedBy = stored.GetDigest(), stored.GetCreateTime(), "ana"
	})
	if !proto.Equal(stored, want) {
		t.Errorf("stored %v, want %v", stored, want)
	}
	// None of unknown outcome is a choice, and not the same as leaving the choice out.
	none, _, err := a.register(changed(version("none"), func(v *adminv1.Version) { v.MaxUnknownCalls = proto.Int32(0) }))
	if err != nil || none.MaxUnknownCalls == nil || none.GetMaxUnknownCalls() != 0 {
		t.Errorf("%v, %v", none, err)
	}
}

func TestRegisteringAgainChangesNothing(t *testing.T) {
	t.Parallel()
	a := start(t)
	first := a.mustRegister("v1")
	before := a.rows()
	for name, again := range map[string]*adminv1.Version{
		"as it was sent":                 version("v1"),
		"as it was shown":                first,
		"with its prices written longer": changed(version("v1"), func(v *adminv1.Version) { v.Prices.InputUsdPerMtok = "00.250" }),
		"with output that is ignored": changed(version("v1"), func(v *adminv1.Version) {
			v.Digest, v.Active, v.CreateTime = "abc", true, nil
		}),
		"with defaults written out": changed(version("v1"), func(v *adminv1.Version) { v.MaxAge = durationpb.New(24 * time.Hour) }),
	} {
		stored, replayed, err := a.register(again)
		if err != nil || !replayed || !proto.Equal(stored, first) {
			t.Errorf("%s: replayed %t, %v, %v", name, replayed, err, stored)
		}
	}
	if _, err := a.client().RegisterVersion(a.as(a.bob), &adminv1.RegisterVersionRequest{Version: version("v1")}); err != nil {
		t.Error(err)
	}
	if by := a.text(`SELECT created_by FROM evaluator_version`); by != "ana" {
		t.Errorf("created by %s", by)
	}
	if after := a.rows(); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// Every length of an age comes back as it was sent: one that did not would be another version the second time.
func TestAgesAreStoredExactly(t *testing.T) {
	t.Parallel()
	a := start(t)
	for i, age := range []time.Duration{time.Second, 59 * time.Second, 100000001 * time.Second, 3153599999 * time.Second, 876000 * time.Hour} {
		v := changed(version(fmt.Sprintf("v%d", i)), func(v *adminv1.Version) { v.MaxAge = durationpb.New(age) })
		for _, want := range []bool{false, true} {
			stored, replayed, err := a.register(v)
			if err != nil || replayed != want || stored.GetMaxAge().AsDuration() != age {
				t.Errorf("%s: replayed %t, %v, %v", age, replayed, err, stored.GetMaxAge())
			}
		}
	}
}

func TestAVersionNeverChanges(t *testing.T) {
	t.Parallel()
	a := start(t)
	first := a.mustRegister("v1")
	before := a.rows()
	for name, c := range map[string]struct {
		change      func(*adminv1.Version)
		field, told string
	}{
		"an edited prompt":        {func(v *adminv1.Version) { v.Prompt += " " }, "prompt", "-Sort v1\n"},
		"another model":           {func(v *adminv1.Version) { v.Model = "other" }, "model", "is stored as \"model\", not \"other\""},
		"another effort":          {func(v *adminv1.Version) { v.Effort = "" }, "effort", "\"low\", not \"\""},
		"departments turned":      {func(v *adminv1.Version) { v.Departments[0], v.Departments[1] = v.Departments[1], v.Departments[0] }, "departments", "+\"technical\": \"\""},
		"another description":     {func(v *adminv1.Version) { v.Departments[1].Description = "faults" }, "departments", "faults"},
		"another output limit":    {func(v *adminv1.Version) { v.MaxOutputTokens++ }, "max_output_tokens", "\"100\", not \"101\""},
		"another name of it":      {func(v *adminv1.Version) { v.PromptVersion = "triage-2" }, "prompt_version", "triage-2"},
		"another, new route":      {func(v *adminv1.Version) { v.Route = "other" }, "route", "other"},
		"another price":           {func(v *adminv1.Version) { v.Prices.OutputUsdPerMtok = "2.5" }, "prices.output_usd_per_mtok", "\"2\", not \"2.5\""},
		"a price left out":        {func(v *adminv1.Version) { v.Prices = nil }, "prices.output_usd_per_mtok", "\"2\", not \"0\""},
		"more attempts":           {func(v *adminv1.Version) { v.MaxAttempts++ }, "max_attempts", "\"6\""},
		"another unknown policy":  {func(v *adminv1.Version) { v.UnknownPolicy = "resend" }, "unknown_policy", "resend"},
		"no unknown calls":        {func(v *adminv1.Version) { v.MaxUnknownCalls = proto.Int32(0) }, "max_unknown_calls", "\"0\""},
		"another age":             {func(v *adminv1.Version) { v.MaxAge = durationpb.New(time.Hour) }, "max_age", "\"24h0m0s\", not \"1h0m0s\""},
		"a default in its place":  {func(v *adminv1.Version) { v.MaxUnknownCalls = nil }, "max_unknown_calls", "\"2\""},
		"a department more":       {func(v *adminv1.Version) { v.Departments = append(v.Departments, &adminv1.Department{Name: "sales"}) }, "departments", "+\"sales\""},
		"a department in capital": {func(v *adminv1.Version) { v.Departments[0].Name = "Billing" }, "departments", "+\"Billing\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := a.register(changed(version("v1"), c.change))
			p := problemOf(statusOf(err))
			if p.code != codes.AlreadyExists || p.reason != "VERSION_EXISTS" {
				t.Fatalf("%v", err)
			}
			if told := p.fields["version."+c.field]; !strings.Contains(told, c.told) || name != "a price left out" && len(p.fields) != 1 {
				t.Errorf("told %q of %s; want %q and nothing else", p.fields, c.field, c.told)
			}
			if p.metadata["existingId"] != "v1" || !strings.Contains(err.Error(), "choose a new id") {
				t.Errorf("%v %v", err, p.metadata)
			}
		})
	}
	twin := changed(version("v1"), func(v *adminv1.Version) { v.Id, v.Route, v.Prices = "v2", "other", nil })
	_, _, err := a.register(twin)
	if p := wantProblem(t, err, codes.AlreadyExists, "VERSION_EXISTS"); p.metadata["existingId"] != "v1" || !strings.Contains(err.Error(), "version v1") {
		t.Errorf("another id with the same digest: %v %v", err, p.metadata)
	}
	if after := a.rows(); after != before || !proto.Equal(a.get("v1"), first) {
		t.Errorf("refused, but %s became %s, %v", before, after, a.get("v1"))
	}
}

func TestOneVersionRegisteredByManyAtOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	const callers = 12
	var wait sync.WaitGroup
	created := make(chan bool, callers)
	for i := range callers {
		wait.Go(func() {
			v := version("same")
			if i%3 == 2 { // the same question under another id
				v.Id = "other"
			}
			_, replayed, err := a.register(v)
			if err == nil {
				created <- !replayed
				return
			}
			if p := problemOf(statusOf(err)); p.code != codes.AlreadyExists || p.reason != "VERSION_EXISTS" {
				t.Errorf("%s: %v", v.GetId(), err)
			}
		})
	}
	wait.Wait()
	close(created)
	first := 0
	for c := range created {
		if c {
			first++
		}
	}
	if got := a.rows(); first != 1 || got != "1/1/0/0" {
		t.Errorf("%d were first; rows %s", first, got)
	}
}
