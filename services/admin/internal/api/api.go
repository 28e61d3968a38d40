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

// Register adds the services to a server. What reads tables whole reads them from the replica, which may be the database
// itself. The jobs that they make are another's to run.
func Register(r grpc.ServiceRegistrar, db, replica *pgxpool.Pool, jobs Waker) {
	adminv1.RegisterVersionServiceServer(r, NewVersions(db))
	adminv1.RegisterPolicyServiceServer(r, NewPolicies(db, jobs))
	adminv1.RegisterAuditServiceServer(r, NewAudit(db))
	adminv1.RegisterCredentialServiceServer(r, NewCredentials(db))
	adminv1.RegisterCompareServiceServer(r, NewCompare(db, replica))
	adminv1.RegisterReprocessServiceServer(r, NewReprocess(db, jobs))
	adminv1.RegisterDeadLetterServiceServer(r, NewDeadLetters(db, jobs))
	adminv1.RegisterRouteServiceServer(r, NewRoutes(db))
	adminv1.RegisterFsckServiceServer(r, NewFsck(replica))
	adminv1.RegisterTicketAdminServiceServer(r, NewTickets(db))
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
		adminv1.RegisterTicketAdminServiceHandler,
	}
}

// Policy is who may call which method.
func Policy() rpc.Policy {
	read, write := rpc.Needs(rpc.AdminRead, rpc.AdminWrite), rpc.Needs(rpc.AdminWrite)
	return rpc.Policy{
		adminv1.VersionService_RegisterVersion_FullMethodName: write,
		adminv1.VersionService_GetVersion_FullMethodName:      read,
		adminv1.VersionService_ListVersions_FullMethodName:    read,
		adminv1.VersionService_DiffVersions_FullMethodName:    read,
		adminv1.VersionService_PromoteVersion_FullMethodName:  write,
		adminv1.VersionService_RollbackVersion_FullMethodName: write,
		adminv1.VersionService_ListPromotions_FullMethodName:  read,

		adminv1.PolicyService_RegisterPolicy_FullMethodName:          write,
		adminv1.PolicyService_GetPolicy_FullMethodName:               read,
		adminv1.PolicyService_ListPolicies_FullMethodName:            read,
		adminv1.PolicyService_ActivatePolicy_FullMethodName:          write,
		adminv1.PolicyService_ListPolicyActivations_FullMethodName:   read,
		adminv1.PolicyService_ApplyPolicy_FullMethodName:             write,
		adminv1.PolicyService_GetPolicyApplication_FullMethodName:    read,
		adminv1.PolicyService_ListPolicyApplications_FullMethodName:  read,
		adminv1.PolicyService_PausePolicyApplication_FullMethodName:  write,
		adminv1.PolicyService_ResumePolicyApplication_FullMethodName: write,
		adminv1.PolicyService_CancelPolicyApplication_FullMethodName: write,

		adminv1.AuditService_ListAuditEntries_FullMethodName: read,

		adminv1.CredentialService_CreateToken_FullMethodName:      write,
		adminv1.CredentialService_AdmitCertificate_FullMethodName: write,
		adminv1.CredentialService_GetCredential_FullMethodName:    read,
		adminv1.CredentialService_ListCredentials_FullMethodName:  read,
		adminv1.CredentialService_RevokeCredential_FullMethodName: write,

		adminv1.CompareService_Compare_FullMethodName:      read,
		adminv1.CompareService_CreateSample_FullMethodName: write,
		adminv1.CompareService_GetSample_FullMethodName:    read,
		adminv1.CompareService_ListSamples_FullMethodName:  read,
		adminv1.CompareService_DeleteSample_FullMethodName: write,

		adminv1.ReprocessService_StartReprocess_FullMethodName:   write,
		adminv1.ReprocessService_PreviewReprocess_FullMethodName: read,
		adminv1.ReprocessService_GetReprocess_FullMethodName:     read,
		adminv1.ReprocessService_ListReprocesses_FullMethodName:  read,
		adminv1.ReprocessService_PauseReprocess_FullMethodName:   write,
		adminv1.ReprocessService_ResumeReprocess_FullMethodName:  write,
		adminv1.ReprocessService_CancelReprocess_FullMethodName:  write,

		adminv1.DeadLetterService_GroupDeadLetters_FullMethodName:   read,
		adminv1.DeadLetterService_ListDeadLetters_FullMethodName:    read,
		adminv1.DeadLetterService_GetDeadLetter_FullMethodName:      read,
		adminv1.DeadLetterService_AssignDeadLetter_FullMethodName:   write,
		adminv1.DeadLetterService_DiscardDeadLetters_FullMethodName: write,
		adminv1.DeadLetterService_ReplayDeadLetters_FullMethodName:  write,
		adminv1.DeadLetterService_GetReplay_FullMethodName:          read,
		adminv1.DeadLetterService_ListReplays_FullMethodName:        read,
		adminv1.DeadLetterService_PauseReplay_FullMethodName:        write,
		adminv1.DeadLetterService_ResumeReplay_FullMethodName:       write,
		adminv1.DeadLetterService_CancelReplay_FullMethodName:       write,

		adminv1.RouteService_ListRoutes_FullMethodName:          read,
		adminv1.RouteService_GetRoute_FullMethodName:            read,
		adminv1.RouteService_PauseRoute_FullMethodName:          write,
		adminv1.RouteService_ResumeRoute_FullMethodName:         write,
		adminv1.RouteService_ResetRoute_FullMethodName:          write,
		adminv1.RouteService_SetRouteLimits_FullMethodName:      write,
		adminv1.RouteService_SetRouteCallTimeout_FullMethodName: write,
		adminv1.RouteService_ListBudgets_FullMethodName:         read,
		adminv1.RouteService_SetBudget_FullMethodName:           write,

		adminv1.FsckService_RunFsck_FullMethodName: read,

		adminv1.TicketAdminService_EraseTicket_FullMethodName: write,
	}
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
