package release

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestCurrent(t *testing.T) {
	t.Parallel()
	want := "release.test dev (commit unknown, " + runtime.Version() + ")"
	if got := Current().String(); got != want { // go test notes no commit
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTheCommitIsThatOfTheCheckout(t *testing.T) {
	t.Parallel()
	for want, settings := range map[string][]debug.BuildSetting{
		"unknown":    nil,
		"0123":       {{Key: "vcs.revision", Value: "0123"}, {Key: "vcs.modified", Value: "false"}},
		"0123-dirty": {{Key: "vcs.revision", Value: "0123"}, {Key: "vcs.modified", Value: "true"}},
	} {
		if got := fromCheckout(&debug.BuildInfo{Settings: settings}); got != want {
			t.Errorf("%v: %q, want %q", settings, got, want)
		}
	}
}
