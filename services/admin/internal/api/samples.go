package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const maxSampleSize = 1_000_000

// CreateSample draws a sample. The answer to a draw that was made before is marked as replayed.
func (s *Compare) CreateSample(ctx context.Context, r *adminv1.CreateSampleRequest) (*adminv1.Sample, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	violations := slices.Concat(checkID("id", r.GetId()), checkRange(r.GetCreatedFrom(), r.GetCreatedTo(), true), checkClient(r.GetClientId()), checkChange(ctx, r))
	if size := r.GetSize(); size < 1 || size > maxSampleSize {
		violations = append(violations, rpc.Violation{
			Field: "size", Reason: "OUT_OF_RANGE", Description: fmt.Sprintf("must be from 1 to %d", maxSampleSize),
		})
	}
	if len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	draw := comparison.Draw{
		// The tables know microseconds.
		From: r.GetCreatedFrom().AsTime().Truncate(time.Microsecond), To: r.GetCreatedTo().AsTime().Truncate(time.Microsecond),
		ClientID: r.GetClientId(), Size: r.GetSize(), Seed: r.GetSeed(),
	}
	known := false
	sample, err := change(ctx, s.db, "CompareService.CreateSample", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.Sample, effect, error) {
		created, err := comparison.CreateSample(ctx, tx, r.GetId(), draw, by)
		if err != nil {
			return nil, effect{}, err
		}
		stored, err := comparison.GetSample(ctx, tx, r.GetId())
		if err != nil {
			return nil, effect{}, err
		}
		known = !created
		did := effect{target: "samples/" + r.GetId()}
		if created {
			did.after = recordOfSample(stored)
		}
		return sampleOf(stored), did, nil
	})
	if err != nil {
		return nil, err
	}
	if known {
		if err := rpc.MarkReplayed(ctx); err != nil {
			return nil, fmt.Errorf("mark sample %s as replayed: %w", r.GetId(), err)
		}
	}
	return sample, nil
}

// GetSample returns one sample.
func (s *Compare) GetSample(ctx context.Context, r *adminv1.GetSampleRequest) (*adminv1.Sample, error) {
	if violations := checkID("id", r.GetId()); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	stored, err := comparison.GetSample(ctx, s.db, r.GetId())
	if err != nil {
		return nil, err
	}
	return sampleOf(stored), nil
}

// ListSamples returns all samples, the newest first.
func (s *Compare) ListSamples(ctx context.Context, _ *adminv1.ListSamplesRequest) (*adminv1.ListSamplesResponse, error) {
	all, err := comparison.ListSamples(ctx, s.db)
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListSamplesResponse{Samples: make([]*adminv1.Sample, len(all))}
	for i, stored := range all {
		response.Samples[i] = sampleOf(stored)
	}
	return response, nil
}

// DeleteSample forgets a sample.
func (s *Compare) DeleteSample(ctx context.Context, r *adminv1.DeleteSampleRequest) (*adminv1.DeleteSampleResponse, error) {
	if violations := append(checkID("id", r.GetId()), checkChange(ctx, r)...); len(violations) > 0 {
		return nil, rpc.InvalidFields(violations...)
	}
	return change(ctx, s.db, "CompareService.DeleteSample", r, func(ctx context.Context, tx pgx.Tx) (*adminv1.DeleteSampleResponse, effect, error) {
		stored, err := comparison.GetSample(ctx, tx, r.GetId())
		if err != nil {
			return nil, effect{}, err
		}
		if err := comparison.DeleteSample(ctx, tx, r.GetId()); err != nil {
			return nil, effect{}, err
		}
		return &adminv1.DeleteSampleResponse{}, effect{target: "samples/" + r.GetId(), before: recordOfSample(stored)}, nil
	})
}

func sampleOf(s comparison.Sample) *adminv1.Sample {
	return &adminv1.Sample{
		Id: s.ID, CreatedFrom: timestamppb.New(s.From), CreatedTo: timestamppb.New(s.To), ClientId: s.ClientID, Size: s.Size, Seed: s.Seed,
		Tickets: int32(s.Tickets), CreatedBy: s.CreatedBy, CreateTime: timestamppb.New(s.CreatedAt),
	}
}

// sampleRecord is a sample as the record of changes has it.
type sampleRecord struct {
	comparison.Draw
	Tickets int `json:"tickets"`
}

func recordOfSample(s comparison.Sample) sampleRecord {
	return sampleRecord{Draw: s.Draw, Tickets: s.Tickets}
}
