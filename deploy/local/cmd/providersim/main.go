// Command providersim serves a simulated model provider, for demos and for tests that need one in a process of its
// own. Its answers come from an offline lexical classifier, not a language model; its ledger tells what it billed.
// See package providersim for the faults it can be told to have, and for the control interface under /_sim/.
package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/providersim"
)

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	cfg, err := config.Load[Config](environ, args, stdout)
	if err != nil {
		return err
	}
	options, err := cfg.options()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	sim := providersim.New(options)
	if err := sim.Start(cfg.Address); err != nil { //nolint:contextcheck // Close ends it, not a context
		return err
	}
	log.InfoContext(ctx, "serving answers of an offline lexical classifier, not a language model",
		slog.String("url", sim.URL()), slog.Int("rules", len(options.Script)))
	select {
	case <-ctx.Done():
	case <-sim.Done():
		// It does not end by itself; Close tells why it did.
	}
	total := sim.Stats()
	err = sim.Close()
	log.InfoContext(ctx, "stopped",
		slog.Int("requests", total.Requests), slog.Int("billed", total.Billed), slog.Int("billed_again_contents", total.BilledAgainContents),
		slog.String("cost_usd", total.CostUSD.String()))
	if err == nil && ctx.Err() == nil {
		return errors.New("serving ended unasked")
	}
	return err
}
