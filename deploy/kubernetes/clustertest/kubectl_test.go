package clustertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kubectl returns what it prints to its standard output. Every warning, the server's and its own, is an error.
func (p *plane) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.kubectlBin, append([]string{"--kubeconfig=" + p.kubeconfig, "--warnings-as-errors"}, args...)...)
	return output(cmd)
}

// shell runs what a document tells an operator to type.
func (p *plane) shell(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig, "PATH="+filepath.Dir(p.kubectlBin)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return output(cmd)
}

func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil && strings.Contains(stderr.String(), "Warning") {
		err = errors.New("it warns")
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}
