package api

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const (
	defaultMinCoverage    = 0.95
	defaultCoverageWindow = 30 * 24 * time.Hour
)

// coverageTerms are what a promotion asks of the version's coverage.
type coverageTerms struct {
	min    float64
	window time.Duration
	force  bool
}

func coverageTermsFrom(r *adminv1.PromoteVersionRequest) (coverageTerms, []rpc.Violation) {
	terms := coverageTerms{min: defaultMinCoverage, window: defaultCoverageWindow, force: r.GetForce()}
	var violations []rpc.Violation
	if r.MinCoverage != nil {
		// Written so that NaN is out of range.
		if terms.min = r.GetMinCoverage(); !(terms.min >= 0 && terms.min <= 1) {
			violations = append(violations, rpc.Violation{Field: "min_coverage", Reason: "OUT_OF_RANGE", Description: "must be from 0 to 1"})
		}
	}
	if r.GetWindow() != nil {
		var ok bool
		if terms.window, ok = ageFrom(r.GetWindow()); !ok {
			violations = append(violations, rpc.Violation{
				Field: "window", Reason: "OUT_OF_RANGE", Description: "must be whole seconds, from 1 second to 100 years",
			})
		}
	}
	return terms, violations
}

// PromoteVersion makes a version the active one, if the one that the caller expects is active until then, and if enough of
// the recent tickets have an answer under it.
func (s *Versions) PromoteVersion(ctx context.Context, r *adminv1.PromoteVersionRequest) (*adminv1.PromoteVersionResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := append(checkID("id", r.GetId()), checkExpected(r.GetExpectedActiveId())...)
	terms, wrong := coverageTermsFrom(r)
	violations = append(violations, wrong...)
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
		stored, err := versiondb.Get(ctx, tx, r.GetId())
		if err != nil {
			return nil, effect{}, err
		}
		response, did := promoted(stored, active)
		if active != "" && active != stored.ID {
			if response.Coverage, err = covered(ctx, tx, stored, terms); err != nil {
				return nil, effect{}, err
			}
		}
		return response, did, nil
	})
}

// RollbackVersion promotes the version that the last promotion replaced.
func (s *Versions) RollbackVersion(ctx context.Context, r *adminv1.RollbackVersionRequest) (*adminv1.PromoteVersionResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := append(checkExpected(r.GetExpectedActiveId()), checkChange(ctx, r)...)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "VersionService.RollbackVersion", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.PromoteVersionResponse, effect, error) {
		active, err := versiondb.LockActive(ctx, tx)
		if err != nil {
			return nil, effect{}, err
		}
		id, err := versiondb.Rollback(ctx, tx, r.GetExpectedActiveId(), by)
		if err != nil {
			return nil, effect{}, err
		}
		stored, err := versiondb.Get(ctx, tx, id)
		if err != nil {
			return nil, effect{}, err
		}
		response, did := promoted(stored, active)
		return response, did, nil
	})
}

// checkExpected finds what is wrong with the id that a compare-and-set expects, where there is one.
func checkExpected(id string) []rpc.Violation {
	if id == "" {
		return nil
	}
	return checkID("expected_active_id", id)
}

// promoted is the response to a promotion, and what it did; before is the id that was active until then.
func promoted(v versiondb.Stored, before string) (*adminv1.PromoteVersionResponse, effect) {
	type active struct {
		VersionID string `json:"version_id"`
	}
	response := &adminv1.PromoteVersionResponse{Version: versionOf(v)}
	did := effect{target: "activeVersion", after: active{v.ID}}
	if before != "" {
		did.before = active{before}
	}
	if before != v.ID {
		response.ReplacedId = before
	}
	return response, did
}

// covered counts a version's coverage, and is an error when it is too low for the terms.
func covered(ctx context.Context, tx pgx.Tx, v versiondb.Stored, terms coverageTerms) (*adminv1.PromotionCoverage, error) {
	c, err := versiondb.Covered(ctx, tx, v.Digest, terms.window)
	if err != nil {
		return nil, err
	}
	shown := &adminv1.PromotionCoverage{
		Share: c.Share(), Contents: c.Contents, Answered: c.Answered, Window: durationpb.New(terms.window), Capped: c.Capped,
	}
	if c.Answered < c.Contents {
		shown.ReprocessCommand = fmt.Sprintf("evalctl reprocess start --since %s --version %s", span(terms.window), v.ID)
	}
	if c.Share() >= terms.min || terms.force {
		return shown, nil
	}
	share, least := strconv.FormatFloat(c.Share(), 'g', 4, 64), strconv.FormatFloat(terms.min, 'g', 4, 64)
	return nil, &rpc.Error{
		Code: codes.FailedPrecondition, Reason: reasonCoverageTooLow,
		Message: fmt.Sprintf("%d of %d distinct contents of the last %s have an answer under version %s: a coverage of %s, less than %s; fill it with: %s",
			c.Answered, c.Contents, span(terms.window), v.ID, share, least, shown.GetReprocessCommand()),
		Metadata: map[string]string{
			"coverage": share, "minCoverage": least, "contents": strconv.FormatInt(c.Contents, 10), "answered": strconv.FormatInt(c.Answered, 10),
			"reprocessCommand": shown.GetReprocessCommand(),
		},
	}
}

// span writes a length of time as evalctl reads it.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

// ListPromotions returns the history of the active version, the newest promotion first.
func (s *Versions) ListPromotions(ctx context.Context, r *adminv1.ListPromotionsRequest) (*adminv1.ListPromotionsResponse, error) {
	below, most, violations := numberedPageOf(r)
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	promotions, err := versiondb.Promotions(ctx, s.db, below, most+1)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListPromotionsResponse{}
	if len(promotions) > most {
		promotions = promotions[:most]
		response.NextPageToken = nextPage(r, strconv.FormatInt(promotions[most-1].ID, 10))
	}
	for _, p := range promotions {
		response.Promotions = append(response.Promotions, &adminv1.Promotion{
			VersionId: p.VersionID, ReplacedId: p.Replaced, Principal: p.By, Time: timestamppb.New(p.At),
		})
	}
	return response, nil
}
