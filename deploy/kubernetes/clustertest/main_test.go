package clustertest_test

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// cluster is shared by all tests: each works in a namespace of its own.
var cluster *plane

func TestMain(m *testing.M) {
	// The products are built in the workspace, from within a module that is none of it.
	_ = os.Unsetenv("GOWORK")
	os.Exit(run(m))
}

func run(m *testing.M) int {
	started, err := start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the control plane:", err)
		return 1
	}
	cluster = started
	code := m.Run()
	if err := started.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the control plane:", err)
		return 1
	}
	return code
}
