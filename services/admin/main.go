// Command admin serves operators, over gRPC and REST: it registers evaluator versions and promotes the one that new
// tickets are evaluated under. Its command line is evalctl.
package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/telemetry"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

const serviceName = "admin"

// version is set by the build.
var version = "dev"

func main() { process.Main(run) }

func run(ctx context.Context, args, environ []string, stdout, _ io.Writer) (err error) {
	cfg, err := config.Load[Config](environ, args, stdout)
	if errors.Is(err, config.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	flush, err := telemetry.Setup(ctx, serviceName, version, environ)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush(context.WithoutCancel(ctx))) }()
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: cfg.DatabaseMaxConnections, AppName: serviceName, StatementTimeout: cfg.CallTimeout,
	})
	if err != nil {
		return err
	}
	defer pool.Close()
	versions := api.NewVersions(pool)
	server, err := rpc.Listen(ctx, rpc.Options{
		GRPCAddress: cfg.GRPCAddress, HTTPAddress: cfg.HTTPAddress,
		Register:      func(r grpc.ServiceRegistrar) { adminv1.RegisterVersionServiceServer(r, versions) },
		Gateways:      []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{adminv1.RegisterVersionServiceHandler},
		Authenticator: &cfg.AdminTokens, Policy: api.Policy(), Created: api.Creating(), Errors: api.Errors, Ready: pool.Ping,
		Public:          map[string]http.Handler{"GET /openapi.json": api.Document()},
		MaxRequestBytes: cfg.MaxRequestBytes, CallTimeout: cfg.CallTimeout, Grace: cfg.ShutdownGrace,
	})
	if err != nil {
		return err
	}
	group := process.NewGroup(ctx)
	group.GoWithin(cfg.ShutdownGrace+time.Second, "server", server.Run)
	return group.Wait()
}
