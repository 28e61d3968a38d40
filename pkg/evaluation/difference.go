package evaluation

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shopspring/decimal"
)

// Difference is what one field of two versions says.
type Difference struct {
	Field    string // as the API names it, such as prices.input_usd_per_mtok
	Old, New string
	// Lines says that the values are texts of lines.
	Lines bool
	// AffectsAnswers says that the field decides answers: the versions' digests differ.
	AffectsAnswers bool
}

// Diff compares versions field by field, but for their ids, and prices by value: 0.5 is 0.50. Versions without a
// difference are the same.
func Diff(before, after Version) []Difference {
	var all []Difference
	field := func(d Difference) {
		if d.Old != d.New {
			all = append(all, d)
		}
	}
	answers := func(name, before, after string) {
		field(Difference{Field: name, Old: before, New: after, AffectsAnswers: true})
	}
	other := func(name, before, after string) { field(Difference{Field: name, Old: before, New: after}) }
	price := func(name string, before, after decimal.Decimal) {
		other("prices."+name, before.String(), after.String())
	}
	other("prompt_version", before.PromptVersion, after.PromptVersion)
	answers("provider", before.Provider, after.Provider)
	answers("model", before.Model, after.Model)
	answers("effort", before.Effort, after.Effort)
	field(Difference{Field: "prompt", Old: before.Prompt, New: after.Prompt, Lines: true, AffectsAnswers: true})
	if !slices.Equal(before.Departments, after.Departments) {
		all = append(all, Difference{
			Field: "departments", Old: departmentLines(before), New: departmentLines(after), Lines: true, AffectsAnswers: true,
		})
	}
	answers("max_output_tokens", strconv.Itoa(before.MaxOutputTokens), strconv.Itoa(after.MaxOutputTokens))
	answers("answer_schema", strconv.Itoa(before.AnswerSchema), strconv.Itoa(after.AnswerSchema))
	other("route", before.Route, after.Route)
	price("input_usd_per_mtok", before.Prices.InputUSDPerMTok, after.Prices.InputUSDPerMTok)
	price("cached_input_usd_per_mtok", before.Prices.CachedInputUSDPerMTok, after.Prices.CachedInputUSDPerMTok)
	price("output_usd_per_mtok", before.Prices.OutputUSDPerMTok, after.Prices.OutputUSDPerMTok)
	other("max_attempts", strconv.Itoa(before.MaxAttempts), strconv.Itoa(after.MaxAttempts))
	other("unknown_policy", string(before.UnknownPolicy), string(after.UnknownPolicy))
	other("max_unknown_calls", strconv.Itoa(before.MaxUnknownCalls), strconv.Itoa(after.MaxUnknownCalls))
	other("max_age", before.MaxAge.String(), after.MaxAge.String())
	return all
}

// departmentLines has the departments as they are told to the model, one on a line.
func departmentLines(v Version) string {
	var b strings.Builder
	for _, d := range v.Departments {
		b.WriteString(strconv.Quote(d.Name) + ": " + strconv.Quote(d.Description) + "\n")
	}
	return b.String()
}
