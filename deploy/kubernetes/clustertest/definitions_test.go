package clustertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Where the foreign kinds are defined. deploy/kubernetes/validate has copies of the same versions.
const (
	kedaModule               = "github.com/kedacore/keda/v2@v2.21.0"
	prometheusOperatorModule = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// definitions are the directories of the foreign kinds' definitions.
func definitions(ctx context.Context) ([]string, error) {
	var dirs []string
	for module, dir := range map[string]string{
		kedaModule: filepath.Join("config", "crd", "bases"), prometheusOperatorModule: filepath.Join("example", "prometheus-operator-crd"),
	} {
		source, err := moduleDir(ctx, os.TempDir(), module)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, filepath.Join(source, dir))
	}
	return dirs, nil
}

func (p *plane) defineForeignKinds(ctx context.Context) error {
	dirs, err := definitions(ctx)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		// One of them is too large for the annotation of a client-side apply.
		if _, err := p.kubectl(ctx, "apply", "--server-side", "-f", dir); err != nil {
			return fmt.Errorf("define the foreign kinds: %w", err)
		}
	}
	if _, err := p.kubectl(ctx, "wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout="+patience.String()); err != nil {
		return fmt.Errorf("wait for the foreign kinds: %w", err)
	}
	return nil
}

// moduleDir is where a module's files are, seen from dir.
func moduleDir(ctx context.Context, dir, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w: %s", module, err, out)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", fmt.Errorf("download %s: %w", module, err)
	}
	return found.Dir, nil
}
