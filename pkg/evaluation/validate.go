package evaluation

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
)

// The bounds of a version's fields; lengths are in bytes.
const (
	MaxPromptBytes      = 64 << 10
	MaxDepartments      = 200
	MaxNameBytes        = 200
	MaxDescriptionBytes = 4 << 10
)

// providers are the wire protocols that a version can name, in the schema too.
var providers = []string{"openai", "openai_responses", "anthropic"}

// identifier is the form of version ids and route names, in the schema too.
var identifier = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ValidID reports whether id has the form of the ids of versions and policies.
func ValidID(id string) bool { return identifier.MatchString(id) }

// FieldError says what is wrong with one field. Field is a path such as departments[2].name, and Problem completes
// the sentence that begins with it. It never repeats the field's value.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + " " + e.Problem }

// Validate returns every problem of the version at once: each is a [*FieldError], and they are joined by
// [errors.Join]. Fields that have defaults must have been filled in.
func (v Version) Validate() error {
	var c checker
	c.identifier("id", v.ID)
	c.name("prompt_version", v.PromptVersion)
	c.check(slices.Contains(providers, v.Provider), "provider", "must be one of: "+strings.Join(providers, ", "))
	c.name("model", v.Model)
	if v.Effort != "" {
		c.name("effort", v.Effort)
	}
	c.text("prompt", v.Prompt, MaxPromptBytes)
	c.departments(v.Departments)
	c.positive("max_output_tokens", v.MaxOutputTokens)
	c.check(v.AnswerSchema == AnswerSchema, "answer_schema", "must be "+strconv.Itoa(AnswerSchema))
	c.identifier("route", v.Route)
	c.price("prices.input_usd_per_mtok", v.Prices.InputUSDPerMTok)
	c.price("prices.cached_input_usd_per_mtok", v.Prices.CachedInputUSDPerMTok)
	c.price("prices.output_usd_per_mtok", v.Prices.OutputUSDPerMTok)
	c.positive("max_attempts", v.MaxAttempts)
	c.check(v.UnknownPolicy == Resend || v.UnknownPolicy == Hold || v.UnknownPolicy == Recover, "unknown_policy", "must be resend, hold or recover")
	c.check(v.UnknownPolicy != Recover || v.Provider == "openai", "unknown_policy", "can be recover for provider openai alone: the others cannot be asked for a lost response")
	c.check(v.MaxUnknownCalls >= 0 && v.MaxUnknownCalls <= math.MaxInt32,
		"max_unknown_calls", "must be between 0 and 2147483647")
	c.check(v.MaxAge > 0, "max_age", "must be positive")
	return errors.Join(c.problems...)
}

type checker struct{ problems []error }

func (c *checker) check(ok bool, field, problem string) bool {
	if !ok {
		c.problems = append(c.problems, &FieldError{Field: field, Problem: problem})
	}
	return ok
}

func (c *checker) identifier(field, s string) {
	c.check(identifier.MatchString(s), field,
		"must have 1 to 64 lower-case letters, digits, dots, dashes or underscores, and begin with a letter or digit")
}

func (c *checker) positive(field string, n int) {
	c.check(n > 0 && n <= math.MaxInt32, field, "must be between 1 and 2147483647")
}

// text is any text that Postgres can store.
func (c *checker) text(field, s string, limit int) bool {
	return c.check(len(s) <= limit, field, fmt.Sprintf("must have at most %d bytes", limit)) &&
		c.check(utf8.ValidString(s), field, "must be valid UTF-8") &&
		c.check(!strings.Contains(s, "\x00"), field, "must not contain a NUL character")
}

// name is a text of one line with something to see in it. U+FFFD is refused because it is what a JSON decoder makes
// of a broken escape: a model could name such a department without having meant it.
func (c *checker) name(field, s string) bool {
	return c.text(field, s, MaxNameBytes) &&
		c.check(content.Visible(s), field, "must not be blank") &&
		c.check(!strings.ContainsFunc(s, unicode.IsControl), field, "must not contain control characters") &&
		c.check(!strings.ContainsRune(s, utf8.RuneError), field, "must not contain U+FFFD")
}

func (c *checker) departments(ds []Department) {
	if !c.check(len(ds) >= 1 && len(ds) <= MaxDepartments, "departments",
		fmt.Sprintf("must have 1 to %d elements", MaxDepartments)) {
		return
	}
	for i, d := range ds {
		path := fmt.Sprintf("departments[%d]", i)
		if c.name(path+".name", d.Name) {
			first := slices.IndexFunc(ds, func(other Department) bool { return sameName(other.Name, d.Name) })
			c.check(first == i, path+".name",
				fmt.Sprintf("is the name of departments[%d] too, but for letter case and outer white space", first))
		}
		c.text(path+".description", d.Description, MaxDescriptionBytes)
	}
}

// price bounds the exponent before it compares: a comparison would first write out all digits of 1e999999999.
func (c *checker) price(field string, d decimal.Decimal) {
	const maxDigits = 18
	ok := d.Exponent() >= -maxDigits && d.Exponent() <= maxDigits && d.NumDigits() <= 2*maxDigits &&
		!d.IsNegative() && d.LessThanOrEqual(decimal.New(1, 6))
	c.check(ok, field, "must be between 0 and 1000000, with at most 18 decimals")
}
