package api

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	known := false
	version, err := change(ctx, s.db, "VersionService.RegisterVersion", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Version, effect, error) {
		created, err := versiondb.Register(ctx, tx, v, by)
		if err != nil {
			return nil, effect{}, err
		}
		stored, err := versiondb.Get(ctx, tx, v.ID)
		if err != nil {
			return nil, effect{}, err
		}
		known = !created
		did := effect{target: "versions/" + v.ID}
		if created {
			did.after = map[string]string{"digest": hex.EncodeToString(stored.Digest[:])}
		}
		return versionOf(stored), did, nil
	})
	if err != nil {
		return nil, err
	}
	if known {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark version %s as replayed: %w", v.ID, err)
		}
	}
	return version, nil
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
func (s *Versions) PromoteVersion(ctx context.Context, r *adminv1.PromoteVersionRequest) (*adminv1.PromoteVersionResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := checkID("id", r.GetId())
	if r.GetExpectedActiveId() != "" {
		violations = append(violations, checkID("expected_active_id", r.GetExpectedActiveId())...)
	}
	if violations = append(violations, checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "VersionService.PromoteVersion", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.PromoteVersionResponse, effect, error) {
		active, err := versiondb.LockActive(ctx, tx)
		if err != nil {
			return nil, effect{}, err
		}
		if err := versiondb.Promote(ctx, tx, r.GetId(), r.GetExpectedActiveId(), by); err != nil {
			return nil, effect{}, err
		}
		return promoted(ctx, tx, r.GetId(), active)
	})
}

// activeVersion is what the record says of what is active.
type activeVersion struct {
	VersionID string `json:"version_id"`
}

// promoted is the response to a promotion, and what it did.
func promoted(ctx context.Context, tx pgx.Tx, id, before string) (*adminv1.PromoteVersionResponse, effect, error) {
	stored, err := versiondb.Get(ctx, tx, id)
	if err != nil {
		return nil, effect{}, err
	}
	response := &adminv1.PromoteVersionResponse{Version: versionOf(stored)}
	did := effect{target: "activeVersion", after: activeVersion{id}}
	if before != "" {
		did.before = activeVersion{before}
	}
	if before != id {
		response.ReplacedId = before
	}
	return response, did, nil
}
