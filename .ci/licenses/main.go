// Command licenses says under which licences the modules are that given packages are linked with, and fails when one of
// them is not permissive, or not recognised.
//
//	licenses PACKAGE...
//
// It asks the go command for the packages' modules, and reads the licence texts in their directories.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/licensecheck"
)

// permissive are the licences that ask for no more than to be named.
var permissive = []string{
	"0BSD", "Apache-2.0", "BSD-1-Clause", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "MITNFA",
	"PostgreSQL", "Unicode-DFS-2016", "Unlicense", "Zlib",
}

// recognised is the least part of a licence's text, in percent, that must be known.
const recognised = 75

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "licenses: %v\n", err)
		os.Exit(1)
	}
}

func run(packages []string) error {
	modules, err := linked(packages)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	var problems []error
	for _, m := range modules {
		found, err := licencesOf(m.dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
		verdict := ""
		switch {
		case len(found) == 0:
			verdict = "no licence is recognised"
		case slices.ContainsFunc(found, func(l string) bool { return !slices.Contains(permissive, l) }):
			verdict = "not permissive"
		}
		if verdict != "" {
			problems = append(problems, fmt.Errorf("%s %s: %s: %s", m.path, m.version, verdict, strings.Join(found, ", ")))
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", m.path, m.version, strings.Join(found, ", "), verdict)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if len(modules) == 0 {
		return errors.New("the packages are linked with no module of others: that is no answer")
	}
	return errors.Join(problems...)
}

type module struct{ path, version, dir string }

// linked are the modules, other than those of the workspace, that have a package which the given ones are built with.
func linked(packages []string) ([]module, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{if .Version}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}{{end}}"}, packages...)...)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages' modules: %w", err)
	}
	var modules []module
	lines := bufio.NewScanner(strings.NewReader(string(output)))
	for lines.Scan() {
		if fields := strings.Split(lines.Text(), "\t"); len(fields) == 3 {
			modules = append(modules, module{fields[0], fields[1], fields[2]})
		}
	}
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return slices.Compact(modules), lines.Err()
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|unlicense|mit-license)([.\-_].*)?$`)

// licencesOf are the SPDX names of the licences in a module's directory.
func licencesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if entry.IsDir() || !licenceFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		coverage := licensecheck.Scan(text)
		if coverage.Percent < recognised {
			continue
		}
		for _, match := range coverage.Match {
			if !slices.Contains(found, match.ID) {
				found = append(found, match.ID)
			}
		}
	}
	slices.Sort(found)
	return found, nil
}
