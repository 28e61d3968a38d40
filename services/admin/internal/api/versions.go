package api

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// Versions is the VersionService.
type Versions struct {
	adminv1.UnimplementedVersionServiceServer
	db *pgxpool.Pool
}

// NewVersions makes the service.
func NewVersions(db *pgxpool.Pool) *Versions { return &Versions{db: db} }

// RegisterVersion stores a version. The answer to a version that was stored before is marked as replayed.
func (s *Versions) RegisterVersion(ctx context.Context, r *adminv1.RegisterVersionRequest) (*adminv1.Version, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	v, violations := versionFrom("version", r.GetVersion())
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var created bool
	var stored versiondb.Stored
	err = postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (err error) {
		if created, err = versiondb.Register(ctx, tx, v, by); err != nil {
			return err
		}
		stored, err = versiondb.Get(ctx, tx, v.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !created {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark version %s as replayed: %w", v.ID, err)
		}
	}
	return versionOf(stored), nil
}

// GetVersion returns one version.
func (s *Versions) GetVersion(ctx context.Context, r *adminv1.GetVersionRequest) (*adminv1.Version, error) {
	if violations := checkID("id", r.GetId()); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	stored, err := versiondb.Get(ctx, s.db, r.GetId())
	if err != nil {
		return nil, err
	}
	return versionOf(stored), nil
}

// ListVersions returns all versions, the newest first.
func (s *Versions) ListVersions(ctx context.Context, _ *adminv1.ListVersionsRequest) (*adminv1.ListVersionsResponse, error) {
	all, err := versiondb.List(ctx, s.db)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListVersionsResponse{Versions: make([]*adminv1.Version, len(all))}
	for i, stored := range all {
		response.Versions[i] = versionOf(stored)
	}
	return response, nil
}

// PromoteVersion makes a version the active one, if the one that the caller expects is active until then.
func (s *Versions) PromoteVersion(ctx context.Context, r *adminv1.PromoteVersionRequest) (*adminv1.Version, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := checkID("id", r.GetId())
	if r.GetExpectedActiveId() != "" {
		violations = append(violations, checkID("expected_active_id", r.GetExpectedActiveId())...)
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	var stored versiondb.Stored
	err = postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := versiondb.Promote(ctx, tx, r.GetId(), r.GetExpectedActiveId(), by); err != nil {
			return err
		}
		stored, err = versiondb.Get(ctx, tx, r.GetId())
		return err
	})
	if err != nil {
		return nil, err
	}
	return versionOf(stored), nil
}
