package api_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// promotes sends a promotion as it is, and reports whether the answer is marked as replayed.
func (a *adminAPI) promotes(ctx context.Context, r *adminv1.PromoteVersionRequest) (response *adminv1.PromoteVersionResponse, replayed bool, err error) {
	var header metadata.MD
	response, err = a.client().PromoteVersion(ctx, r, grpc.Header(&header))
	return response, strings.Join(header.Get("idempotent-replayed"), ",") == "true", err
}

// record is every entry, in order.
func (a *adminAPI) record() string {
	a.t.Helper()
	return a.text(`SELECT coalesce(string_agg(concat_ws(' ', principal, method, target, coalesce(before ->> 'version_id', '-'),
		coalesce(after ->> 'version_id', '-'), nullif(reason, ''), nullif(request_id, '')), E'\n' ORDER BY id), '') FROM admin_audit`)
}

func TestAChangeIsRecordedAndNothingElse(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustRegister("v2")
	for _, r := range []*adminv1.PromoteVersionRequest{
		{Id: "v1"},
		{Id: "v1", Reason: "changes nothing"},
		{Id: "v2", ExpectedActiveId: "v1", Reason: "fewer flips", RequestId: "k-1"},
		{Id: "v1", ExpectedActiveId: "v1", Reason: "is refused"},
	} {
		_, err := a.client().PromoteVersion(a.as(a.bob), r)
		if refused := r.GetReason() == "is refused"; refused != (err != nil) {
			t.Fatalf("%v: %v", r, err)
		}
	}
	if _, replayed, err := a.register(version("v1")); err != nil || !replayed {
		t.Fatalf("replayed %t, %v", replayed, err)
	}
	const want = `ana VersionService.RegisterVersion versions/v1 - -
ana VersionService.RegisterVersion versions/v2 - -
bob VersionService.PromoteVersion activeVersion - v1
bob VersionService.PromoteVersion activeVersion v1 v2 fewer flips k-1`
	if got := a.record(); got != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
}

// A change that cannot be recorded is not made, and its key stays free.
func TestNoChangeWithoutItsRecord(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON admin_audit FOR EACH ROW EXECUTE FUNCTION refuse()`)
	before := a.everything()
	r := &adminv1.PromoteVersionRequest{Id: "v1", RequestId: "k"}
	if _, _, err := a.promotes(a.as(a.ana), r); problemOf(statusOf(err)).code != codes.Internal {
		t.Fatalf("%v, want an internal error", err)
	}
	if after := a.everything(); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
	a.exec(`DROP TRIGGER refuse ON admin_audit`)
	if _, replayed, err := a.promotes(a.as(a.ana), r); err != nil || replayed {
		t.Errorf("replayed %t, %v", replayed, err)
	}
}

func TestAKeyHasItsEffectOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustRegister("v2")
	a.mustPromote("v1")
	request := &adminv1.PromoteVersionRequest{Id: "v2", Reason: "why", RequestId: "k-1", Force: true}
	first, replayed, err := a.promotes(a.as(a.ana), request)
	if err != nil || replayed {
		t.Fatalf("replayed %t, %v", replayed, err)
	}
	a.mustPromote("v1")
	before := a.everything()
	// The same intent, however it is spelt, and whatever has changed since.
	bare := proto.CloneOf(request)
	bare.RequestId = ""
	header := func(token, key string) context.Context {
		return metadata.AppendToOutgoingContext(a.as(token), "idempotency-key", key)
	}
	for name, again := range map[string]func() (*adminv1.PromoteVersionResponse, bool, error){
		"field":         func() (*adminv1.PromoteVersionResponse, bool, error) { return a.promotes(a.as(a.ana), request) },
		"header":        func() (*adminv1.PromoteVersionResponse, bool, error) { return a.promotes(header(a.ana, "k-1"), bare) },
		"quoted header": func() (*adminv1.PromoteVersionResponse, bool, error) { return a.promotes(header(a.ana, `"k-1"`), bare) },
		"both": func() (*adminv1.PromoteVersionResponse, bool, error) {
			return a.promotes(header(a.ana, "k-1"), request)
		},
		"a dry run": func() (*adminv1.PromoteVersionResponse, bool, error) {
			dry := proto.CloneOf(request)
			dry.DryRun = true
			return a.promotes(a.as(a.ana), dry)
		},
	} {
		second, replayed, err := again()
		if err != nil || !replayed || !proto.Equal(first, second) {
			t.Errorf("%s: replayed %t, %v, %v; want %v", name, replayed, err, second, first)
		}
	}
	r := a.rest("POST", "/v1/versions/v2:promote", `{"force":true,"reason":"why","request_id":"k-1"}`)
	if again := (&adminv1.PromoteVersionResponse{}); r.status != 200 || r.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("REST: %d %v %s", r.status, r.header, r.body)
	} else if r.decode(t, again); !proto.Equal(first, again) {
		t.Errorf("REST: %v, want %v", again, first)
	}
	// Other intents.
	for name, other := range map[string]*adminv1.PromoteVersionRequest{
		"another version": {Id: "v1", Reason: "why", RequestId: "k-1", Force: true},
		"another reason":  {Id: "v2", Reason: "another", RequestId: "k-1", Force: true},
		"not forced":      {Id: "v2", Reason: "why", RequestId: "k-1"},
	} {
		_, replayed, err := a.promotes(a.as(a.ana), other)
		if wantProblem(t, err, codes.FailedPrecondition, "IDEMPOTENCY_KEY_REUSED"); replayed {
			t.Errorf("%s is marked as replayed", name)
		}
	}
	wantREST(t, a.rest("POST", "/v1/versions/v1:promote", `{"request_id":"k-1"}`), 422, "IDEMPOTENCY_KEY_REUSED")
	_, _, err = a.promotes(header(a.ana, "k-2"), request)
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "idempotency-key")
	if after := a.everything(); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
	// A key belongs to the operator and the method.
	if _, replayed, err := a.promotes(a.as(a.bob), request); err != nil || replayed {
		t.Errorf("another operator: replayed %t, %v", replayed, err)
	}
	if _, err := a.client().RegisterVersion(a.as(a.ana), &adminv1.RegisterVersionRequest{Version: version("v3"), RequestId: "k-1"}); err != nil {
		t.Errorf("another method: %v", err)
	}
	// And is free again when it is forgotten.
	a.exec(`UPDATE admin_request SET created_at = now() - interval '8 days', expires_at = now() - interval '1 day'`)
	if _, replayed, err := a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v1", RequestId: "k-1"}); err != nil || replayed {
		t.Errorf("a forgotten key: replayed %t, %v", replayed, err)
	}
}

func TestADryRunLeavesNoTrace(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	a.mustRegister("v2")
	a.mustPromote("v1")
	before := a.everything()
	dry := &adminv1.PromoteVersionRequest{Id: "v2", ExpectedActiveId: "v1", RequestId: "k", DryRun: true}
	foretold, replayed, err := a.promotes(a.as(a.ana), dry)
	if err != nil || replayed || !foretold.GetVersion().GetActive() || foretold.GetReplacedId() != "v1" {
		t.Fatalf("%v, replayed %t, %v", foretold, replayed, err)
	}
	if _, err := a.client().RegisterVersion(a.as(a.ana), &adminv1.RegisterVersionRequest{Version: version("v3"), DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if r := a.rest("POST", "/v1/versions?dry_run=true&reason=only+looking", jsonOf(t, version("v4"))); r.status != 201 {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
	dry.ExpectedActiveId = "v2"
	_, _, err = a.promotes(a.as(a.ana), dry)
	wantProblem(t, err, codes.FailedPrecondition, "ACTIVE_VERSION_CHANGED")
	if after := a.everything(); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
	run := &adminv1.PromoteVersionRequest{Id: "v2", ExpectedActiveId: "v1", RequestId: "k"}
	done, replayed, err := a.promotes(a.as(a.ana), run)
	if err != nil || replayed || !proto.Equal(done, foretold) {
		t.Errorf("%v, replayed %t, %v; foretold was %v", done, replayed, err, foretold)
	}
	if got := a.history(); got != "v1< v2<v1" {
		t.Errorf("history %s", got)
	}
}

// Of all who send the same request at once, one has the effect, and all are told the same.
func TestOneKeyAtOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	const calls = 12
	type outcome struct {
		response *adminv1.PromoteVersionResponse
		replayed bool
		err      error
	}
	outcomes := make(chan outcome, calls)
	begin := make(chan struct{})
	var wait sync.WaitGroup
	for range calls {
		wait.Go(func() {
			<-begin
			var o outcome
			o.response, o.replayed, o.err = a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v1", RequestId: "k"})
			outcomes <- o
		})
	}
	close(begin)
	wait.Wait()
	close(outcomes)
	firsts := 0
	var told *adminv1.PromoteVersionResponse
	for o := range outcomes {
		if o.err != nil {
			t.Fatal(o.err)
		}
		if !o.replayed {
			firsts++
		}
		if told == nil {
			told = o.response
		}
		if !proto.Equal(told, o.response) {
			t.Errorf("told %v and %v", told, o.response)
		}
	}
	if got := a.record(); firsts != 1 || strings.Count(got, "PromoteVersion") != 1 {
		t.Errorf("%d have had an effect; recorded\n%s", firsts, got)
	}
}

func TestWhatAllChangesShareIsCheckedWithTheRest(t *testing.T) {
	t.Parallel()
	a := start(t)
	_, _, err := a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "V1", RequestId: "two words", Reason: "a\x00b"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "id", "request_id", "reason")
	_, _, err = a.promotes(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v1", Reason: strings.Repeat("é", 1001)})
	wantProblem(t, err, codes.InvalidArgument, "FIELD_TOO_LARGE", "reason")
}
