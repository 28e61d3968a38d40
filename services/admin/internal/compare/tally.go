package compare

import (
	"cmp"
	"math"
	"slices"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/evaluation"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// tally counts what two say of the same tickets.
type tally struct {
	policy      policy
	departments *departments
	compared    int64
	agreed      int64
	cells       map[[2]int]int64 // by the numbers of both departments
	urgency     adminv1.UrgencyAgreement
	scores      scores
	other       scores
	changes     map[decisions]int64
	changed     int64
	byVersion   bool // the other is a version
	worst       worst
}

// decisions are two of the policy's, without its name.
type decisions struct{ priority, queue, otherPriority, otherQueue string }

func newTally(p policy, limit int) *tally {
	return &tally{
		policy: p, departments: newDepartments(), cells: map[[2]int]int64{}, changes: map[decisions]int64{}, worst: worst{limit: limit},
	}
}

// pair counts a ticket that two versions have answered.
func (t *tally) pair(p comparison.Pair) {
	t.byVersion = true
	same := t.send(p.Side.Department, p.Other.Department)
	t.urgent(t.isUrgent(p.Side), t.isUrgent(p.Other))
	t.scores.add(p.Side.UrgencyScore)
	t.other.add(p.Other.UrgencyScore)
	d := disagreement{pair: p, side: p.Side, other: p.Other, decision: t.decide(p.Side), alternative: t.decide(p.Other)}
	if d.decision.Priority != d.alternative.Priority || d.decision.Queue != d.alternative.Queue {
		t.changed++
		t.changes[decisions{d.decision.Priority, d.decision.Queue, d.alternative.Priority, d.alternative.Queue}]++
	}
	d.distance = math.Abs(p.Side.IsUrgent-p.Other.IsUrgent) + math.Abs(p.Side.UrgencyScore-p.Other.UrgencyScore)
	if !same {
		d.distance++
	}
	t.worst.add(d)
}

// truth counts a ticket that the version has answered and somebody has decided on.
func (t *tally) truth(p comparison.Pair, truth Truth) {
	same := t.send(p.Side.Department, truth.Department)
	t.scores.add(p.Side.UrgencyScore)
	d := disagreement{pair: p, side: p.Side, truth: &truth, decision: t.decide(p.Side)}
	if !same {
		d.distance++
	}
	if truth.Urgent != nil {
		urgent := t.isUrgent(p.Side)
		t.urgent(urgent, *truth.Urgent)
		if urgent != *truth.Urgent {
			wanted := 0.0
			if *truth.Urgent {
				wanted = 1
			}
			d.distance += math.Abs(p.Side.IsUrgent - wanted)
		}
	}
	t.worst.add(d)
}

// send counts where both send a ticket, and reports whether it is the same department.
func (t *tally) send(department, other string) bool {
	a, b := t.departments.know(department, false), t.departments.know(other, true)
	t.compared++
	t.cells[[2]int{a, b}]++
	t.departments.list[a].Tickets++
	t.departments.list[b].OtherTickets++
	if a == b {
		t.agreed++
		t.departments.list[a].Agreed++
	}
	return a == b
}

func (t *tally) isUrgent(s comparison.Side) bool { return s.IsUrgent >= t.policy.urgentThreshold }

func (t *tally) urgent(version, other bool) {
	switch {
	case version && other:
		t.urgency.BothUrgent++
	case version:
		t.urgency.OnlyUrgent++
	case other:
		t.urgency.OnlyOtherUrgent++
	default:
		t.urgency.NeitherUrgent++
	}
}

func (t *tally) decide(s comparison.Side) evaluation.Decision {
	return t.policy.decide(evaluation.Answer{IsUrgent: s.IsUrgent, UrgencyScore: s.UrgencyScore, Department: s.Department})
}

// conclude writes what was counted into the summary.
func (t *tally) conclude(s *adminv1.Comparison) {
	s.Compared, s.Agreed = t.compared, t.agreed
	s.Agreement = share(float64(t.agreed), float64(t.compared))
	if s.GetTruth() != nil {
		t.departments.judge()
	}
	s.Departments = t.departments.list
	for at, n := range t.cells {
		s.Confusion = append(s.Confusion, &adminv1.ConfusionCell{
			Department: t.departments.list[at[0]].GetName(), OtherDepartment: t.departments.list[at[1]].GetName(), Tickets: n,
		})
	}
	slices.SortFunc(s.Confusion, func(a, b *adminv1.ConfusionCell) int {
		return cmp.Or(cmp.Compare(b.GetTickets(), a.GetTickets()), cmp.Compare(a.GetDepartment(), b.GetDepartment()),
			cmp.Compare(a.GetOtherDepartment(), b.GetOtherDepartment()))
	})
	u := &t.urgency
	same := u.GetBothUrgent() + u.GetNeitherUrgent()
	u.Agreement = share(float64(same), float64(same+u.GetOnlyUrgent()+u.GetOnlyOtherUrgent()))
	s.Urgency = u
	s.Scores = t.scores.message()
	if s.GetTruth() != nil {
		return
	}
	s.OtherScores = t.other.message()
	if t.compared > 0 {
		shift := t.other.mean() - t.scores.mean()
		s.ScoreShift = &shift
	}
	s.ChangedDecisions = &t.changed
	for d, n := range t.changes {
		s.DecisionChanges = append(s.DecisionChanges, &adminv1.DecisionChange{
			Priority: d.priority, Queue: d.queue, OtherPriority: d.otherPriority, OtherQueue: d.otherQueue, Tickets: n,
		})
	}
	slices.SortFunc(s.DecisionChanges, func(a, b *adminv1.DecisionChange) int {
		return cmp.Or(cmp.Compare(b.GetTickets(), a.GetTickets()), cmp.Compare(a.GetPriority(), b.GetPriority()), cmp.Compare(a.GetQueue(), b.GetQueue()),
			cmp.Compare(a.GetOtherPriority(), b.GetOtherPriority()), cmp.Compare(a.GetOtherQueue(), b.GetOtherQueue()))
	})
}

func decimalOf(n int64) decimal.Decimal { return decimal.NewFromInt(n) }
