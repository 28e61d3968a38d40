package compare

import (
	"bytes"
	"cmp"
	"container/heap"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/evaluation"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// disagreement is a ticket of which two do not say the same.
type disagreement struct {
	pair                  comparison.Pair
	side, other           comparison.Side
	decision, alternative evaluation.Decision
	truth                 *Truth // nil when the other is a version
	distance              float64
}

// more puts the greater distance first, and the older ticket where distances are equal: the same question has the same
// answer, in whatever order tickets are read.
func (d disagreement) more(e disagreement) int {
	if c := cmp.Compare(e.distance, d.distance); c != 0 {
		return c
	}
	return bytes.Compare(d.pair.TicketID[:], e.pair.TicketID[:])
}

func (d disagreement) message(responses map[uuid.UUID][]byte) *adminv1.Disagreement {
	m := &adminv1.Disagreement{
		TicketId: d.pair.TicketID.String(), ExternalId: d.pair.ExternalID, ClientId: d.pair.ClientID,
		CreateTime: timestamppb.New(d.pair.CreatedAt), Distance: d.distance, Answer: answerOf(d.side, d.decision, responses),
	}
	if d.truth == nil {
		m.OtherAnswer = answerOf(d.other, d.alternative, responses)
	} else {
		m.TrueDepartment, m.TrueUrgent = d.truth.Department, d.truth.Urgent
	}
	return m
}

func answerOf(s comparison.Side, d evaluation.Decision, responses map[uuid.UUID][]byte) *adminv1.ComparedAnswer {
	return &adminv1.ComparedAnswer{
		Department: s.Department, IsUrgent: s.IsUrgent, UrgencyScore: s.UrgencyScore, ModelVersion: s.ModelVersion,
		Priority: d.Priority, Queue: d.Queue, ModelCallId: s.ModelCallID.String(), ComputeTime: timestamppb.New(s.ComputedAt),
		RawResponse: readable(responses[s.ModelCallID]),
	}
}

// worst keeps the greatest disagreements, up to its limit: a heap with the least of them on top.
type worst struct {
	limit int
	kept  []disagreement
}

func (w *worst) Len() int           { return len(w.kept) }
func (w *worst) Less(i, j int) bool { return w.kept[i].more(w.kept[j]) > 0 }
func (w *worst) Swap(i, j int)      { w.kept[i], w.kept[j] = w.kept[j], w.kept[i] }
func (w *worst) Push(x any)         { w.kept = append(w.kept, x.(disagreement)) } //nolint:forcetypeassert // heap.Push is called below alone
func (w *worst) Pop() any           { panic("nothing is popped") }

func (w *worst) add(d disagreement) {
	switch {
	case w.limit == 0 || d.distance == 0:
	case len(w.kept) < w.limit:
		heap.Push(w, d)
	case d.more(w.kept[0]) < 0:
		w.kept[0] = d
		heap.Fix(w, 0)
	}
}

func (w *worst) sorted() []disagreement {
	slices.SortFunc(w.kept, disagreement.more)
	return w.kept
}
