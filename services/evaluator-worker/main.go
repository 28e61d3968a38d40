// Command evaluator-worker claims pending evaluations, asks the model, and saves the answers. Any number of
// replicas share the work through Postgres alone.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/health"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/schema"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/deliver"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/evaluate"
)

const serviceName = "evaluator-worker"

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	cfg, err := config.Load[Config](environ, args, stdout)
	if errors.Is(err, config.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	evaluate.CollectLess(environ)
	observed, err := telemetry.Setup(ctx, serviceName, environ)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, observed.Flush(context.WithoutCancel(ctx))) }()
	providers, err := cfg.providers()
	if err != nil {
		return fmt.Errorf("%w: %w", process.ErrUsage, err)
	}
	claims, settles, err := evaluate.OpenPools(ctx, cfg.database(environ))
	if err != nil {
		return err
	}
	defer claims.Close()
	defer settles.Close()

	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name the worker: %w", err)
	}
	name := host + "/" + uuid.NewString()
	webhooks, closeWebhooks, err := cfg.openWebhooks(ctx, name, cfg.database(environ))
	if err != nil {
		return err
	}
	defer closeWebhooks()
	measured, err := measureEvaluations(claims, settles)
	if err != nil {
		return err
	}
	listen, err := cfg.listenURL(ctx, settles)
	if err != nil {
		return err
	}
	worker := evaluate.New(evaluate.Options{
		Claims: claims, Settles: settles, Listen: listen,
		Providers: providers, Routes: cfg.Routes,
		Name: name, Concurrency: cfg.Concurrency, Lease: cfg.Lease, PollInterval: cfg.PollInterval,
		Grace: cfg.ShutdownGrace, Tracer: otel.Tracer(serviceName), LinkFollowers: telemetry.Exporting(environ),
		Told: webhooks.Wake, Metrics: measured,
	})
	group := process.NewGroup(ctx)
	if cfg.HealthAddress != "" {
		group.Go("health", health.Server{Address: cfg.HealthAddress, Ready: schema.Ready(settles), Remarks: worker.Remarks, Metrics: observed.Metrics}.Run)
	}
	group.GoWithin(cfg.ShutdownGrace+evaluate.SaveMost+process.DefaultGrace, "evaluate", worker.Run)
	group.GoWithin(webhook.Timeout+deliver.SaveMost+process.DefaultGrace, "webhooks", webhooks.Run)
	return group.Wait()
}
