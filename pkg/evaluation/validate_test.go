package evaluation_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

// fields are the fields of all problems of a joined error.
func fields(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T is not a joined error", err)
	}
	var got []string
	for _, problem := range joined.Unwrap() {
		var f *evaluation.FieldError
		if !errors.As(problem, &f) {
			t.Fatalf("%T is no *FieldError", problem)
		}
		got = append(got, f.Field)
	}
	return got
}

func TestValidVersions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*evaluation.Version){
		"as it is":           func(*evaluation.Version) {},
		"OpenAI's responses": func(v *evaluation.Version) { v.Provider = "openai_responses" },
		"Anthropic":          func(v *evaluation.Version) { v.Provider = "anthropic" },
		"no effort":          func(v *evaluation.Version) { v.Effort = "" },
		"no prompt":          func(v *evaluation.Version) { v.Prompt = "" },
		"free of charge":     func(v *evaluation.Version) { v.Prices = evaluation.Prices{} },
		"no unknown calls":   func(v *evaluation.Version) { v.MaxUnknownCalls = 0 },
		"longest id":         func(v *evaluation.Version) { v.ID = strings.Repeat("a", 64) },
		"all of the id's":    func(v *evaluation.Version) { v.ID = "0a._-" },
		"longest prompt":     func(v *evaluation.Version) { v.Prompt = strings.Repeat("p", 64<<10) },
		"prompt with lines":  func(v *evaluation.Version) { v.Prompt = "a\r\n\tb" },
		"one department":     func(v *evaluation.Version) { v.Departments = v.Departments[:1] },
		"200 departments":    func(v *evaluation.Version) { v.Departments = departments(200) },
		"names beyond ASCII": func(v *evaluation.Version) { v.Departments[0].Name = "Atenció al client" },
		"highest price":      func(v *evaluation.Version) { v.Prices.OutputUSDPerMTok = decimal.New(1, 6) },
		"defaults": func(v *evaluation.Version) {
			v.AnswerSchema, v.MaxAttempts, v.UnknownPolicy, v.MaxAge = 0, 0, "", 0
			*v = v.WithDefaults()
		},
	} {
		v := validVersion()
		change(&v)
		if err := v.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func departments(n int) []evaluation.Department {
	ds := make([]evaluation.Department, n)
	for i := range ds {
		ds[i].Name = fmt.Sprintf("Department %d", i)
	}
	return ds
}

func TestInvalidVersions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*evaluation.Version)
		want   string
	}{
		{"no id", func(v *evaluation.Version) { v.ID = "" }, "id"},
		{"id too long", func(v *evaluation.Version) { v.ID = strings.Repeat("a", 65) }, "id"},
		{"id with capitals", func(v *evaluation.Version) { v.ID = "Triage" }, "id"},
		{"id that begins with a dash", func(v *evaluation.Version) { v.ID = "-a" }, "id"},
		{"id with a line end", func(v *evaluation.Version) { v.ID = "a\n" }, "id"},
		{"no prompt version", func(v *evaluation.Version) { v.PromptVersion = "" }, "prompt_version"},
		{"prompt version too long", func(v *evaluation.Version) { v.PromptVersion = strings.Repeat("a", 201) }, "prompt_version"},
		{"no provider", func(v *evaluation.Version) { v.Provider = "" }, "provider"},
		{"unknown provider", func(v *evaluation.Version) { v.Provider = "OpenAI" }, "provider"},
		{"blank model", func(v *evaluation.Version) { v.Model = " \u200b" }, "model"},
		{"model with a line end", func(v *evaluation.Version) { v.Model = "gpt\n5" }, "model"},
		{"blank effort", func(v *evaluation.Version) { v.Effort = " " }, "effort"},
		{"prompt too long", func(v *evaluation.Version) { v.Prompt = strings.Repeat("p", 64<<10+1) }, "prompt"},
		{"prompt not UTF-8", func(v *evaluation.Version) { v.Prompt = "\xff" }, "prompt"},
		{"prompt with NUL", func(v *evaluation.Version) { v.Prompt = "a\x00b" }, "prompt"},
		{"no departments", func(v *evaluation.Version) { v.Departments = nil }, "departments"},
		{"201 departments", func(v *evaluation.Version) { v.Departments = departments(201) }, "departments"},
		{"department without a name", func(v *evaluation.Version) { v.Departments[1].Name = "" }, "departments[1].name"},
		{"department nobody sees", func(v *evaluation.Version) { v.Departments[1].Name = "\u3164\u200d" }, "departments[1].name"},
		{"department with a tab", func(v *evaluation.Version) { v.Departments[0].Name = "a\tb" }, "departments[0].name"},
		{"department with U+FFFD", func(v *evaluation.Version) { v.Departments[0].Name = "a\ufffd" }, "departments[0].name"},
		{"department not UTF-8", func(v *evaluation.Version) { v.Departments[0].Name = "a\xc0" }, "departments[0].name"},
		{"name too long", func(v *evaluation.Version) { v.Departments[0].Name = strings.Repeat("a", 201) }, "departments[0].name"},
		{"name twice", func(v *evaluation.Version) { v.Departments[1].Name = "Billing" }, "departments[1].name"},
		{"name twice but for case", func(v *evaluation.Version) { v.Departments[1].Name = "BILLING" }, "departments[1].name"},
		{"name twice but for space", func(v *evaluation.Version) { v.Departments[1].Name = "\u00a0Billing " }, "departments[1].name"},
		{"name twice but for folding", func(v *evaluation.Version) {
			v.Departments = []evaluation.Department{{Name: "Kasse"}, {Name: "\u212aasse"}}
		}, "departments[1].name"},
		{"description too long", func(v *evaluation.Version) {
			v.Departments[1].Description = strings.Repeat("d", 4<<10+1)
		}, "departments[1].description"},
		{"description with NUL", func(v *evaluation.Version) { v.Departments[1].Description = "\x00" }, "departments[1].description"},
		{"no output", func(v *evaluation.Version) { v.MaxOutputTokens = 0 }, "max_output_tokens"},
		{"output beyond the column", func(v *evaluation.Version) { v.MaxOutputTokens = math.MaxInt32 + 1 }, "max_output_tokens"},
		{"answer schema of the future", func(v *evaluation.Version) { v.AnswerSchema = 2 }, "answer_schema"},
		{"no route", func(v *evaluation.Version) { v.Route = "" }, "route"},
		{"negative price", func(v *evaluation.Version) {
			v.Prices.InputUSDPerMTok = decimal.New(-1, -9)
		}, "prices.input_usd_per_mtok"},
		{"price too high", func(v *evaluation.Version) {
			v.Prices.CachedInputUSDPerMTok = decimal.RequireFromString("1000000.1")
		}, "prices.cached_input_usd_per_mtok"},
		{"price of a billion digits", func(v *evaluation.Version) {
			v.Prices.OutputUSDPerMTok = decimal.New(1, 999999999)
		}, "prices.output_usd_per_mtok"},
		{"price too fine", func(v *evaluation.Version) {
			v.Prices.OutputUSDPerMTok = decimal.New(1, -999999999)
		}, "prices.output_usd_per_mtok"},
		{"negative attempts", func(v *evaluation.Version) { v.MaxAttempts = -1 }, "max_attempts"},
		{"unknown policy", func(v *evaluation.Version) { v.UnknownPolicy = "retry" }, "unknown_policy"},
		{"negative unknown calls", func(v *evaluation.Version) { v.MaxUnknownCalls = -1 }, "max_unknown_calls"},
		{"unknown calls beyond the column", func(v *evaluation.Version) { v.MaxUnknownCalls = math.MaxInt32 + 1 }, "max_unknown_calls"},
		{"negative age", func(v *evaluation.Version) { v.MaxAge = -1 }, "max_age"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := validVersion()
			tt.change(&v)
			if got := fields(t, v.Validate()); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("problems of %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	v := evaluation.Version{
		Departments:     []evaluation.Department{{}, {Name: "a"}, {Name: "A"}, {Name: "b", Description: "\x00"}},
		Prices:          evaluation.Prices{InputUSDPerMTok: decimal.New(-1, 0)},
		MaxUnknownCalls: -1,
	}
	err := v.Validate()
	want := []string{
		"id", "prompt_version", "provider", "model", "departments[0].name", "departments[2].name",
		"departments[3].description", "max_output_tokens", "answer_schema", "route", "prices.input_usd_per_mtok",
		"max_attempts", "unknown_policy", "max_unknown_calls", "max_age",
	}
	if got := fields(t, err); !slices.Equal(got, want) {
		t.Errorf("problems of\n%q, want\n%q", got, want)
	}
	if text := err.Error(); !strings.Contains(text, "departments[2].name is the name of departments[1] too") {
		t.Errorf("the text does not say which names are the same:\n%s", text)
	}
}
