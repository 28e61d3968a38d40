package evaluation_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		urgent, score float64
		want          string
	}{
		{0, 0, "low"},
		{0.49, 0.24, "low"},
		{0, 0.25, "normal"},
		{0.49, 0.74, "normal"},
		{0, 0.75, "high"},
		{0, 1, "high"},
		{0.5, 0, "high"},
		{1, 0.49, "high"},
		{0.5, 0.5, "urgent"},
		{1, 1, "urgent"},
	} {
		got := evaluation.DefaultPolicy(evaluation.Answer{IsUrgent: c.urgent, UrgencyScore: c.score, Department: "Billing"})
		want := evaluation.Decision{PolicyVersion: "builtin-1", Priority: c.want, Queue: "Billing"}
		if got != want {
			t.Errorf("is_urgent %v, urgency_score %v: %+v, want %+v", c.urgent, c.score, got, want)
		}
	}
}

func TestDefaultPolicyIsMonotone(t *testing.T) {
	t.Parallel()
	order := []string{"low", "normal", "high", "urgent"}
	rapid.Check(t, func(t *rapid.T) {
		fraction := rapid.Float64Range(0, 1)
		less := evaluation.Answer{IsUrgent: fraction.Draw(t, "urgent"), UrgencyScore: fraction.Draw(t, "score")}
		more := evaluation.Answer{
			IsUrgent:     rapid.Float64Range(less.IsUrgent, 1).Draw(t, "more urgent"),
			UrgencyScore: rapid.Float64Range(less.UrgencyScore, 1).Draw(t, "higher score"),
		}
		lower := slices.Index(order, evaluation.DefaultPolicy(less).Priority)
		higher := slices.Index(order, evaluation.DefaultPolicy(more).Priority)
		if lower < 0 || higher < lower {
			t.Fatalf("%+v is %d, %+v is %d", less, lower, more, higher)
		}
	})
}
