package policy_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/policy"
)

func rules(conditions ...string) policy.Policy {
	p := policy.Policy{ID: "p1", UrgentThreshold: 0.5}
	for i, when := range append(conditions, "true") {
		p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("rule %d", i), When: when, Priority: policy.Priorities()[min(i, 3)]})
	}
	return p
}

func TestTheFirstRuleThatHoldsDecides(t *testing.T) {
	t.Parallel()
	p := rules(`department == "billing" && urgency_score > 0.9`, `is_urgent >= urgent_threshold`, `department.startsWith("tech")`)
	p.Rules[0].Queue = "refunds"
	compiled, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[evaluation.Answer]evaluation.Decision{
		{Department: "billing", UrgencyScore: 0.95, IsUrgent: 1}:   {PolicyVersion: "p1", Priority: "urgent", Queue: "refunds"},
		{Department: "billing", UrgencyScore: 0.9, IsUrgent: 0.5}:  {PolicyVersion: "p1", Priority: "high", Queue: "billing"},
		{Department: "billing", UrgencyScore: 0.9, IsUrgent: 0.49}: {PolicyVersion: "p1", Priority: "low", Queue: "billing"},
		{Department: "technical"}:                                  {PolicyVersion: "p1", Priority: "normal", Queue: "technical"},
	} {
		if got := compiled.Decide(answer); got != want {
			t.Errorf("%+v: %+v, want %+v", answer, got, want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	with := func(change func(*policy.Policy)) policy.Policy {
		p := rules("urgency_score > 0.5")
		change(&p)
		return p
	}
	for name, c := range map[string]struct {
		p    policy.Policy
		want string // parts of the joined errors, one on each line
	}{
		"a name that is not known":   {rules("urgency > 0.5"), "rules[0].when line 1, column 1: undeclared reference to 'urgency'"},
		"types that do not go":       {rules("true", "1.0 > 0.5 &&\n  department > 0.5"), "rules[1].when line 2, column 14: found no matching overload"},
		"no truth value":             {rules("urgency_score + 1.0"), "rules[0].when must be true or false, and not of type double"},
		"an integer for a double":    {rules("urgency_score > 1"), "rules[0].when line 1, column 15: found no matching overload"},
		"what is no expression":      {rules("urgency_score >"), "rules[0].when line 1, column 16: Syntax error"},
		"an empty condition":         {rules(""), "rules[0].when line 1, column 1: Syntax error"},
		"a macro":                    {rules("[1, 2].all(x, x > 0)"), "rules[0].when line 1, column"},
		"what fails on some answers": {rules(`int(department) > 3`), `rules[0].when cannot be evaluated for the department "a", is_urgent 0`},
		"what costs too much":        {rules(strings.TrimSuffix(strings.Repeat(`department.matches("`+strings.Repeat("y", 400)+`") || `, 4), " || ")), `rules[0].when cannot be evaluated for the department "xxx`},
		"no id":                      {with(func(p *policy.Policy) { p.ID = "P 1" }), "id must have"},
		"a threshold beyond one":     {with(func(p *policy.Policy) { p.UrgentThreshold = 1.1 }), "urgent_threshold must be from 0 to 1"},
		"a threshold of NaN":         {with(func(p *policy.Policy) { p.UrgentThreshold = math.NaN() }), "urgent_threshold must be from 0 to 1"},
		"no rules":                   {policy.Policy{ID: "p1"}, "rules must have 1 to 100 elements"},
		"too many rules":             {rules(make([]string, 100)...), "rules must have 1 to 100 elements"},
		"a last rule with an if":     {with(func(p *policy.Policy) { p.Rules = p.Rules[:1] }), `rules[0].when must be "true"`},
		"an unknown priority":        {with(func(p *policy.Policy) { p.Rules[0].Priority = "asap" }), "rules[0].priority must be one of: urgent, high, normal, low"},
		"twins":                      {with(func(p *policy.Policy) { p.Rules[1].Name = p.Rules[0].Name }), "rules[1].name is the name of rules[0] too"},
		"a blank name":               {with(func(p *policy.Policy) { p.Rules[0].Name = "\u200b" }), "rules[0].name must be a visible name"},
		"a queue of two lines":       {with(func(p *policy.Policy) { p.Rules[0].Queue = "a\nb" }), "rules[0].queue must be empty, or a visible name"},
		"a description with NUL":     {with(func(p *policy.Policy) { p.Description = "a\x00" }), "description must be valid UTF-8"},
		"a condition beyond measure": {rules(strings.Repeat(" ", 2000) + "true"), "rules[0].when must have at most 2000 bytes"},
		"all at once": {
			with(func(p *policy.Policy) { p.ID, p.Rules[0].When, p.Rules[1].Priority = "", "x", "" }),
			"id must have\nrules[0].when line 1, column 1\nrules[1].priority must be",
		},
	} {
		_, err := policy.Compile(c.p)
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range strings.Split(c.want, "\n") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, without %q", name, err, part)
			}
		}
		for _, one := range joined.Unwrap() {
			var field *evaluation.FieldError
			if !errors.As(one, &field) {
				t.Errorf("%s: %v names no field", name, one)
			}
		}
	}
}

// The digest is stored: what it was is what it must stay.
func TestDigest(t *testing.T) {
	t.Parallel()
	base := rules("urgency_score > 0.5")
	const golden = "47760582922bdb5b50b3ff271114eb9a1f6d29562c240d9092d8f2a9765a6ed0"
	if d := base.Digest(); hex.EncodeToString(d[:]) != golden {
		t.Errorf("got %x, want %s", d, golden)
	}
	seen := map[[32]byte]string{base.Digest(): "nothing"}
	for name, change := range map[string]func(*policy.Policy){
		"the threshold": func(p *policy.Policy) { p.UrgentThreshold = 0.25 },
		"a condition":   func(p *policy.Policy) { p.Rules[0].When += " " },
		"a priority":    func(p *policy.Policy) { p.Rules[0].Priority = "low" },
		"a queue":       func(p *policy.Policy) { p.Rules[0].Queue = "q" },
		"a name":        func(p *policy.Policy) { p.Rules[0].Name = "other" },
		"one rule less": func(p *policy.Policy) { p.Rules = p.Rules[1:] },
		"the order":     func(p *policy.Policy) { p.Rules[0], p.Rules[1] = p.Rules[1], p.Rules[0] },
	} {
		p := rules("urgency_score > 0.5")
		change(&p)
		if other, taken := seen[p.Digest()]; taken {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[p.Digest()] = name
		if d := policy.Diff(base, p); len(d) != 1 {
			t.Errorf("%s makes the differences %+v", name, d)
		}
	}
	described := base
	described.Description = "d"
	if described.Digest() != base.Digest() || len(policy.Diff(base, described)) != 1 || len(policy.Diff(base, base)) != 0 {
		t.Error("a description decides nothing, and is a difference")
	}
}
