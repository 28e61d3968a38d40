package validate_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// compose.yaml follows the specification, and what it tells the services is known to them. No test runs it.
func TestCompose(t *testing.T) {
	t.Parallel()
	help, err := helps()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}},
	}, func(o *loader.Options) { o.SetProjectName("evalonce", true) })
	if err != nil {
		t.Fatal(err)
	}
	for name := range commands {
		service, err := project.GetService(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		known := variable.FindAllString(help[name], -1)
		for v := range service.Environment {
			if !slices.Contains(known, v) && !everybodys.MatchString(v) {
				t.Errorf("%s does not know %s", name, v)
			}
		}
		if arg := service.Build.Args["SERVICE"]; arg == nil || *arg != name {
			t.Errorf("%s is built from SERVICE=%v", name, arg)
		}
	}
	var scraped struct {
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	for name, config := range project.Configs {
		var parsed map[string]any
		if err := yaml.UnmarshalStrict([]byte(config.Content), &parsed); err != nil || len(parsed) == 0 {
			t.Errorf("configuration %s: %v", name, err)
		}
	}
	if err := yaml.Unmarshal([]byte(project.Configs["prometheus"].Content), &scraped); err != nil {
		t.Fatal(err)
	}
	for _, target := range scraped.ScrapeConfigs[0].StaticConfigs[0].Targets {
		name, port, _ := strings.Cut(target, ":")
		if address := defaultOf(t, help[name], "EVALONCE_HEALTH_ADDRESS"); address != ":"+port {
			t.Errorf("Prometheus asks %s, which serves at %s", target, address)
		}
	}
}
