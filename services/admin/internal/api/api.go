// Package api is the admin API: it decodes and validates what operators ask for, and does it in one transaction
// of the table's owner.
//
// A request is refused for all that is wrong with it at once, by field, before anything is stored. Every change is made
// through one function, change, which records it in its transaction: who asked, what was and what is, and why. Repeating a
// request that has taken effect changes nothing and succeeds, so an operator who got no answer asks again.
package api

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/proto/openapi"
	"github.com/evalonce/evalonce/services/admin/internal/job"
	"github.com/evalonce/evalonce/services/admin/internal/redecide"
	"github.com/evalonce/evalonce/services/admin/internal/replay"
	"github.com/evalonce/evalonce/services/admin/internal/reprocess"
)

// Register adds the services to a server. The jobs that they make are another's to run.
func Register(r grpc.ServiceRegistrar, db *pgxpool.Pool, jobs Waker) {
	adminv1.RegisterVersionServiceServer(r, NewVersions(db))
	adminv1.RegisterPolicyServiceServer(r, NewPolicies(db, jobs))
	adminv1.RegisterAuditServiceServer(r, NewAudit(db))
	adminv1.RegisterCredentialServiceServer(r, NewCredentials(db))
	adminv1.RegisterCompareServiceServer(r, NewCompare(db))
	adminv1.RegisterReprocessServiceServer(r, NewReprocess(db, jobs))
	adminv1.RegisterDeadLetterServiceServer(r, NewDeadLetters(db, jobs))
	adminv1.RegisterRouteServiceServer(r, NewRoutes(db))
	adminv1.RegisterFsckServiceServer(r, NewFsck(db))
}

// Steps do the chunks of the jobs that the services make.
func Steps() map[jobdb.Kind]job.Step {
	return map[jobdb.Kind]job.Step{jobdb.Evaluate: reprocess.Step, jobdb.Replay: replay.Step, jobdb.Policy: redecide.Step(redecide.Settle)}
}

// Gateways are the services' REST forms.
func Gateways() []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error {
	return []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		adminv1.RegisterVersionServiceHandler,
		adminv1.RegisterPolicyServiceHandler,
		adminv1.RegisterAuditServiceHandler,
		adminv1.RegisterCredentialServiceHandler,
		adminv1.RegisterCompareServiceHandler,
		adminv1.RegisterReprocessServiceHandler,
		adminv1.RegisterDeadLetterServiceHandler,
		adminv1.RegisterRouteServiceHandler,
		adminv1.RegisterFsckServiceHandler,
	}
}

// Policy is who may call the services.
func Policy() rpc.Policy {
	policy := rpc.Policy{}
	for _, service := range []grpc.ServiceDesc{
		adminv1.VersionService_ServiceDesc,
		adminv1.PolicyService_ServiceDesc,
		adminv1.AuditService_ServiceDesc,
		adminv1.CredentialService_ServiceDesc,
		adminv1.CompareService_ServiceDesc,
		adminv1.ReprocessService_ServiceDesc,
		adminv1.DeadLetterService_ServiceDesc,
		adminv1.RouteService_ServiceDesc,
		adminv1.FsckService_ServiceDesc,
	} {
		policy["/"+service.ServiceName+"/*"] = rpc.Authenticated
	}
	return policy
}

// Creating are the methods that create something.
func Creating() []string {
	return []string{
		adminv1.VersionService_RegisterVersion_FullMethodName, adminv1.PolicyService_RegisterPolicy_FullMethodName, adminv1.CompareService_CreateSample_FullMethodName,
		adminv1.ReprocessService_StartReprocess_FullMethodName, adminv1.DeadLetterService_ReplayDeadLetters_FullMethodName,
		adminv1.CredentialService_CreateToken_FullMethodName, adminv1.CredentialService_AdmitCertificate_FullMethodName,
	}
}

// callerOf names the operator, for the record.
func callerOf(ctx context.Context) (string, error) {
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok {
		return "", errors.New("a call without a caller has passed the policy")
	}
	return p.ClientID, nil
}

// Document serves the OpenAPI document of the REST form.
func Document() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, openapi.Admin())
	})
}
