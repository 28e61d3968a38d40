package main

import (
	"errors"
	"net/netip"
	"time"

	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// Config is the whole configuration, from the environment.
type Config struct {
	DatabaseURL       string        `env:"EVALONCE_DATABASE_URL,required,notEmpty" secret:"true" help:"Postgres, as URL or key=value string"`
	DirectDatabaseURL string        `env:"EVALONCE_DIRECT_DATABASE_URL" secret:"true" help:"Postgres without a pooler between, for LISTEN; defaults to the database URL, and where a pooler answers there to polling alone"`
	Listen            bool          `env:"EVALONCE_LISTEN" envDefault:"true" help:"wake up on NOTIFY; without it new work is found by polling alone"`
	Routes            []string      `env:"EVALONCE_ROUTES" help:"provider routes to serve, comma-separated; empty serves all"`
	Concurrency       int           `env:"EVALONCE_CONCURRENCY" envDefault:"1000" help:"calls in flight for each route"`
	Lease             time.Duration `env:"EVALONCE_LEASE" envDefault:"90s" help:"how long work stays with a worker that gives no sign of life; longer than the routes' call timeouts"`
	PollInterval      time.Duration `env:"EVALONCE_POLL_INTERVAL" envDefault:"1s" help:"how often an idle worker looks for work"`
	ShutdownGrace     time.Duration `env:"EVALONCE_SHUTDOWN_GRACE" envDefault:"75s" help:"how long running calls may go on once the worker is told to stop"`
	OpenAIBaseURL     string        `env:"EVALONCE_OPENAI_BASE_URL" envDefault:"https://api.openai.com/v1" help:"any endpoint that speaks OpenAI's chat completions or responses"`
	OpenAIAPIKey      string        `env:"EVALONCE_OPENAI_API_KEY" secret:"true" help:"sent as bearer token; empty sends none"`
	OpenAIProxyURL    string        `env:"EVALONCE_OPENAI_PROXY_URL" secret:"true" help:"HTTP proxy towards the provider; empty connects directly"`
	AnthropicBaseURL  string        `env:"EVALONCE_ANTHROPIC_BASE_URL" envDefault:"https://api.anthropic.com" help:"any endpoint that speaks Anthropic's messages, without the /v1"`
	AnthropicAPIKey   string        `env:"EVALONCE_ANTHROPIC_API_KEY" secret:"true" help:"sent as x-api-key; without one, versions for Anthropic wait, and their routes halt"`
	AnthropicProxyURL string        `env:"EVALONCE_ANTHROPIC_PROXY_URL" secret:"true" help:"HTTP proxy towards Anthropic; empty connects directly"`

	WebhookKeys                webhook.Keyring `env:"EVALONCE_WEBHOOK_KEYS" secret:"true" help:"name=key[,name=key...], the keys of webhook secrets: 32 bytes in base64; the first seals, all open; the same as ticket-api's. Without any, webhooks are kept and not sent"`
	WebhookAllowHTTP           bool            `env:"EVALONCE_WEBHOOK_ALLOW_HTTP" envDefault:"false" help:"send webhooks without TLS, too, where the endpoint's URL says so"`
	WebhookAllowNetworks       []netip.Prefix  `env:"EVALONCE_WEBHOOK_ALLOW_NETWORKS" help:"networks that webhooks may be sent to although they are no public ones, as CIDR, comma-separated"`
	WebhookConcurrency         int             `env:"EVALONCE_WEBHOOK_CONCURRENCY" envDefault:"256" help:"webhook requests under way"`
	WebhookEndpointConcurrency int             `env:"EVALONCE_WEBHOOK_ENDPOINT_CONCURRENCY" envDefault:"16" help:"of them to one endpoint, by all workers together"`

	HealthAddress string `env:"EVALONCE_HEALTH_ADDRESS" envDefault:":8082" help:"serves /healthz, /readyz and /metrics, without credentials; empty serves none of them"`
}

// Validate reports all that is wrong at once.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New(problem))
		}
	}
	check(c.Concurrency >= 1 && c.Concurrency <= 10_000, "EVALONCE_CONCURRENCY must be from 1 to 10000")
	check(c.Lease >= time.Second, "EVALONCE_LEASE must be at least 1s")
	check(c.PollInterval >= 10*time.Millisecond, "EVALONCE_POLL_INTERVAL must be at least 10ms")
	check(c.WebhookConcurrency >= 1 && c.WebhookConcurrency <= 10_000, "EVALONCE_WEBHOOK_CONCURRENCY must be from 1 to 10000")
	check(c.WebhookEndpointConcurrency >= 1 && c.WebhookEndpointConcurrency <= 1000, "EVALONCE_WEBHOOK_ENDPOINT_CONCURRENCY must be from 1 to 1000")
	check(c.ShutdownGrace >= 0, "EVALONCE_SHUTDOWN_GRACE must not be negative")
	return errors.Join(problems...)
}

// providers are those that can be asked, by the names that versions give them. OpenAI's protocols are spoken by servers
// that want no key; Anthropic's without a key is not asked at all.
func (c Config) providers() (map[string]evaluate.Provider, error) {
	openai := inference.Config{BaseURL: c.OpenAIBaseURL, APIKey: c.OpenAIAPIKey, ProxyURL: c.OpenAIProxyURL}
	anthropic := inference.Config{BaseURL: c.AnthropicBaseURL, APIKey: c.AnthropicAPIKey, ProxyURL: c.AnthropicProxyURL}
	providers := map[string]evaluate.Provider{}
	for _, p := range []struct {
		name   string
		make   func(inference.Config) (*inference.Client, error)
		config inference.Config
		usable bool
	}{
		{"openai", inference.NewOpenAI, openai, true},
		{"openai_responses", inference.NewOpenAIResponses, openai, true},
		{"anthropic", inference.NewAnthropic, anthropic, anthropic.APIKey != ""},
	} {
		client, err := p.make(p.config)
		if err != nil {
			return nil, err
		}
		if p.usable {
			providers[p.name] = client
		}
	}
	return providers, nil
}
