package rival

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/process"
)

// The names of the processes, as the first argument of the command has them.
const (
	InRequest   = "in-request"
	QueueAPI    = "queue-api"
	QueueWorker = "queue-worker"
)

// Config is that of each process. Pauses between tries are divided by the pace; deadlines are not, because nothing
// hangs in the scenario and a short one would only fire when the machine is slow.
type Config struct {
	Address     string        `env:"SCENARIO_ADDRESS,required" help:"where to serve"`
	DatabaseURL string        `env:"SCENARIO_DATABASE_URL,required" secret:"true" help:"Postgres"`
	ProviderURL string        `env:"SCENARIO_PROVIDER_URL" help:"base URL of the model's provider"`
	ProviderKey string        `env:"SCENARIO_PROVIDER_KEY" secret:"true" help:"its API key"`
	Pace        float64       `env:"SCENARIO_PACE" envDefault:"1" help:"virtual seconds in a real one"`
	Concurrency int           `env:"SCENARIO_CONCURRENCY" envDefault:"64" help:"jobs at a time"`
	Visibility  time.Duration `env:"SCENARIO_VISIBILITY" envDefault:"6s" help:"time for which a taken job is hidden"`
}

// jobDeadline leaves time to write down what came of a job before another may take it.
func (c Config) jobDeadline() time.Duration { return c.Visibility * 5 / 6 }

// tryDeadline is that of one call.
func (c Config) tryDeadline() time.Duration { return c.Visibility * 2 / 3 }

// Validate reports what cannot work.
func (c Config) Validate() error {
	if c.Pace < 1 || c.Concurrency < 1 || c.Visibility <= 0 {
		return errors.New("pace and concurrency must be 1 at least, and the visibility positive")
	}
	return nil
}

// Is reports whether name is that of a process of this package.
func Is(name string) bool { return name == InRequest || name == QueueAPI || name == QueueWorker }

// Run is the process of that name, until ctx ends.
func Run(ctx context.Context, name string, environ []string, stdout io.Writer) error {
	cfg, err := config.Load[Config](environ, nil, stdout)
	if err != nil {
		return err
	}
	switch name {
	case InRequest:
		return serveInRequest(ctx, cfg)
	case QueueAPI:
		return serveQueueAPI(ctx, cfg)
	case QueueWorker:
		return runQueueWorker(ctx, cfg)
	}
	return fmt.Errorf("%w: there is no process %q", process.ErrUsage, name)
}
