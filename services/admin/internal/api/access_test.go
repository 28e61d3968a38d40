package api_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

// spelled takes a token for what it says: a client, and its roles after commas.
type spelled struct{}

func (spelled) Authenticate(_ context.Context, token string) (rpc.Principal, error) {
	words := strings.Split(token, ",")
	roles, err := rpc.ParseRoles(words[1:])
	return rpc.Principal{ClientID: words[0], Roles: roles}, err
}

// methods are the full names of the methods that are registered.
type methods []string

func (m *methods) RegisterService(desc *grpc.ServiceDesc, _ any) {
	for _, method := range desc.Methods {
		*m = append(*m, "/"+desc.ServiceName+"/"+method.MethodName)
	}
	for _, stream := range desc.Streams {
		*m = append(*m, "/"+desc.ServiceName+"/"+stream.StreamName)
	}
}

// empty calls a method with a request that says nothing but that it is a dry run.
func (a *adminAPI) empty(ctx context.Context, name string) error {
	a.t.Helper()
	desc, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(name[1:], "/", ".")))
	if err != nil {
		a.t.Fatal(err)
	}
	method, ok := desc.(protoreflect.MethodDescriptor)
	if !ok {
		a.t.Fatalf("%s is a %T", name, desc)
	}
	fresh := func(d protoreflect.MessageDescriptor) proto.Message {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			a.t.Fatal(err)
		}
		return kind.New().Interface()
	}
	request := fresh(method.Input())
	if field := method.Input().Fields().ByName("dry_run"); field != nil {
		request.ProtoReflect().Set(field, protoreflect.ValueOfBool(true))
	}
	if !method.IsStreamingServer() {
		return a.conn.Invoke(ctx, name, request, fresh(method.Output()))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		return err
	}
	for err == nil {
		err = stream.RecvMsg(fresh(method.Output()))
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Every method × every role. What operators keep is nobody's own: who may see it sees all of it, so that there is no
// other's thing to try. Who is let in with a request that says nothing is told what is wrong with it, or nothing is.
func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	a := start(t, func(o *rpc.Options) { o.Authenticator = spelled{} })
	const ok, invalid, failed = codes.OK, codes.InvalidArgument, codes.FailedPrecondition
	read := func(code codes.Code) map[rpc.Role]codes.Code {
		return map[rpc.Role]codes.Code{rpc.AdminRead: code, rpc.AdminWrite: code}
	}
	write := func(code codes.Code) map[rpc.Role]codes.Code { return map[rpc.Role]codes.Code{rpc.AdminWrite: code} }
	rows := map[string]map[rpc.Role]codes.Code{
		adminv1.VersionService_RegisterVersion_FullMethodName:        write(invalid),
		adminv1.VersionService_GetVersion_FullMethodName:             read(invalid),
		adminv1.VersionService_ListVersions_FullMethodName:           read(ok),
		adminv1.VersionService_DiffVersions_FullMethodName:           read(invalid),
		adminv1.VersionService_PromoteVersion_FullMethodName:         write(invalid),
		adminv1.VersionService_RollbackVersion_FullMethodName:        write(failed),
		adminv1.VersionService_ListPromotions_FullMethodName:         read(ok),
		adminv1.PolicyService_RegisterPolicy_FullMethodName:          write(invalid),
		adminv1.PolicyService_GetPolicy_FullMethodName:               read(invalid),
		adminv1.PolicyService_ListPolicies_FullMethodName:            read(ok),
		adminv1.PolicyService_ActivatePolicy_FullMethodName:          write(invalid),
		adminv1.PolicyService_ListPolicyActivations_FullMethodName:   read(ok),
		adminv1.PolicyService_ApplyPolicy_FullMethodName:             write(ok),
		adminv1.PolicyService_GetPolicyApplication_FullMethodName:    read(invalid),
		adminv1.PolicyService_ListPolicyApplications_FullMethodName:  read(ok),
		adminv1.PolicyService_PausePolicyApplication_FullMethodName:  write(invalid),
		adminv1.PolicyService_ResumePolicyApplication_FullMethodName: write(invalid),
		adminv1.PolicyService_CancelPolicyApplication_FullMethodName: write(invalid),
		adminv1.AuditService_ListAuditEntries_FullMethodName:         read(ok),
		adminv1.CredentialService_CreateToken_FullMethodName:         write(invalid),
		adminv1.CredentialService_AdmitCertificate_FullMethodName:    write(invalid),
		adminv1.CredentialService_GetCredential_FullMethodName:       read(invalid),
		adminv1.CredentialService_ListCredentials_FullMethodName:     read(ok),
		adminv1.CredentialService_RevokeCredential_FullMethodName:    write(invalid),
		adminv1.CompareService_Compare_FullMethodName:                read(invalid),
		adminv1.CompareService_CreateSample_FullMethodName:           write(invalid),
		adminv1.CompareService_GetSample_FullMethodName:              read(invalid),
		adminv1.CompareService_ListSamples_FullMethodName:            read(ok),
		adminv1.CompareService_DeleteSample_FullMethodName:           write(invalid),
		adminv1.ReprocessService_StartReprocess_FullMethodName:       write(invalid),
		adminv1.ReprocessService_PreviewReprocess_FullMethodName:     read(invalid),
		adminv1.ReprocessService_GetReprocess_FullMethodName:         read(invalid),
		adminv1.ReprocessService_ListReprocesses_FullMethodName:      read(ok),
		adminv1.ReprocessService_PauseReprocess_FullMethodName:       write(invalid),
		adminv1.ReprocessService_ResumeReprocess_FullMethodName:      write(invalid),
		adminv1.ReprocessService_CancelReprocess_FullMethodName:      write(invalid),
		adminv1.DeadLetterService_GroupDeadLetters_FullMethodName:    read(ok),
		adminv1.DeadLetterService_ListDeadLetters_FullMethodName:     read(ok),
		adminv1.DeadLetterService_GetDeadLetter_FullMethodName:       read(invalid),
		adminv1.DeadLetterService_AssignDeadLetter_FullMethodName:    write(invalid),
		adminv1.DeadLetterService_DiscardDeadLetters_FullMethodName:  write(invalid),
		adminv1.DeadLetterService_ReplayDeadLetters_FullMethodName:   write(invalid),
		adminv1.DeadLetterService_GetReplay_FullMethodName:           read(invalid),
		adminv1.DeadLetterService_ListReplays_FullMethodName:         read(ok),
		adminv1.DeadLetterService_PauseReplay_FullMethodName:         write(invalid),
		adminv1.DeadLetterService_ResumeReplay_FullMethodName:        write(invalid),
		adminv1.DeadLetterService_CancelReplay_FullMethodName:        write(invalid),
		adminv1.RouteService_ListRoutes_FullMethodName:               read(ok),
		adminv1.RouteService_GetRoute_FullMethodName:                 read(invalid),
		adminv1.RouteService_PauseRoute_FullMethodName:               write(invalid),
		adminv1.RouteService_ResumeRoute_FullMethodName:              write(invalid),
		adminv1.RouteService_ResetRoute_FullMethodName:               write(invalid),
		adminv1.RouteService_SetRouteLimits_FullMethodName:           write(invalid),
		adminv1.RouteService_SetRouteCallTimeout_FullMethodName:      write(invalid),
		adminv1.RouteService_ListBudgets_FullMethodName:              read(ok),
		adminv1.RouteService_SetBudget_FullMethodName:                write(invalid),
		adminv1.FsckService_RunFsck_FullMethodName:                   read(ok),
		adminv1.TicketAdminService_EraseTicket_FullMethodName:        write(invalid),
	}
	var registered methods
	api.Register(&registered, nil, nil, nil)
	slices.Sort(registered)
	if known := slices.Sorted(maps.Keys(rows)); !slices.Equal(known, registered) {
		t.Fatalf("the rows are of %v,\nthe methods are %v", known, registered)
	}
	for name, want := range rows {
		for _, role := range append(rpc.AllRoles(), "") {
			code, may := want[role]
			if !may {
				code = codes.PermissionDenied
			}
			if err := a.empty(a.as(strings.TrimSuffix("ana,"+string(role), ",")), name); status.Code(err) != code {
				t.Errorf("%s with %q: %v, want %v", name, role, err, code)
			}
		}
		if err := a.empty(t.Context(), name); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s without credentials: %v", name, err)
		}
	}
}
