package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var (
	release  = Release{Version: "1.2.3-test", Commit: "0123456789abcdef0123456789abcdef01234567", Created: time.Unix(1_700_000_000, 0).UTC()}
	platform = "linux/" + runtime.GOARCH
)

// Every image is what it says: it can be loaded, runs as nobody, has its one binary and no shell, and the binary runs
// without anything else. Made again, elsewhere, it is the same to the bit.
func TestImages(t *testing.T) {
	t.Parallel()
	here, there := checkouts(t)
	first := Builder{Source: here, Release: release, Platforms: []string{platform}}
	second := Builder{Source: there, Release: release, Platforms: []string{platform}}
	out, again := t.TempDir(), t.TempDir()
	for _, image := range Images() {
		digest, err := first.Write(t.Context(), image, out)
		if err != nil {
			t.Fatal(err)
		}
		tarball := filepath.Join(out, image.Name+".tar")
		built := load(t, tarball, digest)
		checkConfig(t, image, built)
		checkBill(t, filepath.Join(out, image.Name+"-linux-"+runtime.GOARCH+".cdx.json"))
		checkBinary(t, image, unpack(t, image, built))

		if digest2, err := second.Write(t.Context(), image, again); err != nil || digest2 != digest {
			t.Errorf("%s: %s, and built again %s (%v)", image.Name, digest, digest2, err)
		}
		for _, name := range []string{image.Name + ".tar", image.Name + "-linux-" + runtime.GOARCH + ".cdx.json"} {
			if !bytes.Equal(read(t, filepath.Join(out, name)), read(t, filepath.Join(again, name))) {
				t.Errorf("%s differs when it is built again", name)
			}
		}
	}
}

func TestAnIndexHasAllPlatforms(t *testing.T) {
	t.Parallel()
	want := []string{"linux/amd64", "linux/arm64"}
	builder := Builder{Release: release, Platforms: want}
	var images []v1.Image
	for _, p := range want {
		built, err := builder.assemble(Images()[0], p, []file{{"binary", executable, []byte(p)}})
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, built)
	}
	made, err := combine(images)
	if err != nil {
		t.Fatal(err)
	}
	store, err := layout.Write(t.TempDir(), made)
	if err != nil {
		t.Fatal(err)
	}
	index, err := store.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
	}
	if !slices.Equal(platforms, want) {
		t.Errorf("platforms %v, want %v", platforms, want)
	}
}

// What the Dockerfile copies are the files of the image.
func TestRootfsHasTheFilesOfTheImage(t *testing.T) {
	t.Parallel()
	here, _ := checkouts(t)
	dir := t.TempDir()
	args := []string{"-source", here, "-rootfs", dir, "-only", "migrate", "-platforms", platform, "-version", release.Version, "-commit", release.Commit}
	if err := run(t.Context(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	builder := Builder{Source: here, Release: release, Platforms: []string{platform}}
	files, err := builder.files(t.Context(), Image{Name: "migrate", Package: "./migrations/cmd/migrate"}, platform)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := os.Stat(filepath.Join(dir, f.path))
		if err != nil {
			t.Error(err)
			continue
		}
		if info.Mode().Perm() != os.FileMode(f.mode) || !bytes.Equal(read(t, filepath.Join(dir, f.path)), f.content) {
			t.Errorf("%s: mode %v, or not the content of the image", f.path, info.Mode())
		}
	}
}

// checkouts are two copies of the work tree, which is the same in both whoever changes it meanwhile.
func checkouts(t *testing.T) (here, there string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", "git ls-files -z --cached -- '*.go' '*go.mod' '*go.sum' go.work go.work.sum '*.sql' '*.json' "+
		"| while IFS= read -r -d '' name; do if [[ -e $name ]]; then printf '%s\\0' \"$name\"; fi; done | tar --null -T - -cf -")
	list.Dir = filepath.Join("..", "..")
	list.Stderr = os.Stderr
	packed, err := list.Output()
	if err != nil {
		t.Fatalf("copy the checkout: %v", err)
	}
	return extract(t, packed), extract(t, packed)
}

func extract(t *testing.T, packed []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for header, content := range entries(t, bytes.NewReader(packed)) {
		if header.Typeflag != tar.TypeReg {
			continue
		}
		path := filepath.Join(dir, header.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func entries(t *testing.T, packed io.Reader) func(func(*tar.Header, []byte) bool) {
	t.Helper()
	return func(yield func(*tar.Header, []byte) bool) {
		archive := tar.NewReader(packed)
		for {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			if !yield(header, content) {
				return
			}
		}
	}
}

func load(t *testing.T, tarball string, digest v1.Hash) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(extract(t, read(t, tarball)))
	if err != nil {
		t.Fatal(err)
	}
	built, err := index.Image(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(built); err != nil {
		t.Fatal(err)
	}
	return built
}

func checkConfig(t *testing.T, image Image, built v1.Image) {
	t.Helper()
	config, err := built.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/" + image.Name}) ||
		config.Architecture != runtime.GOARCH || config.OS != "linux" || !config.Created.Equal(release.Created) {
		t.Errorf("%s: %+v", image.Name, config)
	}
	labels := config.Config.Labels
	if labels["org.opencontainers.image.version"] != release.Version || labels["org.opencontainers.image.revision"] != release.Commit {
		t.Errorf("%s: labels %v", image.Name, labels)
	}
}

// unpack returns the path of the binary, after a look at everything beside it.
func unpack(t *testing.T, image Image, built v1.Image) string {
	t.Helper()
	layers, err := built.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%s: %d layers (%v)", image.Name, len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	path := filepath.Join(t.TempDir(), image.Name)
	var names []string
	for header, data := range entries(t, content) {
		names = append(names, header.Name)
		if header.Mode&0o222 != 0 || header.Uid != 0 || !header.ModTime.Equal(release.Created) {
			t.Errorf("%s: %s can be written to, or is not root's, or has a time of its own: %+v", image.Name, header.Name, header)
		}
		if header.Name == image.Name {
			if err := os.WriteFile(path, data, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"etc/", "etc/group", "etc/passwd", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt", image.Name}
	if !slices.Equal(names, want) {
		t.Errorf("%s has %v, want %v", image.Name, names, want)
	}
	return path
}

func checkBinary(t *testing.T, image Image, path string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, "--help")
	cmd.Env = []string{} // nothing of this machine
	cmd.Dir = t.TempDir()
	help, err := cmd.Output()
	if err != nil || len(help) < 200 {
		t.Errorf("%s --help: %v\n%s", image.Name, err, help)
	}
	version := exec.CommandContext(t.Context(), path, "--version")
	version.Env = []string{}
	want := image.Name + " " + release.Version + " (commit " + release.Commit + ", " + runtime.Version() + ")\n"
	if out, err := version.Output(); err != nil || string(out) != want {
		t.Errorf("%s --version: %q (%v), want %q", image.Name, out, err, want)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if root := filepath.Dir(filepath.Dir(wd)); bytes.Contains(read(t, path), []byte(root+"/")) {
		t.Errorf("%s tells of the directory it was built in", image.Name)
	}
}

func checkBill(t *testing.T, path string) {
	t.Helper()
	var bill struct {
		BOMFormat  string `json:"bomFormat"`
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(read(t, path), &bill); err != nil {
		t.Fatal(err)
	}
	if bill.BOMFormat != "CycloneDX" || len(bill.Components) < 2 {
		t.Errorf("%s: format %q, %d components", path, bill.BOMFormat, len(bill.Components))
	}
	for _, c := range bill.Components {
		if c.Version == "" || c.Version == "v0.0.0" || c.PURL != "pkg:golang/"+c.Name+"@"+c.Version {
			t.Errorf("%s: component %+v", path, c)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
