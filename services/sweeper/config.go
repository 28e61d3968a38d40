package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// Config is everything that can be set.
type Config struct {
	DatabaseURL       string        `env:"EVALONCE_DATABASE_URL,required" secret:"true" help:"Postgres, as URL or key=value string"`
	Interval          time.Duration `env:"EVALONCE_INTERVAL" envDefault:"0s" help:"pause between two sweeps; 0 sweeps once and exits"`
	ReconcileWindow   time.Duration `env:"EVALONCE_RECONCILE_WINDOW" envDefault:"48h" help:"age up to which tickets without work or result are looked for"`
	ReconcileAll      bool          `env:"EVALONCE_RECONCILE_ALL" envDefault:"false" help:"look at all tickets, whatever their age"`
	ResponseRetention time.Duration `env:"EVALONCE_RESPONSE_RETENTION" envDefault:"2160h" help:"how long raw responses of the model are kept; 0 keeps them for ever"`
	TicketRetention   time.Duration `env:"EVALONCE_TICKET_RETENTION" envDefault:"0s" help:"age at which the text of tickets is erased, with the raw responses to it; 0 keeps it for ever"`
	WebhookRetention  time.Duration `env:"EVALONCE_WEBHOOK_RETENTION" envDefault:"720h" help:"how long the bodies of webhooks are kept, to be delivered again; 0 keeps them for ever"`
	Fsck              bool          `env:"EVALONCE_FSCK" envDefault:"false" help:"check every promise at the end of a sweep, by reading all tables"`
	FsckTimeout       time.Duration `env:"EVALONCE_FSCK_TIMEOUT" envDefault:"10m" help:"longest time of one check"`
}

// Validate reports all that is wrong at once.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, problem string) {
		if !ok {
			problems = append(problems, errors.New(problem))
		}
	}
	check(c.Interval == 0 || c.Interval >= time.Second, "EVALONCE_INTERVAL must be 0 or at least 1s")
	check(c.ReconcileWindow > 0, "EVALONCE_RECONCILE_WINDOW must be positive: EVALONCE_RECONCILE_ALL looks at all tickets")
	check(c.ResponseRetention == 0 || c.ResponseRetention >= erasure.Least, "EVALONCE_RESPONSE_RETENTION must be 0 or at least 24h")
	check(c.TicketRetention == 0 || c.TicketRetention >= erasure.Least, "EVALONCE_TICKET_RETENTION must be 0 or at least 24h")
	check(c.WebhookRetention == 0 || c.WebhookRetention >= webhook.RetentionLeast, "EVALONCE_WEBHOOK_RETENTION must be 0 or at least 24h")
	check(c.FsckTimeout > 0, "EVALONCE_FSCK_TIMEOUT must be positive")
	return errors.Join(problems...)
}

// window is zero for all tickets.
func (c Config) window() time.Duration {
	if c.ReconcileAll {
		return 0
	}
	return c.ReconcileWindow
}

const flagHelp = `Sweeps up after workers and clients, and prints what it did as one line of JSON.

  --interval=DURATION  go on, with this pause between two sweeps
  --reconcile-all      look for tickets without work or result of any age
  --fsck               check every promise at the end; exit with 1 when one is broken

The same as the variables EVALONCE_INTERVAL, EVALONCE_RECONCILE_ALL and EVALONCE_FSCK, and stronger.

`

// loadConfig reads the environment, with the flags put before it: of two entries the first counts.
func loadConfig(args, environ []string, stdout io.Writer) (Config, error) {
	var given []string
	entry := func(name string) func(string) error {
		return func(value string) error {
			given = append([]string{name + "=" + value}, given...)
			return nil
		}
	}
	flags := flag.NewFlagSet(serviceName, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("interval", "", entry("EVALONCE_INTERVAL"))
	flags.BoolFunc("reconcile-all", "", entry("EVALONCE_RECONCILE_ALL"))
	flags.BoolFunc("fsck", "", entry("EVALONCE_FSCK"))
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		if _, err := io.WriteString(stdout, flagHelp); err != nil {
			return Config{}, fmt.Errorf("print help: %w", err)
		}
		return config.Load[Config](environ, []string{"--help"}, stdout)
	case err != nil:
		return Config{}, fmt.Errorf("%w: %w", process.ErrUsage, err)
	}
	return config.Load[Config](append(given, environ...), flags.Args(), stdout)
}
