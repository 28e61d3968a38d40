package stack_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

func TestTwoRunsDoNotMeet(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "build", "scenario")
	unlock, err := stack.Lock(dir, "scenario")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stack.Lock(dir, "scenario"); err == nil || !strings.Contains(err.Error(), "another scenario") {
		t.Errorf("a second run: %v", err)
	}
	unlock()
	again, err := stack.Lock(dir, "scenario")
	if err != nil {
		t.Fatal(err)
	}
	again()
}
