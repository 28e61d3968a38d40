// Command ticket-api takes support tickets over gRPC and REST, stores them together with their pending
// evaluations, and shows what became of them.
package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/health"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/schema"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/ticket-api/internal/api"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

const serviceName = "ticket-api"

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	cfg, err := config.Load[Config](environ, args, stdout)
	if err != nil {
		return err
	}
	defer keepHeapFloor()()
	observed, err := telemetry.Setup(ctx, serviceName, environ)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, observed.Flush(context.WithoutCancel(ctx))) }()
	db, err := openDatabase(ctx, cfg, telemetry.Exporting(environ))
	if err != nil {
		return err
	}
	defer db.close()
	measured, err := metrics.NewTicketAPI(otel.Meter(serviceName))
	if err != nil {
		return err
	}
	submitter := submit.New(db.primary, submit.Options{Retention: cfg.RequestRetention, Metrics: measured})
	limits := cfg.limits()
	service := api.New(submitter, db.tickets(), limits)
	webhooks := api.NewWebhooks(webhook.NewEndpoints(db.primary, &cfg.WebhookKeys), cfg.WebhookAllowHTTP)
	options := rpc.Options{
		GRPCAddress: cfg.GRPCAddress, HTTPAddress: cfg.HTTPAddress,
		Register: api.Register(service, webhooks), Gateways: api.Gateways(), Policy: api.Policy(), Created: api.Creating(), Errors: api.Errors, Ready: schema.Ready(db.primary),
		Public:          map[string]http.Handler{"GET /openapi.json": api.Document()},
		MaxRequestBytes: cfg.MaxRequestBytes, CallTimeout: cfg.CallTimeout, Grace: cfg.ShutdownGrace,
	}
	if err := cfg.Access.Apply(ctx, &options, db.primary, &cfg.APITokens, rpc.TicketsWrite, rpc.TicketsRead, rpc.WebhooksWrite); err != nil {
		return err
	}
	server, err := rpc.Listen(ctx, options)
	if err != nil {
		return err
	}
	group := process.NewGroup(ctx)
	group.Go("submitter", submitter.Run)
	if cfg.HealthAddress != "" {
		group.Go("health", health.Server{Address: cfg.HealthAddress, Ready: options.Ready, Metrics: observed.Metrics}.Run)
	}
	group.GoWithin(cfg.ShutdownGrace+time.Second, "server", server.Run)
	return group.Wait()
}
