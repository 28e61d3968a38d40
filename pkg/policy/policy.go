// Package policy holds the rules of what follows from an answer: a [Policy] is a list of rules, the first that holds gives
// the ticket's priority and queue. It takes and returns values, and does no I/O.
//
// A rule's condition is an expression in CEL (https://cel.dev) that is true or false. It knows
//
//	department        string  the answer's department
//	is_urgent         double  how sure the model is that the ticket is urgent, from 0 to 1
//	urgency_score     double  how urgent it is, from 0 to 1
//	urgent_threshold  double  the policy's own
//
// and the operators and functions of CEL, without its macros. Conditions are type-checked when a policy is compiled, and
// tried on answers of all kinds. What one may cost to evaluate is bounded: a condition that nevertheless fails on an answer
// does not hold for it. The condition of the last rule is true, so that a decision always follows.
package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

// Policy is what follows from an answer. It is immutable once registered.
type Policy struct {
	ID              string
	Description     string
	UrgentThreshold float64 // is_urgent at which a ticket counts as urgent; conditions and comparisons use it
	Rules           []Rule
}

// Rule gives a decision where its condition holds and no earlier one's does.
type Rule struct {
	Name     string `json:"name"`
	When     string `json:"when"`     // in CEL
	Priority string `json:"priority"` // one of Priorities
	Queue    string `json:"queue"`    // empty for the department's own
}

// Priorities are the closed list of them, the most urgent first.
func Priorities() []string { return []string{"urgent", "high", "normal", "low"} }

// Compiled is a policy that is ready to decide. It is safe for concurrent use.
type Compiled struct {
	policy     Policy
	conditions []cel.Program
}

const (
	always  = "true" // the condition of the last rule
	maxCost = 5_000  // of one condition for one answer, in CEL's units: a comparison costs 1
)

// Compile makes a policy ready, or returns every problem of it at once: each is an [evaluation.FieldError], and they are
// joined by [errors.Join].
func Compile(p Policy) (*Compiled, error) {
	problems := check(p)
	env, err := cel.NewEnv(
		cel.ClearMacros(),
		cel.Variable("department", cel.StringType), cel.Variable("is_urgent", cel.DoubleType),
		cel.Variable("urgency_score", cel.DoubleType), cel.Variable("urgent_threshold", cel.DoubleType),
	)
	if err != nil {
		return nil, fmt.Errorf("make the environment of conditions: %w", err)
	}
	compiled := &Compiled{policy: p, conditions: make([]cel.Program, len(p.Rules))}
	for i, rule := range p.Rules {
		if len(rule.When) > maxWhen || len(p.Rules) > maxRules {
			continue // reported already, and not to be parsed
		}
		var wrong []string
		if compiled.conditions[i], wrong = compiled.condition(env, rule.When); len(wrong) > 0 {
			for _, problem := range wrong {
				problems = append(problems, &evaluation.FieldError{Field: fmt.Sprintf("rules[%d].when", i), Problem: problem})
			}
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return compiled, nil
}

// condition compiles an expression and tries it out.
func (c *Compiled) condition(env *cel.Env, expression string) (program cel.Program, problems []string) {
	ast, issues := env.Compile(expression)
	if issues != nil && issues.Err() != nil {
		for _, e := range issues.Errors() {
			problems = append(problems, fmt.Sprintf("line %d, column %d: %s", max(e.Location.Line(), 1), max(e.Location.Column(), 0)+1, e.Message))
		}
		return nil, problems
	}
	if ast.OutputType() != cel.BoolType {
		return nil, []string{fmt.Sprintf("must be true or false, and not of type %s", ast.OutputType())}
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, []string{fmt.Sprintf("cannot be evaluated: %v", err)}
	}
	for _, a := range probes() {
		if _, err := c.holds(program, a); err != nil {
			return nil, []string{fmt.Sprintf("cannot be evaluated for the department %q, is_urgent %g and urgency_score %g: %v", a.Department, a.IsUrgent, a.UrgencyScore, err)}
		}
	}
	return program, nil
}

// probes are answers on which every condition is tried.
func probes() []evaluation.Answer {
	var all []evaluation.Answer
	for _, department := range []string{"a", "Technical support", "部署", strings.Repeat("x", evaluation.MaxNameBytes)} {
		for _, urgent := range []float64{0, 0.5, 1} {
			for _, score := range []float64{0, 0.5, 1} {
				all = append(all, evaluation.Answer{Department: department, IsUrgent: urgent, UrgencyScore: score})
			}
		}
	}
	return all
}

func (c *Compiled) holds(condition cel.Program, a evaluation.Answer) (bool, error) {
	value, _, err := condition.Eval(map[string]any{
		"department": a.Department, "is_urgent": a.IsUrgent, "urgency_score": a.UrgencyScore, "urgent_threshold": c.policy.UrgentThreshold,
	})
	if err != nil {
		return false, err
	}
	return value.Value() == true, nil
}

// Policy is what was compiled.
func (c *Compiled) Policy() Policy { return c.policy }

// Decide returns what follows from an answer.
func (c *Compiled) Decide(a evaluation.Answer) evaluation.Decision {
	rule := c.policy.Rules[len(c.policy.Rules)-1]
	for i, condition := range c.conditions {
		if holds, err := c.holds(condition, a); err == nil && holds {
			rule = c.policy.Rules[i]
			break
		}
	}
	queue := rule.Queue
	if queue == "" {
		queue = a.Department
	}
	return evaluation.Decision{PolicyVersion: c.policy.ID, Priority: rule.Priority, Queue: queue}
}

// Digest identifies what a policy decides:
//
//	sha256("evalonce/policy/1" ‖ urgent_threshold ‖ count(rules) ‖ (name ‖ when ‖ priority ‖ queue)…)
//
// where each text is its length in bytes followed by the bytes, each length and count is an 8-byte big-endian integer, and
// the threshold is the 8 bytes of its IEEE 754 form, big-endian. The format is stored, so it never changes under its name.
func (p Policy) Digest() [32]byte {
	b := []byte("evalonce/policy/1")
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(p.UrgentThreshold))
	b = binary.BigEndian.AppendUint64(b, uint64(len(p.Rules)))
	for _, r := range p.Rules {
		for _, text := range []string{r.Name, r.When, r.Priority, r.Queue} {
			b = binary.BigEndian.AppendUint64(b, uint64(len(text)))
			b = append(b, text...)
		}
	}
	return sha256.Sum256(b)
}

// Diff compares policies field by field, but for their ids. Rules are compared as a text of lines.
func Diff(before, after Policy) []evaluation.Difference {
	var all []evaluation.Difference
	if before.Description != after.Description {
		all = append(all, evaluation.Difference{Field: "description", Old: before.Description, New: after.Description})
	}
	if before.UrgentThreshold != after.UrgentThreshold {
		all = append(all, evaluation.Difference{
			Field: "urgent_threshold", Old: fmt.Sprint(before.UrgentThreshold), New: fmt.Sprint(after.UrgentThreshold),
		})
	}
	if !slices.Equal(before.Rules, after.Rules) {
		all = append(all, evaluation.Difference{Field: "rules", Old: ruleLines(before), New: ruleLines(after), Lines: true})
	}
	return all
}

func ruleLines(p Policy) string {
	var b strings.Builder
	for _, r := range p.Rules {
		fmt.Fprintf(&b, "%q: when %q, priority %q, queue %q\n", r.Name, r.When, r.Priority, r.Queue)
	}
	return b.String()
}
