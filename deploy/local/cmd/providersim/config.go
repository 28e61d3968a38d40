package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// Config is the whole configuration, from the environment.
type Config struct {
	Address               string          `env:"EVALONCE_PROVIDERSIM_ADDRESS" envDefault:"127.0.0.1:8089" help:"where to serve, both as a provider and the control interface"`
	Seed                  uint64          `env:"EVALONCE_PROVIDERSIM_SEED" envDefault:"1" help:"decides every drawn fault, latency and id"`
	APIKeys               []string        `env:"EVALONCE_PROVIDERSIM_API_KEYS" secret:"true" help:"accepted keys, comma-separated; empty accepts any"`
	Models                []string        `env:"EVALONCE_PROVIDERSIM_MODELS" help:"models that exist, comma-separated; empty: every one does"`
	ServedSuffix          string          `env:"EVALONCE_PROVIDERSIM_SERVED_SUFFIX" envDefault:"-2026-01-01" help:"added to a model's name to name the one that served"`
	LatencyMin            time.Duration   `env:"EVALONCE_PROVIDERSIM_LATENCY_MIN" envDefault:"0s" help:"the shortest time an answer takes"`
	LatencyMax            time.Duration   `env:"EVALONCE_PROVIDERSIM_LATENCY_MAX" envDefault:"0s" help:"the longest time an answer takes; times between are drawn evenly"`
	RequestsPerMinute     int             `env:"EVALONCE_PROVIDERSIM_REQUESTS_PER_MINUTE" envDefault:"0" help:"limit of the account; 0 sets none"`
	TokensPerMinute       int             `env:"EVALONCE_PROVIDERSIM_TOKENS_PER_MINUTE" envDefault:"0" help:"limit of the account, of input tokens; 0 sets none"`
	Concurrent            int             `env:"EVALONCE_PROVIDERSIM_CONCURRENT" envDefault:"0" help:"requests at the same time; 0 sets no limit"`
	InputUSDPerMTok       decimal.Decimal `env:"EVALONCE_PROVIDERSIM_INPUT_USD_PER_MTOK" envDefault:"0.25" help:"price of a million input tokens in US dollars"`
	CachedInputUSDPerMTok decimal.Decimal `env:"EVALONCE_PROVIDERSIM_CACHED_INPUT_USD_PER_MTOK" envDefault:"0.025" help:"price of a million input tokens that were cached, in US dollars"`
	OutputUSDPerMTok      decimal.Decimal `env:"EVALONCE_PROVIDERSIM_OUTPUT_USD_PER_MTOK" envDefault:"2" help:"price of a million output tokens in US dollars"`
	Script                string          `env:"EVALONCE_PROVIDERSIM_SCRIPT" help:"path of a JSON file with the rules to begin with; empty: no faults"`
}

// Validate reports all that is wrong at once.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New(problem))
		}
	}
	check(c.LatencyMin >= 0 && c.LatencyMax >= c.LatencyMin, "EVALONCE_PROVIDERSIM_LATENCY_MAX must not be below _MIN, nor that below 0")
	check(c.RequestsPerMinute >= 0 && c.TokensPerMinute >= 0 && c.Concurrent >= 0, "limits must not be negative")
	check(!c.InputUSDPerMTok.IsNegative() && !c.CachedInputUSDPerMTok.IsNegative() && !c.OutputUSDPerMTok.IsNegative(), "prices must not be negative")
	return errors.Join(problems...)
}

// options reads the script, too.
func (c Config) options() (providersim.Options, error) {
	o := providersim.Options{
		Seed: c.Seed, APIKeys: c.APIKeys, Models: c.Models, ServedSuffix: c.ServedSuffix,
		Latency: providersim.Latency{Min: c.LatencyMin, Max: c.LatencyMax},
		Limits:  providersim.Limits{RequestsPerMinute: c.RequestsPerMinute, TokensPerMinute: c.TokensPerMinute, Concurrent: c.Concurrent},
		Prices: providersim.Prices{
			InputUSDPerMTok: c.InputUSDPerMTok, CachedInputUSDPerMTok: c.CachedInputUSDPerMTok, OutputUSDPerMTok: c.OutputUSDPerMTok,
		},
	}
	if c.Script == "" {
		return o, nil
	}
	data, err := os.ReadFile(c.Script)
	if err != nil {
		return o, fmt.Errorf("read script: %w: %w", process.ErrUsage, err)
	}
	if o.Script, err = providersim.ParseRules(data); err != nil {
		return o, fmt.Errorf("script %s: %w: %w", c.Script, process.ErrUsage, err)
	}
	return o, nil
}
