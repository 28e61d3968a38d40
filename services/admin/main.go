// Command admin serves operators, over gRPC and REST: it registers evaluator versions and promotes the one that new
// tickets are evaluated under. Its command line is evalctl.
package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/health"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/schema"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

const serviceName = "admin"

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	cfg, err := config.Load[Config](environ, args, stdout)
	if errors.Is(err, config.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	observed, err := telemetry.Setup(ctx, serviceName, environ)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, observed.Flush(context.WithoutCancel(ctx))) }()
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: cfg.DatabaseMaxConnections, AppName: serviceName, StatementTimeout: cfg.CallTimeout,
		LockTimeout: lockTimeout, IdleInTransactionTimeout: idleInCall,
		Spans: telemetry.Exporting(environ),
	})
	if err != nil {
		return err
	}
	defer pool.Close()
	replica, err := openReplica(ctx, cfg, pool, telemetry.Exporting(environ))
	if err != nil {
		return err
	}
	defer replica.Close()
	jobs, jobPool, err := openJobs(ctx, cfg, api.Steps(), telemetry.Exporting(environ))
	if err != nil {
		return err
	}
	defer jobPool.Close()
	observer, err := measure(pool, replica, jobPool, cfg.SnapshotInterval)
	if err != nil {
		return err
	}
	options := rpc.Options{
		GRPCAddress: cfg.GRPCAddress, HTTPAddress: cfg.HTTPAddress,
		Register: func(r grpc.ServiceRegistrar) { api.Register(r, pool, replica, jobs) }, Gateways: api.Gateways(),
		Policy: api.Policy(), Created: api.Creating(), Errors: api.Errors, Ready: schema.Ready(pool),
		Public:          map[string]http.Handler{"GET /openapi.json": api.Document()},
		MaxRequestBytes: cfg.MaxRequestBytes, CallTimeout: cfg.CallTimeout, Grace: cfg.ShutdownGrace,
	}
	if err := cfg.Access.Apply(ctx, &options, pool, &cfg.AdminTokens, rpc.AdminRead, rpc.AdminWrite); err != nil {
		return err
	}
	server, err := rpc.Listen(ctx, options)
	if err != nil {
		return err
	}
	group := process.NewGroup(ctx)
	group.Go("jobs", jobs.Run)
	group.Go("observer", observer.Run)
	if cfg.HealthAddress != "" {
		group.Go("health", health.Server{Address: cfg.HealthAddress, Ready: options.Ready, Metrics: observed.Metrics}.Run)
	}
	group.GoWithin(cfg.ShutdownGrace+time.Second, "server", server.Run)
	return group.Wait()
}
