package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/ticketfile"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const usage = `Usage: make demo [TICKETS=FILE] [TRUTH=COLUMN] [KEEP=1] [MODEL=NAME] [PRICES=IN,CACHED,OUT]

Starts everything on this machine, has the tickets evaluated, and prints what came of it.

  TICKETS=FILE    .jsonl or .csv with message and, where there are, subject, external_id and department, which is
                  what a person decided: the departments are then those in the file, and answers are compared with
                  them. Without it: tickets written for the demo.
  TRUTH=COLUMN    the column to take for department
  KEEP=1          keep everything running, and say how to talk to it, until Ctrl-C
  MODEL=NAME      ask this model, at OPENAI_BASE_URL with OPENAI_API_KEY, in place of the provider simulator
  PRICES=I,C,O    what it takes for a million input, cached input and output tokens, in US dollars

  EVALONCE_DATABASE_URL=...  make a database on this Postgres, for the time of the demo, and start no other
`

const openAI = "https://api.openai.com/v1"

type config struct {
	bin, dir    string // of binaries; of data and logs
	figures     string // path of the figures for machines
	ticketFile  string
	ownTickets  bool // written for the demo
	truth       string
	versionFile string
	keep        bool
	server      string // Postgres; "" for one of the demo's own
	provider    *stack.Endpoint
	model       string
	givenPrices *adminv1.Prices
	keyWithout  bool // a key is there, and no model to use it with
}

func parse(args, environ []string, root string) (config, error) {
	environment := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		environment[name] = value
	}
	build := filepath.Join(root, ".build")
	cfg := config{
		bin: filepath.Join(build, "bin"), dir: filepath.Join(build, "demo"), figures: filepath.Join(build, "demo.json"),
		versionFile: filepath.Join(root, "deploy", "local", "tickets", "demo-version.json"),
		server:      environment["EVALONCE_DATABASE_URL"],
	}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&cfg.ticketFile, "tickets", "", "")
	flags.StringVar(&cfg.truth, "truth", ticketfile.TruthColumn, "")
	flags.BoolVar(&cfg.keep, "keep", false, "")
	flags.StringVar(&cfg.model, "model", "", "")
	flags.Func("prices", "", func(s string) (err error) {
		cfg.givenPrices, err = splitPrices(s)
		return err
	})
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(os.Stdout, usage)
		return config{}, err
	} else if err != nil {
		return config{}, fmt.Errorf("%w: %w", process.ErrUsage, err)
	}
	if flags.NArg() > 0 {
		return config{}, fmt.Errorf("%w: what is %q for?", process.ErrUsage, flags.Arg(0))
	}
	if cfg.ticketFile == "" {
		cfg.ticketFile, cfg.ownTickets = filepath.Join(root, "deploy", "local", "tickets", "demo.jsonl"), true
	}
	return cfg, cfg.chooseProvider(environment)
}

// chooseProvider leaves the simulator only when a model is named: a key alone may lie in the environment for anything.
func (c *config) chooseProvider(environment map[string]string) error {
	key, base := environment["OPENAI_API_KEY"], environment["OPENAI_BASE_URL"]
	switch {
	case c.model == "":
		c.keyWithout = key != "" || base != ""
		return nil
	case key == "" && base == "":
		return fmt.Errorf("%w: MODEL=%s needs OPENAI_API_KEY, or OPENAI_BASE_URL of an endpoint that wants no key", process.ErrUsage, c.model)
	case base == "":
		base = openAI
	}
	if u, err := url.Parse(base); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("%w: OPENAI_BASE_URL is no http or https URL", process.ErrUsage)
	}
	c.provider = &stack.Endpoint{BaseURL: base, APIKey: key}
	return nil
}

func splitPrices(s string) (*adminv1.Prices, error) {
	parts := strings.Split(s, ",")
	if len(parts) != 3 {
		return nil, errors.New("want three prices, such as 0.25,0.025,2")
	}
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	p := &adminv1.Prices{InputUsdPerMtok: parts[0], CachedInputUsdPerMtok: parts[1], OutputUsdPerMtok: parts[2]}
	if _, err := parsePrices(p); err != nil {
		return nil, err
	}
	return p, nil
}
