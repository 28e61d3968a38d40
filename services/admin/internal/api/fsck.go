package api

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const (
	defaultExamples     = 10
	maxExamples         = 1000
	defaultCheckTimeout = 10 * time.Minute
	maxCheckTimeout     = time.Hour
)

// Fsck is the FsckService.
type Fsck struct {
	adminv1.UnimplementedFsckServiceServer
	db *pgxpool.Pool
	// running keeps a second run away: each reads every table, and holds a connection and a snapshot meanwhile.
	running sync.Mutex
}

// NewFsck makes the service.
func NewFsck(db *pgxpool.Pool) *Fsck { return &Fsck{db: db} }

// RunFsck sends what contradicts the promises, as it is found.
func (s *Fsck) RunFsck(r *adminv1.RunFsckRequest, stream grpc.ServerStreamingServer[adminv1.RunFsckResponse]) error {
	options := fsck.Options{Examples: defaultExamples, StatementTimeout: defaultCheckTimeout}
	var violations []rpc.Violation
	switch n := r.GetExamples(); {
	case n < 0 || n > maxExamples:
		violations = append(violations, rpc.Violation{Field: "examples", Reason: "OUT_OF_RANGE", Description: "must be from 0 to 1000"})
	case n > 0:
		options.Examples = int(n)
	}
	if r.GetCheckTimeout() != nil {
		options.StatementTimeout = r.GetCheckTimeout().AsDuration()
		if !r.GetCheckTimeout().IsValid() || options.StatementTimeout < time.Millisecond || options.StatementTimeout > maxCheckTimeout {
			violations = append(violations, rpc.Violation{Field: "check_timeout", Reason: "OUT_OF_RANGE", Description: "must be from 1 millisecond to an hour"})
		}
	}
	if len(violations) > 0 {
		return rpc.InvalidFields(violations...)
	}
	if !s.running.TryLock() {
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: reasonFsckRunning, Message: "fsck is running here already"}
	}
	defer s.running.Unlock()
	var unsent error
	options.Found = func(f fsck.Finding) {
		if unsent == nil {
			unsent = stream.Send(&adminv1.RunFsckResponse{Event: &adminv1.RunFsckResponse_Finding{Finding: findingOf(f)}})
		}
	}
	report, err := fsck.Run(stream.Context(), s.db, options)
	if err != nil {
		return err
	}
	if unsent != nil {
		return unsent
	}
	return stream.Send(&adminv1.RunFsckResponse{Event: &adminv1.RunFsckResponse_Summary{Summary: &adminv1.FsckSummary{
		Checks: int32(len(fsck.Checks())), Violations: int32(len(report.Violations)), Notes: int32(len(report.Notes)), Healthy: report.Healthy(),
	}}})
}

func findingOf(f fsck.Finding) *adminv1.FsckFinding {
	return &adminv1.FsckFinding{Check: f.Name, Promise: f.Promise, Note: f.Note, Count: int64(f.Count), Examples: f.Examples}
}
