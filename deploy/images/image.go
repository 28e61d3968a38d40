package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Release is what the images tell of themselves.
type Release struct {
	Version string
	Commit  string
	Created time.Time // of the commit, not of the build
}

// Builder makes images of a checkout.
type Builder struct {
	Source    string
	Release   Release
	Platforms []string
}

// Write writes NAME.tar and, for each platform, NAME-linux-amd64.cdx.json, and returns the digest: of the image, or of the
// index where there is more than one platform.
func (b Builder) Write(ctx context.Context, image Image, dir string) (v1.Hash, error) {
	var none v1.Hash
	images := make([]v1.Image, 0, len(b.Platforms))
	for _, platform := range b.Platforms {
		files, err := b.files(ctx, image, platform)
		if err != nil {
			return none, err
		}
		built, err := b.assemble(image, platform, files)
		if err != nil {
			return none, err
		}
		images = append(images, built)
		if err := b.writeBill(image, platform, files[len(files)-1].content, dir); err != nil {
			return none, err
		}
	}
	name := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "evalonce/" + image.Name + ":" + b.Release.Version})
	temporary, err := os.MkdirTemp(dir, ".layout-")
	if err != nil {
		return none, fmt.Errorf("make a directory for the layout: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	store, err := layout.Write(temporary, empty.Index)
	if err != nil {
		return none, fmt.Errorf("write the layout: %w", err)
	}
	var digest v1.Hash
	if len(images) == 1 {
		if err := store.AppendImage(images[0], name); err != nil {
			return none, fmt.Errorf("write the layout: %w", err)
		}
		digest, err = images[0].Digest()
	} else {
		index, err := combine(images)
		if err != nil {
			return none, err
		}
		if err := store.AppendIndex(index, name); err != nil {
			return none, fmt.Errorf("write the layout: %w", err)
		}
		if digest, err = index.Digest(); err != nil {
			return none, fmt.Errorf("compute the digest: %w", err)
		}
	}
	if err != nil {
		return none, fmt.Errorf("compute the digest: %w", err)
	}
	return digest, b.pack(temporary, filepath.Join(dir, image.Name+".tar"))
}

// combine makes an index of the images of several platforms.
func combine(images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, built := range images {
		config, err := built.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: built, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return index, nil
}

func (b Builder) assemble(image Image, platform string, files []file) (v1.Image, error) {
	var content bytes.Buffer
	if err := b.writeTar(&content, files); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	built, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: b.Release.Created}, CreatedBy: "deploy/images",
	}})
	if err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}
	parsed, err := v1.ParsePlatform(platform)
	if err != nil {
		return nil, fmt.Errorf("platform %q: %w", platform, err)
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	config = config.DeepCopy()
	config.Created = v1.Time{Time: b.Release.Created}
	config.OS, config.Architecture, config.Variant = parsed.OS, parsed.Architecture, parsed.Variant
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user), Entrypoint: []string{"/" + image.Name}, WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":       "evalonce/" + image.Name,
			"org.opencontainers.image.description": image.About,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      "https://github.com/evalonce/evalonce",
			"org.opencontainers.image.version":     b.Release.Version,
			"org.opencontainers.image.revision":    b.Release.Commit,
			"org.opencontainers.image.created":     b.Release.Created.Format(time.RFC3339),
		},
	}
	return mutate.ConfigFile(built, config)
}

// writeTar stores each file after its directories, all of them root's and of the time of the commit.
func (b Builder) writeTar(w io.Writer, files []file) error {
	archive := tar.NewWriter(w)
	made := map[string]bool{".": true}
	for _, f := range files {
		var missing []string
		for dir := path.Dir(f.path); !made[dir]; dir = path.Dir(dir) {
			missing, made[dir] = append(missing, dir), true
		}
		slices.Reverse(missing)
		for _, dir := range missing {
			header := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o555, ModTime: b.Release.Created, Format: tar.FormatPAX}
			if err := archive.WriteHeader(header); err != nil {
				return fmt.Errorf("store %s: %w", dir, err)
			}
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content)), ModTime: b.Release.Created, Format: tar.FormatPAX,
		}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("store %s: %w", f.path, err)
		}
		if _, err := archive.Write(f.content); err != nil {
			return fmt.Errorf("store %s: %w", f.path, err)
		}
	}
	return archive.Close()
}

// pack makes one file of a directory, the same one whenever it has the same content.
func (b Builder) pack(dir, target string) error {
	var files []file
	layoutFiles := os.DirFS(dir)
	err := fs.WalkDir(layoutFiles, ".", func(name string, entry fs.DirEntry, err error) error { // in lexical order
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(layoutFiles, name)
		files = append(files, file{name, readable, content})
		return err
	})
	if err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}
	var packed bytes.Buffer
	if err := b.writeTar(&packed, files); err != nil {
		return err
	}
	// Whoever reads the old one goes on reading it.
	temporary := target + ".new"
	if err := os.WriteFile(temporary, packed.Bytes(), 0o644); err != nil { //nolint:gosec // everybody may read images
		return fmt.Errorf("write the tarball: %w", err)
	}
	return os.Rename(temporary, target)
}
