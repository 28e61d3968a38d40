package api_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/evalonce/evalonce/pkg/evaluation"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func TestInvalidVersionsAreRefusedByField(t *testing.T) {
	t.Parallel()
	a := start(t)
	price := func(s string) func(*adminv1.Version) {
		return func(v *adminv1.Version) { v.Prices.CachedInputUsdPerMtok = s }
	}
	age := func(d *durationpb.Duration) func(*adminv1.Version) {
		return func(v *adminv1.Version) { v.MaxAge = d }
	}
	const priceField = "version.prices.cached_input_usd_per_mtok"
	for name, c := range map[string]struct {
		change func(*adminv1.Version)
		field  string
	}{
		"no id":                   {func(v *adminv1.Version) { v.Id = "" }, "version.id"},
		"an id in capitals":       {func(v *adminv1.Version) { v.Id = "V1" }, "version.id"},
		"an id with NUL":          {func(v *adminv1.Version) { v.Id = "v\x001" }, "version.id"},
		"an id too long":          {func(v *adminv1.Version) { v.Id = strings.Repeat("v", 65) }, "version.id"},
		"no prompt version":       {func(v *adminv1.Version) { v.PromptVersion = "" }, "version.prompt_version"},
		"a provider not known":    {func(v *adminv1.Version) { v.Provider = "oracle" }, "version.provider"},
		"a blank model":           {func(v *adminv1.Version) { v.Model = "\u200b" }, "version.model"},
		"an effort of two lines":  {func(v *adminv1.Version) { v.Effort = "low\nhigh" }, "version.effort"},
		"a prompt with NUL":       {func(v *adminv1.Version) { v.Prompt = "a\x00b" }, "version.prompt"},
		"a prompt too long":       {func(v *adminv1.Version) { v.Prompt = strings.Repeat("é", evaluation.MaxPromptBytes/2+1) }, "version.prompt"},
		"no departments":          {func(v *adminv1.Version) { v.Departments = nil }, "version.departments"},
		"a nameless department":   {func(v *adminv1.Version) { v.Departments[1].Name = "" }, "version.departments[1].name"},
		"twin departments":        {func(v *adminv1.Version) { v.Departments[1].Name = "Billing " }, "version.departments[1].name"},
		"a description too long":  {func(v *adminv1.Version) { v.Departments[0].Description = strings.Repeat("x", 5<<10) }, "version.departments[0].description"},
		"no output":               {func(v *adminv1.Version) { v.MaxOutputTokens = 0 }, "version.max_output_tokens"},
		"no route":                {func(v *adminv1.Version) { v.Route = "" }, "version.route"},
		"negative attempts":       {func(v *adminv1.Version) { v.MaxAttempts = -1 }, "version.max_attempts"},
		"an unknown policy":       {func(v *adminv1.Version) { v.UnknownPolicy = "RESEND" }, "version.unknown_policy"},
		"negative unknown calls":  {func(v *adminv1.Version) { v.MaxUnknownCalls = proto.Int32(-1) }, "version.max_unknown_calls"},
		"no age":                  {age(&durationpb.Duration{}), "version.max_age"},
		"a negative age":          {age(durationpb.New(-time.Hour)), "version.max_age"},
		"an age below the second": {age(durationpb.New(1500 * time.Millisecond)), "version.max_age"},
		"an age too long":         {age(durationpb.New(876000*time.Hour + time.Second)), "version.max_age"},
		"an age beyond all":       {age(&durationpb.Duration{Seconds: math.MaxInt64}), "version.max_age"},
		"an age of two signs":     {age(&durationpb.Duration{Seconds: 5, Nanos: -5}), "version.max_age"},
		"a price in words":        {price("free"), priceField},
		"a negative price":        {price("-1"), priceField},
		"a price with a sign":     {price("+1"), priceField},
		"a price in exponents":    {price("1e3"), priceField},
		"a price beyond all":      {price("1e999999999"), priceField},
		"a price with a comma":    {price("0,25"), priceField},
		"a bare point":            {price(".5"), priceField},
		"a price with a currency": {price("$0.25"), priceField},
		"a price with a space":    {price(" 0.25"), priceField},
		"a price of NaN":          {price("NaN"), priceField},
		"a price in other digits": {price("٣"), priceField},
		"a price too high":        {price("1000000.01"), priceField},
		"a price too fine":        {price("0.0000000000000000001"), priceField},
	} {
		t.Run(name, func(t *testing.T) {
			v := changed(version("v1"), c.change)
			_, _, err := a.register(v)
			wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", c.field)
			if v.GetMaxAge().CheckValid() != nil {
				return // it has no JSON form
			}
			r := a.rest("POST", "/v1/versions", jsonOf(t, v))
			wantREST(t, r, 400, "INVALID_FIELD")
			if !strings.Contains(r.body, `"`+c.field+`"`) {
				t.Errorf("REST does not name %s: %s", c.field, r.body)
			}
		})
	}
	t.Run("all at once", func(t *testing.T) {
		_, _, err := a.register(&adminv1.Version{
			Departments: []*adminv1.Department{{Name: "a"}, {Name: "b"}, {}}, MaxAge: durationpb.New(-1),
			Prices: &adminv1.Prices{InputUsdPerMtok: "x", OutputUsdPerMtok: "2000000"},
		})
		wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "version.id", "version.prompt_version", "version.provider",
			"version.model", "version.departments[2].name", "version.max_output_tokens", "version.route", "version.max_age",
			"version.prices.input_usd_per_mtok", "version.prices.output_usd_per_mtok")
	})
	t.Run("no version", func(t *testing.T) {
		_, _, err := a.register(nil)
		wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "version")
	})
	if got := a.rows(); got != "0/0/0/0" {
		t.Errorf("refused, but stored: %s", got)
	}
}

func TestTheLargestVersionFits(t *testing.T) {
	t.Parallel()
	a := start(t)
	v := changed(version("large"), func(v *adminv1.Version) {
		v.Prompt = strings.Repeat("é", evaluation.MaxPromptBytes/2)
		v.Departments = nil
		for i := range evaluation.MaxDepartments {
			v.Departments = append(v.Departments, &adminv1.Department{
				Name:        fmt.Sprintf("%0*d", evaluation.MaxNameBytes, i),
				Description: strings.Repeat("ß", evaluation.MaxDescriptionBytes/2),
			})
		}
	})
	r := a.rest("POST", "/v1/versions", jsonOf(t, v))
	if r.status != 201 || r.version(t).GetPrompt() != v.GetPrompt() {
		t.Fatalf("%d %.200s", r.status, r.body)
	}
	if stored, replayed, err := a.register(v); err != nil || !replayed || len(stored.GetDepartments()) != evaluation.MaxDepartments {
		t.Errorf("replayed %t, %v", replayed, err)
	}
}

func TestNobodyGetsInWithoutAToken(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustPromote("v1")
	before := a.rows()
	methods := adminv1.File_evalonce_admin_v1_version_proto.Services().ByName("VersionService").Methods()
	if methods.Len() < 4 {
		t.Fatalf("%d methods", methods.Len())
	}
	for i := range methods.Len() {
		name := fmt.Sprintf("/%s/%s", methods.Get(i).Parent().FullName(), methods.Get(i).Name())
		// One of the two is a valid request, whatever the method.
		for request, in := range map[string]proto.Message{"id": &adminv1.GetVersionRequest{Id: "v1"}, "version": &adminv1.RegisterVersionRequest{Version: version("v2")}} {
			err := a.conn.Invoke(t.Context(), name, in, &adminv1.Version{})
			if p := problemOf(statusOf(err)); p.code != codes.Unauthenticated || p.reason != "CREDENTIALS_MISSING" {
				t.Errorf("%s with %s and no token: %v", name, request, err)
			}
			err = a.conn.Invoke(a.as("evalonce_guessed"), name, in, &adminv1.Version{})
			if p := problemOf(statusOf(err)); p.code != codes.Unauthenticated || p.reason != "CREDENTIALS_INVALID" {
				t.Errorf("%s with %s and a wrong token: %v", name, request, err)
			}
		}
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/versions", ""},
		{"GET", "/v1/versions/v1", ""},
		{"GET", "/v1/versions/absent", ""},
		{"POST", "/v1/versions", jsonOf(t, version("v2"))},
		{"POST", "/v1/versions", "not JSON"},
		{"POST", "/v1/versions/v1:promote", "{}"},
	} {
		wantREST(t, a.restAs("", c.method, c.path, c.body), 401, "CREDENTIALS_MISSING")
		wantREST(t, a.restAs("evalonce_guessed", c.method, c.path, c.body), 401, "CREDENTIALS_INVALID")
	}
	if after := a.rows(); after != before {
		t.Errorf("%s became %s", before, after)
	}
	if r := a.restAs("", "GET", "/openapi.json", ""); r.status != 200 || !strings.Contains(r.body, `"/v1/versions/{id}:promote"`) {
		t.Errorf("the document: %d %.200s", r.status, r.body)
	}
}
