package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

func load(t *testing.T, environ ...string) Config {
	t.Helper()
	c, err := config.Load[Config](append(environ, "EVALONCE_DATABASE_URL=postgres://db"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A provider without credentials is absent, so that its versions wait for an operator; servers that speak OpenAI's
// protocols may want none.
func TestProviders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environ []string
		want    []string
	}{
		{nil, []string{"openai", "openai_responses"}},
		{[]string{"EVALONCE_ANTHROPIC_BASE_URL=https://gateway.example"}, []string{"openai", "openai_responses"}},
		{[]string{"EVALONCE_ANTHROPIC_API_KEY=sk-ant"}, []string{"anthropic", "openai", "openai_responses"}},
	} {
		providers, err := load(t, tt.environ...).providers()
		if got := slices.Sorted(maps.Keys(providers)); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%q: providers are %q, %v", tt.environ, got, err)
		}
	}
}

func TestProvidersRefused(t *testing.T) {
	t.Parallel()
	const secret = "sentinel"
	for _, setting := range []string{
		"EVALONCE_OPENAI_BASE_URL=" + secret, "EVALONCE_OPENAI_API_KEY=a " + secret, "EVALONCE_OPENAI_PROXY_URL=" + secret,
		"EVALONCE_ANTHROPIC_BASE_URL=" + secret, "EVALONCE_ANTHROPIC_API_KEY=a " + secret, "EVALONCE_ANTHROPIC_PROXY_URL=" + secret,
	} {
		if _, err := load(t, setting).providers(); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

// Who runs the worker in its own process, as the benchmark does, gets what the service does.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c := load(t)
	if c.Concurrency != evaluate.DefaultConcurrency || c.Lease != evaluate.DefaultLease || c.PollInterval != evaluate.DefaultPollInterval {
		t.Errorf("defaults are %d, %v, %v", c.Concurrency, c.Lease, c.PollInterval)
	}
}
