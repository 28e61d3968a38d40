package evaluation_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

// validVersion is a version without problems, with no field at its default.
func validVersion() evaluation.Version {
	return evaluation.Version{
		ID:            "triage-2",
		PromptVersion: "Triage, second attempt",
		Provider:      "openai",
		Model:         "gpt-5-mini",
		Effort:        "low",
		Prompt:        "You triage support tickets.",
		Departments: []evaluation.Department{
			{Name: "Billing", Description: "Invoices and refunds"},
			{Name: "Technical"},
		},
		MaxOutputTokens: 512,
		AnswerSchema:    evaluation.AnswerSchema,
		Route:           "openai-main",
		Prices: evaluation.Prices{
			InputUSDPerMTok:       decimal.RequireFromString("0.25"),
			CachedInputUSDPerMTok: decimal.RequireFromString("0.025"),
			OutputUSDPerMTok:      decimal.RequireFromString("2"),
		},
		MaxAttempts:     5,
		UnknownPolicy:   evaluation.Hold,
		MaxUnknownCalls: 1,
		MaxAge:          time.Hour,
	}
}

func TestWithDefaults(t *testing.T) {
	t.Parallel()
	got := evaluation.Version{}.WithDefaults()
	if got.MaxAttempts != 8 || got.UnknownPolicy != evaluation.Resend || got.MaxAge != 24*time.Hour || got.AnswerSchema != 1 {
		t.Errorf("defaults are %+v", got)
	}
	if got.MaxUnknownCalls != 0 {
		t.Errorf("MaxUnknownCalls of 0 became %d", got.MaxUnknownCalls)
	}
	v := validVersion()
	v.AnswerSchema = 7
	kept := v.WithDefaults()
	if kept.MaxAttempts != 5 || kept.UnknownPolicy != evaluation.Hold || kept.MaxAge != time.Hour ||
		kept.AnswerSchema != 7 || kept.MaxUnknownCalls != 1 {
		t.Errorf("what was set became %+v", kept)
	}
}

// The expected digests of testdata/digests.json were computed by another implementation (Python's hashlib).
func TestGoldenDigests(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("testdata", "digests.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Name            string                  `json:"name"`
		Provider        string                  `json:"provider"`
		Model           string                  `json:"model"`
		Effort          string                  `json:"effort"`
		Prompt          string                  `json:"prompt"`
		Departments     []evaluation.Department `json:"departments"`
		MaxOutputTokens int                     `json:"max_output_tokens"`
		AnswerSchema    int                     `json:"answer_schema"`
		Digest          string                  `json:"digest"`
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	seen := map[[32]byte]string{}
	for _, r := range rows {
		v := evaluation.Version{
			Provider: r.Provider, Model: r.Model, Effort: r.Effort, Prompt: r.Prompt, Departments: r.Departments,
			MaxOutputTokens: r.MaxOutputTokens, AnswerSchema: r.AnswerSchema,
		}
		digest := v.Digest()
		if got := hex.EncodeToString(digest[:]); got != r.Digest {
			t.Errorf("%s: %s, want %s", r.Name, got, r.Digest)
		}
		if other, ok := seen[digest]; ok {
			t.Errorf("%s has the digest of %s", r.Name, other)
		}
		seen[digest] = r.Name
	}
	if len(seen) < 12 {
		t.Errorf("only %d vectors", len(seen))
	}
}

func TestDigestLeavesOutWhatDoesNotChangeAnAnswer(t *testing.T) {
	t.Parallel()
	want := validVersion().Digest()
	for name, change := range map[string]func(*evaluation.Version){
		"id":                func(v *evaluation.Version) { v.ID = "other" },
		"prompt version":    func(v *evaluation.Version) { v.PromptVersion = "other" },
		"route":             func(v *evaluation.Version) { v.Route = "other" },
		"prices":            func(v *evaluation.Version) { v.Prices = evaluation.Prices{} },
		"max attempts":      func(v *evaluation.Version) { v.MaxAttempts = 99 },
		"unknown policy":    func(v *evaluation.Version) { v.UnknownPolicy = evaluation.Resend },
		"max unknown calls": func(v *evaluation.Version) { v.MaxUnknownCalls = 99 },
		"max age":           func(v *evaluation.Version) { v.MaxAge = time.Minute },
	} {
		v := validVersion()
		change(&v)
		if v.Digest() != want {
			t.Errorf("%s changes the digest", name)
		}
	}
}

// Two lists of departments have one digest only when they are one list, however names and descriptions are cut.
func TestDigestTellsDepartmentsApart(t *testing.T) {
	t.Parallel()
	word := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 2, -1)
	list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) evaluation.Department {
		return evaluation.Department{Name: word.Draw(t, "name"), Description: word.Draw(t, "description")}
	}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		one, two := list.Draw(t, "one"), list.Draw(t, "two")
		same := len(one) == len(two)
		for i := 0; same && i < len(one); i++ {
			same = one[i] == two[i]
		}
		a := evaluation.Version{Departments: one}.Digest()
		b := evaluation.Version{Departments: two}.Digest()
		if (a == b) != same {
			t.Fatalf("%q and %q", one, two)
		}
	})
}
