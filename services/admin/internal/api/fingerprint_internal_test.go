package api

import (
	"encoding/hex"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func TestFingerprint(t *testing.T) {
	t.Parallel()
	request := func(change func(*adminv1.RegisterVersionRequest)) changing {
		r := &adminv1.RegisterVersionRequest{
			Version: &adminv1.Version{
				Id: "v1", MaxOutputTokens: 7, MaxUnknownCalls: proto.Int32(0), MaxAge: durationpb.New(3600e9),
				Departments: []*adminv1.Department{{Name: "a", Description: "b"}, {Name: "c"}},
			},
			Reason: "why",
		}
		change(r)
		return r
	}
	same := request(func(*adminv1.RegisterVersionRequest) {})
	// It is stored: what it was is what it must stay.
	const golden = "aaf6a8421947bbbf683ca3386d97d90317eb55003b7701a33d80b7239471be68"
	if got := fingerprint(same); hex.EncodeToString(got[:]) != golden {
		t.Errorf("got %x, want %s", got, golden)
	}
	for name, change := range map[string]func(*adminv1.RegisterVersionRequest){
		"the key":   func(r *adminv1.RegisterVersionRequest) { r.RequestId = "k" },
		"a dry run": func(r *adminv1.RegisterVersionRequest) { r.DryRun = true },
	} {
		if fingerprint(request(change)) != fingerprint(same) {
			t.Errorf("%s is part of what is asked for", name)
		}
	}
	seen := map[[32]byte]string{fingerprint(same): "nothing"}
	for name, change := range map[string]func(*adminv1.RegisterVersionRequest){
		"another reason":        func(r *adminv1.RegisterVersionRequest) { r.Reason = "other" },
		"no reason":             func(r *adminv1.RegisterVersionRequest) { r.Reason = "" },
		"another id":            func(r *adminv1.RegisterVersionRequest) { r.Version.Id = "v2" },
		"another number":        func(r *adminv1.RegisterVersionRequest) { r.Version.MaxOutputTokens = 8 },
		"absent, and not 0":     func(r *adminv1.RegisterVersionRequest) { r.Version.MaxUnknownCalls = nil },
		"another age":           func(r *adminv1.RegisterVersionRequest) { r.Version.MaxAge.Nanos = 1 },
		"one department":        func(r *adminv1.RegisterVersionRequest) { r.Version.Departments = r.Version.Departments[:1] },
		"a text moved over":     func(r *adminv1.RegisterVersionRequest) { r.Version.Departments[0] = &adminv1.Department{Name: "ab"} },
		"departments in turn":   func(r *adminv1.RegisterVersionRequest) { d := r.Version.Departments; d[0], d[1] = d[1], d[0] },
		"no version":            func(r *adminv1.RegisterVersionRequest) { r.Version = nil },
		"a version of defaults": func(r *adminv1.RegisterVersionRequest) { r.Version = &adminv1.Version{} },
		"a bool":                func(r *adminv1.RegisterVersionRequest) { r.Version.Active = true },
	} {
		got := fingerprint(request(change))
		if other, taken := seen[got]; taken {
			t.Errorf("%s and %s have one fingerprint", name, other)
		}
		seen[got] = name
	}
	promote := func(share *float64) changing { return &adminv1.PromoteVersionRequest{Id: "v1", MinCoverage: share} }
	if fingerprint(promote(nil)) == fingerprint(promote(proto.Float64(0))) || fingerprint(promote(proto.Float64(0.5))) == fingerprint(promote(proto.Float64(0.25))) {
		t.Error("shares are not told apart")
	}
	if fingerprint(&adminv1.RollbackVersionRequest{}) == fingerprint(&adminv1.PromoteVersionRequest{}) {
		t.Error("messages are not told apart")
	}
}
