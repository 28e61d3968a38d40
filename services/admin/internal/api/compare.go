package api

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/compare"
)

const (
	// maxTruth bounds what a comparison holds in memory.
	maxTruth             = 200_000
	defaultDisagreements = 20
	maxDisagreements     = 10_000
	// maxTruthProblems bounds an answer that would else be as long as the truth.
	maxTruthProblems = 20
)

// Compare is the CompareService.
type Compare struct {
	adminv1.UnimplementedCompareServiceServer
	db, replica *pgxpool.Pool
}

// NewCompare makes the service. Samples are in the database; comparisons read from the replica.
func NewCompare(db, replica *pgxpool.Pool) *Compare { return &Compare{db: db, replica: replica} }

// Compare sends a summary, and then the tickets on which the two disagree most.
func (s *Compare) Compare(r *adminv1.CompareRequest, stream grpc.ServerStreamingServer[adminv1.CompareResponse]) error {
	request, violations := comparisonFrom(r)
	if len(violations) > 0 {
		return rpc.InvalidFields(violations...)
	}
	return compare.Run(stream.Context(), s.replica, request, stream.Send)
}

func comparisonFrom(r *adminv1.CompareRequest) (compare.Request, []rpc.Violation) {
	violations := checkID("version_id", r.GetVersionId())
	request := compare.Request{
		VersionID: r.GetVersionId(), OtherVersionID: r.GetOtherVersionId(), Worst: defaultDisagreements,
		Selection: comparison.Selection{SampleID: r.GetSampleId(), ClientID: r.GetClientId()},
	}
	refuse := func(field, reason, format string, args ...any) {
		violations = append(violations, rpc.Violation{Field: field, Reason: reason, Description: fmt.Sprintf(format, args...)})
	}
	judged := len(r.GetTruth()) > 0
	switch {
	case r.GetOtherVersionId() == "" && !judged:
		refuse("other_version_id", "REQUIRED", "must be given, or truth")
	case r.GetOtherVersionId() != "" && judged:
		refuse("truth", "CONFLICT", "cannot be given with other_version_id: a version is compared with one of the two")
	case judged:
		var wrong []rpc.Violation
		request.Truth, wrong = truthFrom(r.GetTruth())
		violations = append(violations, wrong...)
	default:
		violations = append(violations, checkID("other_version_id", r.GetOtherVersionId())...)
		if r.GetOtherVersionId() == r.GetVersionId() {
			refuse("other_version_id", "CONFLICT", "must be another version than version_id")
		}
	}
	if r.GetSampleId() == "" {
		violations = append(violations, checkRange(r.GetCreatedFrom(), r.GetCreatedTo(), !judged)...)
		if r.GetCreatedFrom() != nil {
			request.Selection.From = r.GetCreatedFrom().AsTime()
		}
		if r.GetCreatedTo() != nil {
			request.Selection.To = r.GetCreatedTo().AsTime()
		}
	} else {
		violations = append(violations, checkID("sample_id", r.GetSampleId())...)
		if r.GetCreatedFrom() != nil || r.GetCreatedTo() != nil || r.GetClientId() != "" {
			refuse("sample_id", "CONFLICT", "cannot be given with created_from, created_to or client_id: a sample has its own")
		}
	}
	violations = append(violations, checkClient(r.GetClientId())...)
	if r.MaxDisagreements != nil {
		request.Worst = int(r.GetMaxDisagreements())
		if request.Worst < 0 || request.Worst > maxDisagreements {
			refuse("max_disagreements", "OUT_OF_RANGE", "must be from 0 to %d", maxDisagreements)
		}
	}
	return request, violations
}

// checkClient finds what the database could not even look for.
func checkClient(id string) []rpc.Violation {
	if strings.ContainsRune(id, 0) {
		return []rpc.Violation{{Field: "client_id", Reason: "MALFORMED", Description: "must not hold NUL"}}
	}
	return nil
}

// checkRange finds what is wrong with a half-open range; one that is not needed may leave its ends out.
func checkRange(from, to *timestamppb.Timestamp, needed bool) []rpc.Violation {
	var violations []rpc.Violation
	for _, end := range []struct {
		field string
		at    *timestamppb.Timestamp
	}{{"created_from", from}, {"created_to", to}} {
		switch {
		case end.at == nil && needed:
			violations = append(violations, rpc.Violation{Field: end.field, Reason: "REQUIRED", Description: "must be given"})
		case end.at != nil && !end.at.IsValid():
			violations = append(violations, rpc.Violation{Field: end.field, Reason: "OUT_OF_RANGE", Description: "must be from the years 1 to 9999"})
		}
	}
	if len(violations) == 0 && from != nil && to != nil && !from.AsTime().Before(to.AsTime()) {
		violations = append(violations, rpc.Violation{Field: "created_to", Reason: "OUT_OF_RANGE", Description: "must be after created_from"})
	}
	return violations
}

func truthFrom(rows []*adminv1.Truth) ([]compare.Truth, []rpc.Violation) {
	if len(rows) > maxTruth {
		return nil, []rpc.Violation{{
			Field: "truth", Reason: rpc.ReasonFieldTooLarge, Description: fmt.Sprintf("must be at most %d rows, not %d: compare in parts", maxTruth, len(rows)),
		}}
	}
	var violations []rpc.Violation
	refuse := func(i int, field, reason, description string) {
		if len(violations) < maxTruthProblems {
			violations = append(violations, rpc.Violation{Field: fmt.Sprintf("truth[%d]%s", i, field), Reason: reason, Description: description})
		}
	}
	truth := make([]compare.Truth, len(rows))
	for i, r := range rows {
		truth[i] = compare.Truth{ExternalID: r.GetExternalId(), Department: strings.TrimSpace(r.GetDepartment()), Urgent: r.Urgent}
		if truth[i].Department == "" {
			refuse(i, ".department", "REQUIRED", "must be given")
		}
		switch {
		case (r.GetTicketId() == "") == (r.GetExternalId() == ""):
			refuse(i, "", "CONFLICT", "must have a ticket_id or an external_id, and not both")
		case r.GetTicketId() != "":
			id, err := uuid.Parse(r.GetTicketId())
			if err != nil {
				refuse(i, ".ticket_id", "MALFORMED", "must be a UUID")
			}
			truth[i].TicketID = id
		case strings.ContainsRune(r.GetExternalId(), 0):
			refuse(i, ".external_id", "MALFORMED", "must not hold NUL")
		}
	}
	return truth, violations
}
