package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Image is one binary of the checkout.
type Image struct {
	Name    string
	Package string // its directory in the checkout
	About   string
}

// Images are all that there are.
func Images() []Image {
	return []Image{
		{"ticket-api", "./services/ticket-api", "Takes support tickets and shows what became of them"},
		{"evaluator-worker", "./services/evaluator-worker", "Asks the models, and saves the answers"},
		{"admin", "./services/admin", "Serves operators"},
		{"sweeper", "./services/sweeper", "Sweeps up after workers and clients"},
		{"migrate", "./migrations/cmd/migrate", "Brings a database to the schema of this release"},
		{"evalctl", "./services/admin/cmd/evalctl", "The operator's command line"},
		{"providersim", "./deploy/local/cmd/providersim", "Simulates a model provider; for development"},
	}
}

// user is who everything runs as. It owns nothing.
const user = 65532

// releasePackage answers --version.
const releasePackage = "github.com/evalonce/evalonce/migrations/release"

const (
	executable = 0o555
	readable   = 0o444
)

type file struct {
	path    string // relative to the root
	mode    int64
	content []byte
}

// files are all that an image has, in the order in which they are stored.
func (b Builder) files(ctx context.Context, image Image, platform string) ([]file, error) {
	binary, err := b.compile(ctx, image, platform)
	if err != nil {
		return nil, err
	}
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		// A file cannot say for which certificates such an authority still counts.
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, fmt.Errorf("write the certificates of the authorities: %w", err)
		}
	}
	return []file{
		{"etc/group", readable, fmt.Appendf(nil, "evalonce:x:%d:\n", user)},
		{"etc/passwd", readable, fmt.Appendf(nil, "evalonce:x:%d:%d::/:/sbin/nologin\n", user, user)},
		{"etc/ssl/certs/ca-certificates.crt", readable, authorities.Bytes()},
		{image.Name, executable, binary},
	}, nil
}

// compile makes a static binary in which nothing tells of the machine it was built on.
func (b Builder) compile(ctx context.Context, image Image, platform string) ([]byte, error) {
	system, architecture, ok := strings.Cut(platform, "/")
	if !ok {
		return nil, fmt.Errorf("platform %q is not of the form linux/amd64", platform)
	}
	dir, err := os.MkdirTemp("", "evalonce-image-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the binary: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, image.Name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid= -X "+releasePackage+".version="+b.Release.Version+" -X "+releasePackage+".commit="+b.Release.Commit, "-o", out, image.Package)
	cmd.Dir = b.Source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=", "GOOS="+system, "GOARCH="+architecture, "GOAMD64=v1", "GOARM64=v8.0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s for %s: %w\n%s", image.Package, platform, err, output)
	}
	return os.ReadFile(out)
}

// WriteRootfs writes the files of an image into a directory.
func (b Builder) WriteRootfs(ctx context.Context, image Image, dir string) error {
	files, err := b.files(ctx, image, b.Platforms[0])
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as in an image
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		if err := os.WriteFile(path, f.content, os.FileMode(f.mode)); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		// What the umask took away.
		if err := os.Chmod(path, os.FileMode(f.mode)); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	return nil
}
