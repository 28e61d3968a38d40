// Command images makes the container images of the services, and needs no container engine for it: static binaries, the
// certificates of the public authorities, a user, and nothing else. The same sources, version and Go make the same digests,
// on whatever machine.
//
// Each image is a tarball in the layout of OCI, which docker load, podman load, skopeo and crane read, with a list of what is
// in its binary (CycloneDX) beside it.
//
//	images -version 1.2.0 -commit $(git rev-parse HEAD) -created $(git log -1 --format=%ct) -out .build/images
//	images -rootfs DIR -only ticket-api    # only the files of one image, for a Dockerfile
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	source := flags.String("source", ".", "the checkout")
	out := flags.String("out", ".build/images", "where the tarballs are written")
	rootfs := flags.String("rootfs", "", "write the files of one image into this directory, and no tarball")
	only := flags.String("only", "", "images to make, separated by commas; empty makes all")
	platforms := flags.String("platforms", "linux/amd64", "separated by commas")
	var r Release
	flags.StringVar(&r.Version, "version", "dev", "of the release, in the binaries and in a label")
	flags.StringVar(&r.Commit, "commit", "", "what the release was built from, in the binaries and in a label")
	created := flags.Int64("created", 0, "time of the commit, in seconds since 1970, for a label and every file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.Created = time.Unix(*created, 0).UTC()
	wanted, err := choose(*only)
	if err != nil {
		return err
	}
	builder := Builder{Source: *source, Release: r, Platforms: strings.Split(*platforms, ",")}
	if *rootfs != "" {
		if len(wanted) != 1 || len(builder.Platforms) != 1 {
			return errors.New("-rootfs takes one image, named by -only, and one platform")
		}
		return builder.WriteRootfs(ctx, wanted[0], *rootfs)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil { //nolint:gosec // everybody may read images
		return fmt.Errorf("make the directory of the images: %w", err)
	}
	for _, image := range wanted {
		digest, err := builder.Write(ctx, image, *out)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		fmt.Fprintf(stdout, "%s  %s\n", digest, filepath.Join(*out, image.Name+".tar"))
	}
	return nil
}

func choose(only string) ([]Image, error) {
	if only == "" {
		return Images(), nil
	}
	var wanted []Image
	for name := range strings.SplitSeq(only, ",") {
		found := false
		for _, image := range Images() {
			if image.Name == name {
				wanted, found = append(wanted, image), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no image %q", name)
		}
	}
	return wanted, nil
}
