package policy

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
)

// The bounds of a policy's fields; lengths are in bytes.
const (
	maxRules = 100
	maxName  = 200
	maxWhen  = 2000
)

// check finds all that is wrong with a policy but for its conditions.
func check(p Policy) []error {
	var problems []error
	must := func(ok bool, field, problem string) {
		if !ok {
			problems = append(problems, &evaluation.FieldError{Field: field, Problem: problem})
		}
	}
	must(evaluation.ValidID(p.ID), "id", "must have 1 to 64 lower-case letters, digits, dots, dashes or underscores, and begin with a letter or digit")
	must(len(p.Description) <= evaluation.MaxDescriptionBytes && storable(p.Description), "description",
		fmt.Sprintf("must be valid UTF-8 without NUL, of at most %d bytes", evaluation.MaxDescriptionBytes))
	// Written so that NaN is out of range.
	must(p.UrgentThreshold >= 0 && p.UrgentThreshold <= 1, "urgent_threshold", "must be from 0 to 1")
	if len(p.Rules) == 0 || len(p.Rules) > maxRules {
		must(false, "rules", fmt.Sprintf("must have 1 to %d elements", maxRules))
		return problems
	}
	for i, r := range p.Rules {
		field := func(name string) string { return fmt.Sprintf("rules[%d].%s", i, name) }
		must(line(r.Name) && content.Visible(r.Name), field("name"), fmt.Sprintf("must be a visible name of one line, of at most %d bytes", maxName))
		first := slices.IndexFunc(p.Rules, func(other Rule) bool { return other.Name == r.Name })
		must(first == i || r.Name == "", field("name"), fmt.Sprintf("is the name of rules[%d] too", first))
		must(len(r.When) <= maxWhen, field("when"), fmt.Sprintf("must have at most %d bytes", maxWhen))
		must(slices.Contains(Priorities(), r.Priority), field("priority"), "must be one of: "+strings.Join(Priorities(), ", "))
		must(line(r.Queue) && (r.Queue == "" || content.Visible(r.Queue)), field("queue"),
			fmt.Sprintf("must be empty, or a visible name of one line, of at most %d bytes", maxName))
	}
	last := len(p.Rules) - 1
	must(p.Rules[last].When == always, fmt.Sprintf("rules[%d].when", last), `must be "true": the last rule decides what no other did`)
	return problems
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func line(s string) bool {
	return len(s) <= maxName && storable(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
