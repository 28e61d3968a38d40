// Package fscktest ends tests with the promises: whatever a test did, crashed or raced, they hold.
package fscktest

import (
	"context"
	"testing"

	"github.com/evalonce/evalonce/pkg/fsck"
)

// Require fails the test, and ends it, when the database contradicts a promise. Notes are logged.
func Require(t testing.TB, db fsck.Beginner) {
	t.Helper()
	// A test's context has ended when its cleanups run, which is where this may well be called.
	report, err := fsck.Run(context.WithoutCancel(t.Context()), db, fsck.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Notes {
		t.Logf("note: %s", f)
	}
	for _, f := range report.Violations {
		t.Errorf("violation: %s", f)
	}
	if !report.Healthy() {
		t.FailNow()
	}
}
