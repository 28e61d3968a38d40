package systemtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

// upgradeFrom names the commit to upgrade from, to what the checkout holds.
const upgradeFrom = "EVALONCE_TEST_UPGRADE_FROM"

// nextVersion is what the binaries call themselves that are made of the checkout for the sake of a next release.
const nextVersion = "next"

func servicesAndMigrate() []string {
	return []string{"./migrations/cmd/migrate", "./services/ticket-api", "./services/evaluator-worker", "./services/sweeper", "./services/admin"}
}

// releases are the directories of the binaries of a release and of the one after it. As long as nobody says from which commit
// to upgrade, the first is the checkout's, and the second the same with the migrations in testdata/next.
func releases(t *testing.T) (old, next string) {
	t.Helper()
	if commit := os.Getenv(upgradeFrom); commit != "" {
		return buildCommit(t, commit), binaries
	}
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"-overlay", overlay(t, root), "-ldflags=-X github.com/evalonce/evalonce/migrations/release.version=" + nextVersion}
	if next, err = stack.BuildInto(t.Context(), "test-bin-next", flags, servicesAndMigrate()...); err != nil {
		t.Fatal(err)
	}
	told, err := exec.CommandContext(t.Context(), filepath.Join(next, "migrate"), "--version").Output()
	if err != nil || !strings.HasPrefix(string(told), "migrate "+nextVersion+" ") {
		t.Fatalf("the next release calls itself %q (%v)", told, err)
	}
	return binaries, next
}

// overlay has go build find the next release's migrations behind those of the checkout.
func overlay(t *testing.T, root string) (path string) {
	t.Helper()
	known, err := filepath.Glob(filepath.Join(root, "migrations", "*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Abs(filepath.Join("testdata", "next"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(more)
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for i, entry := range entries { // in the order of their names
		_, name, _ := strings.Cut(entry.Name(), "_")
		target := fmt.Sprintf("%05d_next_%s", len(known)+1+i, name)
		replace[filepath.Join(root, "migrations", target)] = filepath.Join(more, entry.Name())
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// buildCommit builds the binaries of a commit, in a directory of the commit's own below .build.
func buildCommit(t *testing.T, commit string) (bin string) {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir, name string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil && t.Context().Err() == nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
		}
		return out
	}
	hash := strings.TrimSpace(string(run(root, "git", "rev-parse", "--verify", commit+"^{commit}")))
	source := filepath.Join(root, ".build", "upgrade-from", hash)
	bin = filepath.Join(source, "bin")
	if err := os.RemoveAll(source); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(t.TempDir(), "commit.tar")
	run(root, "git", "archive", "--output="+packed, hash)
	run(source, "tar", "-xf", packed)
	run(source, "go", append([]string{"build", "-buildvcs=false", "-o", bin + string(filepath.Separator)}, servicesAndMigrate()...)...)
	return bin
}
