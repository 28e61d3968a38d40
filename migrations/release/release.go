// Package release tells which release a binary is of. It lies beside the migrations, which are of one release as well,
// because all binaries can reach it here.
package release

import (
	"fmt"
	"path"
	"runtime"
	"runtime/debug"
)

// Both are set by the linker (-X), where a release is built.
var (
	version = "dev"
	commit  = ""
)

// Build is what a binary knows of how it was built.
type Build struct {
	Name    string // of the command
	Version string // "dev" for what is no release
	Commit  string // with "-dirty" where the checkout had changes; "unknown" where nobody said
	Go      string // such as go1.26.8
}

// Current is the build of this process.
func Current() Build {
	build := Build{Version: version, Commit: commit, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if ok {
		build.Name = path.Base(info.Path)
	}
	if build.Commit == "" {
		build.Commit = fromCheckout(info)
	}
	return build
}

// fromCheckout is the commit that go build has noted by itself.
func fromCheckout(info *debug.BuildInfo) string {
	if info == nil {
		return "unknown"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	switch revision := settings["vcs.revision"]; {
	case revision == "":
		return "unknown"
	case settings["vcs.modified"] == "true":
		return revision + "-dirty"
	default:
		return revision
	}
}

// String is the answer to --version, such as "sweeper 1.2.0 (commit 0123456, go1.26.8)".
func (b Build) String() string {
	return fmt.Sprintf("%s %s (commit %s, %s)", b.Name, b.Version, b.Commit, b.Go)
}
