package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/evalonce/evalonce/migrations"
)

// A data directory with the migrated template in it is made once per checkout, version of Postgres, set of
// migrations and month, and kept under .build; a test process copies it, which takes 50 ms where initdb and the migrations
// take two seconds. A server shared by all test processes of a run would save those 50 ms, and would need somebody
// who outlives them all to end it.

// templateFormat changes with whatever this package writes into a template.
const templateFormat = "3"

// startFromTemplate starts a server that has the template database already.
func startFromTemplate(ctx context.Context, opts Options) (*Server, error) {
	root := repositoryRoot()
	if root == "" {
		return nil, errors.New("start a test Postgres: no go.work in this directory or above")
	}
	owner, err := findServerOwner()
	if err != nil {
		return nil, err
	}
	return start(ctx, opts, means{dataDir: func(path string) error {
		cache := filepath.Join(root, ".build", "pgtest")
		if err := copyTemplate(ctx, cache, path); err != nil {
			return fmt.Errorf("prepare a test Postgres: %w", err)
		}
		return owner.giveTree(path)
	}})
}

// copyTemplate copies the cached template to dataDir, and makes it first when there is none.
func copyTemplate(ctx context.Context, cache, dataDir string) error {
	key, err := templateKey(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	template := filepath.Join(cache, "template-"+key)
	for _, how := range []int{syscall.LOCK_SH, syscall.LOCK_EX} {
		if err := flock(lock, how); err != nil {
			return err
		}
		if _, err := os.Stat(template); err == nil {
			return copyDataDir(dataDir, template)
		}
	}
	if err := makeTemplate(ctx, cache, template); err != nil {
		return err
	}
	return copyDataDir(dataDir, template)
}

func flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// makeTemplate replaces all templates in the cache by the one asked for. The caller holds the exclusive lock.
func makeTemplate(ctx context.Context, cache, template string) (err error) {
	old, err := filepath.Glob(filepath.Join(cache, "template-*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	// Neither the user that Postgres runs as nor Postgres's idea of permissions need fit the checkout.
	dir, err := os.MkdirTemp(temporaryRoot(), "evalonce-template-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the server's user passes through
		return err
	}
	server, err := Start(ctx, Options{Dir: filepath.Join(dir, "server")})
	if err != nil {
		return err
	}
	_, err = ensureTemplate(ctx, server.URL())
	if err := errors.Join(err, server.Stop()); err != nil {
		return err
	}
	unfinished := filepath.Join(cache, "template-unfinished")
	if err := copyDataDir(unfinished, filepath.Join(dir, "server", "data")); err != nil {
		return err
	}
	return os.Rename(unfinished, template)
}

func copyDataDir(to, from string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	// The one permission that Postgres checks.
	return os.Chmod(to, 0o700) //nolint:gosec // it is a directory
}

func templateKey(ctx context.Context) (string, error) {
	bin, err := defaultSearchPath().find()
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask Postgres for its version: %w", err)
	}
	fingerprint, err := migrations.Fingerprint()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s\n%s", templateFormat, bin, version, fingerprint, month(time.Now())))
	return hex.EncodeToString(sum[:8]), nil
}
