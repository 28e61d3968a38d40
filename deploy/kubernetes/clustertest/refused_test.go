package clustertest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A server that takes everything would prove nothing: each of these is one mistake in production's manifests.
func TestMistakesAreRefused(t *testing.T) {
	t.Parallel()
	copyOf(t, production, "evalonce-mistakes", "").makeNamespace()
	for name, mistake := range map[string]struct{ kind, at, value, refusal string }{
		"a minute that there is not":              {"CronJob", "/spec/schedule", `"61 * * * *"`, "spec.schedule: Invalid value"},
		"a roll-out that cannot begin":            {"Deployment", "/spec/strategy/rollingUpdate", `{"maxSurge": 0, "maxUnavailable": 0}`, "may not be 0 when `maxSurge` is 0"},
		"a field that there is not":               {"Deployment", "/spec/replica", "3", `unknown field "spec.replica"`},
		"a field that a ScaledObject has not":     {"ScaledObject", "/spec/maxReplicas", "3", `unknown field "spec.maxReplicas"`},
		"a type that a ServiceMonitor has not":    {"ServiceMonitor", "/spec/endpoints/0/interval", "15", "must be of type string"},
		"a budget of two kinds":                   {"PodDisruptionBudget", "/spec/minAvailable", "1", "minAvailable and maxUnavailable cannot be both set"},
		"a policy of a port that there cannot be": {"NetworkPolicy", "/spec/egress", `[{"ports": [{"port": 70000}]}]`, "must be between 1 and 65535"},
		"a pod that is not restricted":            {"Deployment", "/spec/template/spec/securityContext/runAsNonRoot", "false", `would violate PodSecurity "restricted`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patch := "patches:\n  - target: {kind: " + mistake.kind + "}\n    patch: |\n      - {op: add, path: " + mistake.at + ", value: " + mistake.value + "}\n"
			i := copyOf(t, production, "evalonce-mistakes", patch)
			if _, err := cluster.kubectl(t.Context(), "apply", "--dry-run=server", "--validate=strict", "-k", i.dir); err == nil || !strings.Contains(err.Error(), mistake.refusal) {
				t.Errorf("the server says %v", err)
			}
		})
	}
}

// deploy/kubernetes/validate, which needs no server, goes by the same definitions.
func TestTheForeignDefinitionsAreTheirModules(t *testing.T) {
	t.Parallel()
	copies, err := filepath.Glob(filepath.Join("..", "validate", "testdata", "crds", "*.yaml"))
	if err != nil || len(copies) == 0 {
		t.Fatalf("no copies: %v", err)
	}
	dirs, err := definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range copies {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		same := slices.ContainsFunc(dirs, func(dir string) bool {
			got, err := os.ReadFile(filepath.Join(dir, filepath.Base(path)))
			return err == nil && bytes.Equal(got, want)
		})
		if !same {
			t.Errorf("%s is in none of %v", path, dirs)
		}
	}
}
