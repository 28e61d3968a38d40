package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/aymanbagabas/go-udiff"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/evaluation"
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

// ListVersions returns versions, the newest first.
func (s *Versions) ListVersions(ctx context.Context, r *adminv1.ListVersionsRequest) (*adminv1.ListVersionsResponse, error) {
	after, most, violations := pageOf(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	versions, err := versiondb.List(ctx, s.db, after, most+1)
	if err != nil {
		return nil, err
	}
	active, err := versiondb.GetActive(ctx, s.db)
	if err != nil && !errors.Is(err, versiondb.ErrNoActive) {
		return nil, err
	}
	response := &adminv1.ListVersionsResponse{ActiveId: active.ID}
	if len(versions) > most {
		versions = versions[:most]
		response.NextPageToken = nextPage(r, versions[most-1].ID)
	}
	for _, stored := range versions {
		response.Versions = append(response.Versions, versionOf(stored))
	}
	return response, nil
}

// DiffVersions tells what changes from one version to another.
func (s *Versions) DiffVersions(ctx context.Context, r *adminv1.DiffVersionsRequest) (*adminv1.DiffVersionsResponse, error) {
	if violations := append(checkID("id", r.GetId()), checkID("other_id", r.GetOtherId())...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	before, err := versiondb.Get(ctx, s.db, r.GetId())
	if err != nil {
		return nil, err
	}
	after, err := versiondb.Get(ctx, s.db, r.GetOtherId())
	if err != nil {
		return nil, err
	}
	response := &adminv1.DiffVersionsResponse{}
	for _, d := range evaluation.Diff(before.Version, after.Version) {
		shown := &adminv1.FieldDifference{Field: d.Field, AffectsAnswers: d.AffectsAnswers}
		if d.Lines {
			shown.UnifiedDiff = udiff.Unified(before.ID, after.ID, d.Old, d.New)
		} else {
			shown.OldValue, shown.NewValue = d.Old, d.New
		}
		response.Differences = append(response.Differences, shown)
	}
	return response, nil
}
