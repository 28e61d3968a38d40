package api

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/reprocess"
)

const (
	defaultSpread = 30 * time.Minute
	maxSpread     = 30 * 24 * time.Hour
	maxWithin     = 100 * 365 * 24 * time.Hour
)

// filterStates are the states that a selection may name.
var filterStates = []string{string(outbox.Pending), string(outbox.Processing), string(outbox.Succeeded), string(outbox.Dead), ticketdb.NoWork}

// specFrom is what is asked for, or all that is wrong with it, by field.
func specFrom(m *adminv1.ReprocessSelection, spread *durationpb.Duration) (reprocess.Spec, []rpc.Violation) {
	var violations []rpc.Violation
	refuse := func(field, reason, description string) {
		violations = append(violations, rpc.Violation{Field: field, Reason: reason, Description: description})
	}
	s := reprocess.Spec{
		Version: m.GetVersion(), ClientID: m.GetClientId(), Department: m.GetDepartment(), States: m.GetStates(),
		OnlyMissing: m.GetOnlyMissing(), Limit: m.GetLimit(), SpreadSeconds: defaultSpread.Seconds(),
	}
	if m.GetVersion() == "" {
		refuse("selection.version", "REQUIRED", "must be given")
	} else {
		violations = append(violations, checkID("selection.version", m.GetVersion())...)
	}
	within := m.GetCreatedWithin()
	switch {
	case within == nil:
	case m.GetCreatedFrom() != nil:
		refuse("selection.created_within", "CONFLICT", "must not be given beside created_from")
	case !within.IsValid() || within.AsDuration() <= 0 || within.AsDuration() > maxWithin:
		refuse("selection.created_within", "OUT_OF_RANGE", "must be above 0, and at most 100 years")
	default:
		s.Within = within.AsDuration()
	}
	for _, end := range []struct {
		field    string
		at       *timestamppb.Timestamp
		into     *time.Time
		required bool
	}{{"selection.created_from", m.GetCreatedFrom(), &s.From, within == nil}, {"selection.created_to", m.GetCreatedTo(), &s.To, false}} {
		switch {
		case end.at == nil && end.required:
			refuse(end.field, "REQUIRED", "must be given: in RFC 3339 with an offset, such as 2026-11-01T00:00:00+01:00")
		case end.at != nil && !end.at.IsValid():
			refuse(end.field, "OUT_OF_RANGE", "must be from the years 1 to 9999")
		case end.at != nil:
			*end.into = end.at.AsTime().Truncate(time.Microsecond) // as the database has it
		}
	}
	for i, state := range m.GetStates() {
		if !slices.Contains(filterStates, state) {
			refuse(fmt.Sprintf("selection.states[%d]", i), "UNKNOWN", "must be pending, processing, succeeded, dead or none")
		}
	}
	for _, text := range []struct{ field, value string }{{"selection.client_id", m.GetClientId()}, {"selection.department", m.GetDepartment()}} {
		if slices.Contains([]byte(text.value), 0) {
			refuse(text.field, "MALFORMED", "must not hold NUL")
		}
	}
	if m.GetLimit() < 0 {
		refuse("selection.limit", "OUT_OF_RANGE", "must not be negative")
	}
	if spread != nil {
		if d := spread.AsDuration(); !spread.IsValid() || d < 0 || d > maxSpread {
			refuse("spread", "OUT_OF_RANGE", "must be from 0 to 30 days")
		}
		s.SpreadSeconds = spread.AsDuration().Seconds()
	}
	return s, violations
}

func maximumFrom(text string) (*decimal.Decimal, []rpc.Violation) {
	if text == "" {
		return nil, nil
	}
	if d, ok := priceFrom(text); ok && d.IsPositive() {
		return &d, nil
	}
	return nil, []rpc.Violation{{
		Field: "max_cost_usd", Reason: "MALFORMED", Description: `must be a decimal number above 0, such as "12.50"`,
	}}
}

func jobIDFrom(text string) (uuid.UUID, []rpc.Violation) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return uuid.Nil, []rpc.Violation{{Field: "id", Reason: "MALFORMED", Description: "must be the id of a job, such as 01932c07-209c-7000-8000-000000000000"}}
	}
	return id, nil
}

func estimateOf(e reprocess.Estimate) *adminv1.ReprocessEstimate {
	return &adminv1.ReprocessEstimate{
		Tickets: e.Tickets, Contents: e.Contents, AlreadyAnswered: e.Answered, AlreadyQueued: e.Queued, AlreadyDead: e.Dead, Calls: e.Calls(),
		CostUsd: e.CostUSD.String(), CostBasis: adminv1.CostBasis(e.CostBasis), BasisCalls: e.BasisCalls,
		Duration: durationpb.New(e.Duration.Round(time.Second)), PaceBasis: adminv1.PaceBasis(e.PaceBasis), CallsPerSecond: e.CallsPerSecond,
	}
}

func reprocessOf(j jobdb.Job, p reprocess.Progress) (*adminv1.Reprocess, error) {
	spec, err := reprocess.SpecOf(j)
	if err != nil {
		return nil, err
	}
	shown := &adminv1.Reprocess{
		Id: j.ID.String(), State: string(j.State), StateReason: j.Reason, Phase: p.Phase,
		Selection: &adminv1.ReprocessSelection{
			CreatedFrom: timestamppb.New(spec.From), CreatedTo: timestamppb.New(spec.To), Version: spec.Version, ClientId: spec.ClientID,
			Department: spec.Department, States: spec.States, OnlyMissing: spec.OnlyMissing, Limit: spec.Limit,
		},
		Spread: durationpb.New(spec.Spread()),
		Progress: &adminv1.ReprocessProgress{
			Total: p.Total, Seen: p.Seen, Examined: p.Examined, Enqueued: p.Enqueued, AlreadyAnswered: p.AlreadyAnswered,
			AlreadyQueued: p.AlreadyQueued, AlreadyDead: p.AlreadyDead, Waiting: p.Waiting, Held: p.Held, Processing: p.Processing,
			Evaluated: p.Evaluated, Dead: p.Dead, TakenOver: p.TakenOver, Removed: p.Removed, Kept: p.Kept, SpentUsd: p.SpentUSD.String(),
		},
		CreatedBy: j.CreatedBy, CreateTime: timestamppb.New(j.CreatedAt), StateTime: timestamppb.New(j.ChangedAt),
	}
	if spec.MaxCostUSD != nil {
		shown.MaxCostUsd = spec.MaxCostUSD.String()
	}
	if !p.ETA.IsZero() {
		shown.Progress.Eta = timestamppb.New(p.ETA)
	}
	if !j.FinishedAt.IsZero() {
		shown.FinishTime = timestamppb.New(j.FinishedAt)
	}
	return shown, nil
}
