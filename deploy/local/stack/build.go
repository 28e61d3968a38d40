package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// Root is the checkout: the nearest directory upwards with a go.work.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the checkout: no go.work in this directory or above")
		}
		dir = filepath.Dir(dir)
	}
}

// Build builds the binaries of a stack and returns the directory they are in. It is for tests, which cannot know
// whether somebody has built lately; several at once wait for each other, and what is up to date is left alone.
func Build(ctx context.Context) (bin string, err error) {
	return BuildInto(ctx, "test-bin", nil,
		"./migrations/cmd/migrate", "./services/ticket-api", "./services/evaluator-worker", "./services/sweeper",
		"./services/admin", "./services/admin/cmd/evalctl",
		"./deploy/local/cmd/providersim")
}

// BuildCrashing builds the services such that they can be told, by EVALONCE_CRASH_AT, where to die; see package
// crashpoint.
func BuildCrashing(ctx context.Context) (bin string, err error) {
	return BuildInto(ctx, "test-bin-crash", []string{"-tags=crashpoints"},
		"./services/ticket-api", "./services/evaluator-worker", "./services/sweeper")
}

// BuildInto builds commands of the checkout, with flags of go build's, into .build/NAME.
func BuildInto(ctx context.Context, name string, flags []string, commands ...string) (bin string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin = filepath.Join(root, ".build", name)
	if err := os.MkdirAll(bin, 0o755); err != nil { //nolint:gosec // as .build/bin
		return "", fmt.Errorf("build the binaries: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("build the binaries: %w", err)
	}
	defer lock.Close()
	for {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err == nil {
			break
		} else if !errors.Is(err, syscall.EINTR) {
			return "", fmt.Errorf("build the binaries: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build"}, flags, []string{"-o", bin + string(filepath.Separator)}, commands)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binaries: %w\n%s", err, out)
	}
	return bin, nil
}
