package policy_test

import (
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/policy"
)

// A condition that is accepted decides every answer, at a bounded cost, and always the same.
func FuzzCondition(f *testing.F) {
	for _, s := range []string{
		`is_urgent >= urgent_threshold`, `department == "billing" && urgency_score > 0.5`, `true`, `1`, `"a" + "b"`, `[1, 2].all(x, x > 0)`, `department.matches("(a+)+$")`,
		`department.contains("x") ? is_urgent > 0.1 : false`, `size(department) / 0 == 1`, `((((((`, "\x00", `{"a": 1}["b"] == 1`, `department in ["a", "b"]`,
	} {
		f.Add(s, "billing", 0.5)
	}
	f.Fuzz(func(t *testing.T, condition, department string, score float64) {
		p := policy.Policy{ID: "p-1", UrgentThreshold: 0.5, Rules: []policy.Rule{
			{Name: "first", When: condition, Priority: "high", Queue: "special"}, {Name: "rest", When: "true", Priority: "low"},
		}}
		compiled, err := policy.Compile(p)
		if err != nil {
			return
		}
		answer := evaluation.Answer{Department: department, IsUrgent: score, UrgencyScore: score}
		decision := compiled.Decide(answer)
		if decision.Priority != "high" && decision.Priority != "low" {
			t.Errorf("%q decides %+v", condition, decision)
		}
		if again := compiled.Decide(answer); again != decision {
			t.Errorf("%q decides %+v, and then %+v", condition, decision, again)
		}
	})
}
