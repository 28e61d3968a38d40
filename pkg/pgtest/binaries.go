package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// searchPath is where server binaries may lie.
type searchPath struct {
	pgBin   string // $PG_BIN
	path    string // $PATH
	distros string // pattern of the directories in which distributions keep one version beside another
	root    string // the checkout
}

func defaultSearchPath() searchPath {
	return searchPath{
		pgBin:   os.Getenv("PG_BIN"),
		path:    os.Getenv("PATH"),
		distros: "/usr/lib/postgresql/*/bin",
		root:    repositoryRoot(),
	}
}

// find returns the directory of the first Postgres that can be started: $PG_BIN (which, once set, is the only
// candidate), PATH, the newest of the distribution's, then the npm package under the checkout.
func (s searchPath) find() (string, error) {
	if s.pgBin != "" {
		if dir, ok := serverBinaries(s.pgBin); ok {
			return dir, nil
		}
		return "", fmt.Errorf("find Postgres: PG_BIN=%s does not hold initdb, pg_ctl and postgres", s.pgBin)
	}
	var candidates []string
	candidates = append(candidates, filepath.SplitList(s.path)...)
	candidates = append(candidates, newestFirst(s.distros)...)
	npm := npmPackage(runtime.GOOS, runtime.GOARCH)
	for _, modules := range []string{"node_modules", ".build/node_modules"} {
		candidates = append(candidates, filepath.Join(s.root, modules, npm, "native", "bin"))
	}
	for _, candidate := range candidates {
		if candidate == "" {
			continue // in PATH, the working directory
		}
		if dir, ok := serverBinaries(candidate); ok {
			return dir, nil
		}
	}
	return "", fmt.Errorf(`find Postgres: no initdb, pg_ctl and postgres in PATH, %s or the checkout; install one of
  apt-get install postgresql
  npm install --prefix .build %s
or set PG_BIN to the directory of the binaries`, s.distros, npm)
}

// serverBinaries resolves links: Postgres finds its share directory relative to where the binary lies, and
// a link in PATH may stand for only some of the binaries.
func serverBinaries(dir string) (string, bool) {
	postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil {
		return "", false
	}
	dir = filepath.Dir(postgres)
	for _, name := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return "", false
		}
	}
	return dir, true
}

// newestFirst orders by the number that is the last but one element: /usr/lib/postgresql/17/bin.
func newestFirst(pattern string) []string {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	version := func(dir string) float64 {
		v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(dir)), 64)
		return v
	}
	slices.SortStableFunc(dirs, func(a, b string) int {
		switch va, vb := version(a), version(b); {
		case va > vb:
			return -1
		case va < vb:
			return 1
		default:
			return strings.Compare(a, b)
		}
	})
	return dirs
}

func npmPackage(goos, goarch string) string {
	if arch, ok := map[string]string{"amd64": "x64", "386": "ia32", "ppc64le": "ppc64"}[goarch]; ok {
		goarch = arch
	}
	return "@embedded-postgres/" + goos + "-" + goarch
}

// repositoryRoot is the nearest directory upwards with a go.work, "" when there is none.
func repositoryRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}
