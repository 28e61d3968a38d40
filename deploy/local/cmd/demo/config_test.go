package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/ticketfile"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		args, environ []string
		provider      *stack.Endpoint
		keyWithout    bool
		wrong         string
	}{
		{name: "nothing"},
		{name: "a key alone sends nothing anywhere", environ: []string{"OPENAI_API_KEY=k"}, keyWithout: true},
		{
			name: "a key and a model", args: []string{"--model=m"}, environ: []string{"OPENAI_API_KEY=k"},
			provider: &stack.Endpoint{BaseURL: "https://api.openai.com/v1", APIKey: "k"},
		},
		{
			name: "an endpoint and a model", args: []string{"--model=m"}, environ: []string{"OPENAI_BASE_URL=http://localhost:11434/v1"},
			provider: &stack.Endpoint{BaseURL: "http://localhost:11434/v1"},
		},
		{name: "a model alone", args: []string{"--model=m"}, wrong: "OPENAI_API_KEY"},
		{name: "no URL", args: []string{"--model=m"}, environ: []string{"OPENAI_BASE_URL=localhost"}, wrong: "OPENAI_BASE_URL"},
		{name: "two prices", args: []string{"--prices=1,2"}, wrong: "three prices"},
		{name: "no price", args: []string{"--prices=1,2,x"}, wrong: `"x" is no price`},
		{name: "unknown", args: []string{"--fast"}, wrong: "fast"},
		{name: "superfluous", args: []string{"tickets.jsonl"}, wrong: "tickets.jsonl"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg, err := parse(test.args, test.environ, "/checkout")
			if test.wrong != "" {
				if !errors.Is(err, process.ErrUsage) || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (cfg.provider == nil) != (test.provider == nil) || (cfg.provider != nil && *cfg.provider != *test.provider) || cfg.keyWithout != test.keyWithout {
				t.Errorf("got %+v, %+v", cfg, cfg.provider)
			}
			if !cfg.ownTickets || cfg.ticketFile != "/checkout/deploy/local/tickets/demo.jsonl" || cfg.truth != "department" {
				t.Errorf("got %+v", cfg)
			}
		})
	}
	if _, err := parse([]string{"--help"}, nil, "/"); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
}

func planOf(t *testing.T, tickets string, args ...string) (job, error) {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tickets.jsonl")
	if err := os.WriteFile(path, []byte(tickets), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse(append(args, "--tickets="+path), []string{"OPENAI_API_KEY=k"}, root)
	if err != nil {
		t.Fatal(err)
	}
	return plan(cfg)
}

func TestPlan(t *testing.T) {
	t.Parallel()
	names := func(j job) string { return strings.Join(departmentNames(j.version), " ") }

	j, err := planOf(t, `{"message": "a"}`+"\n"+`{"message": "a\r\n", "intent": "x"}`)
	if err != nil {
		t.Fatal(err)
	}
	if j.distinct != 1 || j.judged != 0 || len(j.version.GetDepartments()) != 6 || strings.Join(j.ignored, " ") != "intent" {
		t.Errorf("without a truth: %+v", j)
	}
	own := names(j)

	// Departments that the version knows keep what it says of them.
	j, err = planOf(t, `{"message": "a", "department": "BILLING"}`)
	if err != nil || names(j) != own {
		t.Errorf("got %s, %v", names(j), err)
	}

	j, err = planOf(t, `{"message": "a", "department": "debt_collection"}`+"\n"+`{"message": "b", "department": "Billing"}`+"\n"+`{"message": "c", "department": "billing"}`)
	if err != nil || names(j) != "Billing debt_collection" || j.version.GetDepartments()[1].GetDescription() != "debt collection" || j.judged != 3 {
		t.Errorf("got %+v, %v", j.version.GetDepartments(), err)
	}
	if j.prices.OutputUSDPerMTok.IsZero() {
		t.Error("the version has no prices")
	}

	// The prices of one model say nothing of another.
	j, err = planOf(t, `{"message": "a"}`, "--model=m")
	if err != nil || j.version.GetModel() != "m" || !j.prices.OutputUSDPerMTok.IsZero() {
		t.Errorf("got %+v, %v", j.version, err)
	}
	j, err = planOf(t, `{"message": "a"}`, "--model=m", "--prices=1, 0.5,2")
	if err != nil || j.prices.CachedInputUSDPerMTok.String() != "0.5" || j.prices.OutputUSDPerMTok.String() != "2" {
		t.Errorf("got %+v, %v", j.version.Prices, err)
	}

	var many strings.Builder
	for i := range 201 {
		many.WriteString(`{"message": "a", "department": "d` + strings.Repeat("x", i) + `"}` + "\n")
	}
	if _, err = planOf(t, many.String()); err == nil || !strings.Contains(err.Error(), "201 different departments") {
		t.Errorf("got %v", err)
	}
	if _, err = planOf(t, `{"message": "a\u0000"}`); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("got %v", err)
	}
}

// What is shipped is what the demo runs on without any argument.
func TestPlanOfTheDemosOwnTickets(t *testing.T) {
	t.Parallel()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := parse(nil, nil, root)
	if err != nil {
		t.Fatal(err)
	}
	j, err := plan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if j.judged != len(j.tickets) || len(j.version.GetDepartments()) != 6 || j.version.GetDepartments()[0].GetDescription() == humanise(j.version.GetDepartments()[0].GetName()) {
		t.Errorf("got %d of %d judged, %+v", j.judged, len(j.tickets), j.version.GetDepartments())
	}
	if cfg.truth != ticketfile.TruthColumn || j.prices.OutputUSDPerMTok.IsZero() {
		t.Errorf("got %+v", j.version)
	}
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:secret@h:1/d?sslmode=disable":          "postgres://u@h:1/d?sslmode=disable",
		"postgres://u@h/d?password=secret&sslmode=disable":   "postgres://u@h/d?sslmode=disable",
		"host=h user=u password=secret dbname=evalonce_demo": "host=h user=u dbname=evalonce_demo",
	} {
		if got := withoutPassword(address); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestOnlyOneDemoAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "build", "demo")
	unlock, err := prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "left")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(dir); err == nil {
		t.Error("a second demo took the directory of the first")
	}
	if _, err := os.Stat(left); err != nil {
		t.Errorf("the second demo removed what the first needs: %v", err)
	}
	unlock()
	if unlock, err = prepare(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the last demo left is still there: %v", err)
	}
}
