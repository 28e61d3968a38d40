package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Everything that the benchmark does, at a size that says nothing: every row is measured, and what is written for
// machines is what was measured.
func TestWholeBenchmark(t *testing.T) {
	t.Parallel()
	bin, err := stack.BuildInto(t.Context(), "test-bin", nil, "./services/ticket-api", "./services/admin", "./services/evaluator-worker/cmd/bench-worker")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	opts := options{bin: bin, dir: dir, figures: filepath.Join(dir, "bench.json"), scale: 0.0001, rounds: 1, settings: bed.Settings()}
	opts.settings["fsync"] = "off" // what is measured here says nothing, and is not to keep the disk busy
	var progress bytes.Buffer
	report, err := measure(t.Context(), opts, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	t.Log(progress.String())
	groups := map[string]bool{}
	for _, r := range report.Rows {
		groups[r.Group] = true
		if r.Value == nil || *r.Value <= 0 {
			t.Errorf("%s: not measured", r.Name)
		}
		if (r.Against == nil) != (r.Ratio == nil) {
			t.Errorf("%s: against %+v, ratio %v", r.Name, r.Against, r.Ratio)
		}
		if (r.Must == "") != (r.Reached == nil) {
			t.Errorf("%s: must %q, reached %v", r.Name, r.Must, r.Reached)
		}
	}
	for name := range strings.SplitSeq("drain create duplicates snapshot backlog claims pickup reprocess beside memory", " ") {
		if !groups[name] {
			t.Errorf("no rows of %s", name)
		}
		if !strings.Contains(usage, name) {
			t.Errorf("the usage does not tell of %s", name)
		}
		if !strings.Contains(progress.String(), name+" 1/1") {
			t.Errorf("the progress does not tell of %s", name)
		}
		delete(groups, name)
	}
	if len(groups) > 0 {
		t.Errorf("rows that nobody knows of: %v", groups)
	}
	if m := report.Machine; m.Cores == 0 || m.FsyncsPerSec <= 0 || m.Postgres == "" || m.Settings["fsync"] != "off" || m.Settings["synchronous_commit"] != "on" {
		t.Errorf("the machine is %+v", m)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's data are still there: %v", err)
	}

	if err := report.WriteJSON(opts.figures); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(opts.figures)
	if err != nil {
		t.Fatal(err)
	}
	var written harness.Report
	if err := json.Unmarshal(data, &written); err != nil || len(written.Rows) != len(report.Rows) || written.Rows[0].Name != report.Rows[0].Name {
		t.Errorf("written for machines: %v\n%s", err, data)
	}
	var table bytes.Buffer
	report.WriteTable(&table)
	for _, r := range report.Rows {
		if !strings.Contains(table.String(), r.Name) {
			t.Errorf("the table has no row %q:\n%s", r.Name, &table)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	opts, err := parse([]string{"--rows=drain,create", "--scale=0.01", "--rounds=2", "--strict"}, "/checkout", &bytes.Buffer{})
	if err != nil || len(opts.rows) != 2 || opts.scale != 0.01 || opts.rounds != 2 || !opts.strict || opts.settings["fsync"] != "on" || opts.figures != "/checkout/.build/bench.json" {
		t.Errorf("got %+v, %v", opts, err)
	}
	if opts.fsyncProbe() != 20*time.Millisecond {
		t.Errorf("the disk is probed for %s", opts.fsyncProbe())
	}
	for _, args := range [][]string{{"--scale=0"}, {"--scale=2"}, {"--rounds=-1"}, {"--fast"}, {"drain"}} {
		if _, err := parse(args, "/checkout", &bytes.Buffer{}); !errors.Is(err, process.ErrUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	var help bytes.Buffer
	if _, err := parse([]string{"--help"}, "/checkout", &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "--scale") {
		t.Errorf("got %v and %s", err, &help)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all := []harness.Group{{Name: "drain"}, {Name: "create"}, {Name: "claims"}}
	for names, want := range map[string]int{"": 3, "claims drain": 2} {
		if got, err := choose(all, strings.Fields(names)); err != nil || len(got) != want || got[0].Name != "drain" {
			t.Errorf("%q: %v, %v", names, got, err)
		}
	}
	if _, err := choose(all, []string{"everything"}); !errors.Is(err, process.ErrUsage) || !strings.Contains(err.Error(), "claims") {
		t.Errorf("got %v", err)
	}
}
