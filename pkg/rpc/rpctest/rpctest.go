// Package rpctest runs a service that serves by package rpc as the process that it is, for the tests of its main package.
package rpctest

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// Serving is what a service logs about where it serves.
type Serving struct{ Msg, Service, GRPC, HTTP string }

// ServingAt reads the log of a service, and nothing else, until it says where it serves.
func ServingAt(t testing.TB, log io.Reader, service string) Serving {
	t.Helper()
	var at Serving
	lines := bufio.NewScanner(log)
	for at.Msg != "serving" && lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &at); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
	}
	if at.Service != service || at.GRPC == "" {
		t.Fatalf("it does not serve: %+v, %v", at, lines.Err())
	}
	return at
}

// Start runs the test's own binary until the test ends, as the service that the variable makes of it, on ports of its own.
// That it ends with an error is one of the test's.
func Start(t testing.TB, service, variable string, environ ...string) Serving {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // the test itself
	cmd.Env = append(environ, variable+"=1", "EVALONCE_HEALTH_ADDRESS=127.0.0.1:0", "EVALONCE_GRPC_ADDRESS=127.0.0.1:0", "EVALONCE_HTTP_ADDRESS=127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at := ServingAt(t, stderr, service)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, stderr)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-drained
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("the service ended with %v", err)
		}
	})
	return at
}
