package metrics_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/evalonce/evalonce/pkg/metrics"
)

// rules are alerts as Prometheus reads them.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func deploy(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "deploy"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	selector = regexp.MustCompile(`\b((?:evalonce|rpc)_\w+)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]+)\)`)
	heading  = regexp.MustCompile(`(?m)^## (.+)$`)
)

// What alerts ask for is what is measured, label by label; each has its section in the runbook, and both kinds of tests.
func TestAlertsAskForWhatIsMeasured(t *testing.T) {
	t.Parallel()
	var all rules
	if err := yaml.Unmarshal([]byte(deploy(t, "prometheus", "rules.yaml")), &all); err != nil {
		t.Fatal(err)
	}
	tests := deploy(t, "prometheus", "rules_test.yaml")
	sections := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(deploy(t, "RUNBOOK.md"), -1) {
		sections[strings.ReplaceAll(strings.ToLower(h[1]), " ", "-")] = true
	}
	known, labels := map[string]metrics.Metric{}, map[string]bool{"le": true}
	for _, m := range metrics.Catalogue() {
		for _, series := range m.Series() {
			known[series] = m
		}
		for _, l := range m.Labels {
			labels[l.Name] = true
		}
	}
	linked, alerts := map[string]bool{}, 0
	for _, group := range all.Groups {
		for _, r := range group.Rules {
			alerts++
			url, section, _ := strings.Cut(r.Annotations["runbook_url"], "#")
			if !strings.HasSuffix(url, "/deploy/RUNBOOK.md") || !sections[section] {
				t.Errorf("%s has no section in the runbook: %s", r.Alert, r.Annotations["runbook_url"])
			}
			linked[section] = true
			if s := r.Labels["severity"]; r.Annotations["summary"] == "" || s != "page" && s != "ticket" {
				t.Errorf("%s has severity %q and summary %q", r.Alert, s, r.Annotations["summary"])
			}
			fires := regexp.MustCompile(`alertname: ` + r.Alert + `\n\s+eval_time: \S+\n\s+exp_alerts:\n`).MatchString(tests)
			silent := strings.Contains(tests, "{alertname: "+r.Alert+", ")
			if !fires || !silent {
				t.Errorf("%s is not tested: fires %t, is silent %t", r.Alert, fires, silent)
			}
			for _, by := range grouping.FindAllStringSubmatch(r.Expr, -1) {
				for _, name := range strings.Split(by[1], ", ") {
					if !labels[name] {
						t.Errorf("%s groups by %s, which no metric has", r.Alert, name)
					}
				}
			}
			asked := selector.FindAllStringSubmatch(r.Expr, -1)
			if len(asked) == 0 {
				t.Errorf("%s asks for nothing", r.Alert)
			}
			for _, s := range asked {
				m, ok := known[s[1]]
				if !ok {
					t.Errorf("%s asks for %s, which nobody measures", r.Alert, s[1])
					continue
				}
				for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
					label, ok := m.Label(l[1])
					if !ok {
						t.Errorf("%s asks for label %s of %s", r.Alert, l[1], s[1])
					}
					for _, value := range strings.Split(l[3], "|") {
						if !label.Has(value) {
							t.Errorf("%s asks for %s=%q of %s, which it never has", r.Alert, l[1], value, s[1])
						}
					}
				}
			}
		}
	}
	if alerts < 20 {
		t.Errorf("only %d alerts are there", alerts)
	}
	for section := range sections {
		if !linked[section] {
			t.Errorf("section %s of the runbook belongs to no alert", section)
		}
	}
}
