package api

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/telemetry"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

func ticketOf(t ticketdb.Ticket) *ticketv1.Ticket {
	shown := &ticketv1.Ticket{
		Id: t.ID.String(), ClientId: t.ClientID, ExternalId: t.ExternalID, Subject: t.Subject, Message: t.Message,
		CreateTime: timestamppb.New(t.CreatedAt), Evaluation: evaluationOf(t.Evaluation),
	}
	if created := telemetry.Extract(t.TraceContext); created.HasTraceID() {
		shown.TraceId = created.TraceID().String()
	}
	return shown
}

func evaluationOf(e ticketdb.Evaluation) *ticketv1.Evaluation {
	shown := &ticketv1.Evaluation{
		State: stateOf(e.State), EvaluationKey: string(e.Key), VersionId: e.VersionID,
		AnsweredWithoutCall: e.AnsweredWithoutCall, Attempts: int32(e.Attempts),
	}
	if a := e.Answer; a != nil {
		shown.Answer = &ticketv1.Answer{
			Department: a.Department, UrgencyScore: a.UrgencyScore, IsUrgent: a.IsUrgent,
			ModelVersion: a.ModelVersion, PromptVersion: a.PromptVersion, PolicyVersion: a.PolicyVersion,
			Priority: a.Priority, Queue: a.Queue, ModelCallId: a.ModelCallID.String(),
			ComputeTime: timestamppb.New(a.ComputedAt), TraceId: a.TraceID,
		}
	}
	if d := e.Dead; d != nil {
		shown.DeadLetter = &ticketv1.DeadLetter{Class: d.Class, Reason: d.Reason, DeadTime: timestamppb.New(d.At)}
	}
	return shown
}

func stateOf(state outbox.State) ticketv1.Evaluation_State {
	switch state {
	case outbox.Pending:
		return ticketv1.Evaluation_PENDING
	case outbox.Processing:
		return ticketv1.Evaluation_PROCESSING
	case outbox.Succeeded:
		return ticketv1.Evaluation_SUCCEEDED
	case outbox.Dead:
		return ticketv1.Evaluation_DEAD_LETTER
	default:
		return ticketv1.Evaluation_STATE_UNSPECIFIED
	}
}

// storedState is the inverse of stateOf; a number that no state has is not known.
func storedState(state ticketv1.Evaluation_State) (_ outbox.State, known bool) {
	for _, s := range []outbox.State{outbox.Absent, outbox.Pending, outbox.Processing, outbox.Succeeded, outbox.Dead} {
		if stateOf(s) == state {
			return s, true
		}
	}
	return outbox.Absent, false
}
