// Command vulndb makes of the Go vulnerability database's reports, a directory of OSV files as the module
// golang.org/x/vulndb has it, a database that govulncheck reads without a network.
//
//	vulndb REPORTS DATABASE
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

type report struct {
	ID       string `json:"id"`
	Modified string `json:"modified"`
	Affected []struct {
		Package struct {
			Name string `json:"name"`
		} `json:"package"`
	} `json:"affected"`
}

// entry is one report in a module's part of the index.
type entry struct {
	ID       string `json:"id"`
	Modified string `json:"modified"`
}

type module struct {
	Path  string  `json:"path"`
	Vulns []entry `json:"vulns"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: vulndb REPORTS DATABASE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "vulndb: %v\n", err)
		os.Exit(1)
	}
}

func run(reports, database string) error {
	for _, dir := range []string{"ID", "index"} {
		if err := os.MkdirAll(filepath.Join(database, dir), 0o755); err != nil {
			return err
		}
	}
	paths, err := filepath.Glob(filepath.Join(reports, "*.json"))
	if err != nil || len(paths) == 0 {
		return errors.Join(fmt.Errorf("%s has no reports", reports), err)
	}
	newest := ""
	at := map[string]int{}
	modules := []module{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var r report
		if err := json.Unmarshal(content, &r); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		newest = max(newest, r.Modified)
		if err := os.WriteFile(filepath.Join(database, "ID", r.ID+".json"), content, 0o644); err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, a := range r.Affected {
			name := a.Package.Name
			if seen[name] {
				continue
			}
			seen[name] = true
			if _, known := at[name]; !known {
				at[name] = len(modules)
				modules = append(modules, module{Path: name})
			}
			modules[at[name]].Vulns = append(modules[at[name]].Vulns, entry{ID: r.ID, Modified: r.Modified})
		}
	}
	last := strings.TrimSuffix(filepath.Base(paths[len(paths)-1]), ".json") // what was modified when, the module leaves out
	fmt.Printf("%d reports on %d modules, the last %s\n", len(paths), len(modules), last)
	for name, part := range map[string]any{"db.json": map[string]string{"modified": newest}, "modules.json": modules} {
		content, err := json.Marshal(part)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(database, "index", name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
