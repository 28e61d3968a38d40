package evaluation_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

var answerDepartments = []evaluation.Department{{Name: "Billing"}, {Name: "Technical Support"}, {Name: "Straße"}, {Name: "a\"b"}}

func TestParseAnswer(t *testing.T) {
	t.Parallel()
	billing := evaluation.Answer{IsUrgent: 0.9, UrgencyScore: 0.25, Department: "Billing"}
	for name, c := range map[string]struct {
		raw  string
		want evaluation.Answer
	}{
		"plain":                   {`{"is_urgent":0.9,"urgency_score":0.25,"department":"Billing"}`, billing},
		"any order":               {`{"department":"Billing","urgency_score":0.25,"is_urgent":0.9}`, billing},
		"white space":             {" \n\u00a0{ \"is_urgent\" : 0.9 ,\r\n\t\"urgency_score\":0.25, \"department\":\"Billing\" } \u3000\n", billing},
		"fence":                   {"```\n{\"is_urgent\":0.9,\"urgency_score\":0.25,\"department\":\"Billing\"}\n```", billing},
		"json fence":              {" ```json\n{\"is_urgent\":0.9,\"urgency_score\":0.25,\"department\":\"Billing\"}\n``` \n", billing},
		"fence on one line":       {"```json {\"is_urgent\":0.9,\"urgency_score\":0.25,\"department\":\"Billing\"}```", billing},
		"exponents":               {`{"is_urgent":9E-1,"urgency_score":2.5e-1,"department":"Billing"}`, billing},
		"escaped":                 {`{"is\u005furgent":0.9,"urgency_score":0.25,"department":"\u0042illing"}`, billing},
		"other case":              {`{"is_urgent":0.9,"urgency_score":0.25,"department":"BILLING"}`, billing},
		"outer space":             {`{"is_urgent":0.9,"urgency_score":0.25,"department":" \nbilling\u00a0"}`, billing},
		"bounds":                  {`{"is_urgent":0,"urgency_score":1,"department":"Billing"}`, evaluation.Answer{UrgencyScore: 1, Department: "Billing"}},
		"bounds with point":       {`{"is_urgent":1.0,"urgency_score":0.0,"department":"Billing"}`, evaluation.Answer{IsUrgent: 1, Department: "Billing"}},
		"smaller than any float":  {`{"is_urgent":1e-999,"urgency_score":0,"department":"Billing"}`, evaluation.Answer{Department: "Billing"}},
		"name of two words":       {`{"is_urgent":0,"urgency_score":0,"department":"technical support"}`, evaluation.Answer{Department: "Technical Support"}},
		"name beyond ASCII":       {`{"is_urgent":0,"urgency_score":0,"department":"STRAẞE"}`, evaluation.Answer{Department: "Straße"}},
		"name with a quote in it": {`{"is_urgent":0,"urgency_score":0,"department":"A\"B"}`, evaluation.Answer{Department: "a\"b"}},
		"fence with object only in it, within the size": {
			"```" + strings.Repeat(" ", 60<<10) + `{"is_urgent":0.9,"urgency_score":0.25,"department":"Billing"}` + "```", billing,
		},
	} {
		got, err := evaluation.ParseAnswer(c.raw, answerDepartments)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestParseAnswerReadsMinusZeroAsZero(t *testing.T) {
	t.Parallel()
	got, err := evaluation.ParseAnswer(`{"is_urgent":-0,"urgency_score":-0.0e5,"department":"Billing"}`, answerDepartments)
	if err != nil || math.Signbit(got.IsUrgent) || math.Signbit(got.UrgencyScore) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseAnswerViolations(t *testing.T) {
	t.Parallel()
	const rest = `,"urgency_score":0.5,"department":"Billing"}`
	value := func(v string) string { return `{"is_urgent":` + v + rest }
	department := func(v string) string { return `{"is_urgent":0.5,"urgency_score":0.5,"department":` + v + `}` }
	const good = `{"is_urgent":0.5,"urgency_score":0.5,"department":"Billing"}`

	for _, c := range []struct{ name, raw, reason, detail string }{
		{"nothing", "", "empty", ""},
		{"white space", " \n\t\u2003", "empty", ""},
		{"empty fence", "```json\n```", "empty", ""},
		{"too large", good + strings.Repeat(" ", 64<<10), "too_large", ""},
		{"not UTF-8", department("\"Billing\xff\""), "invalid_utf8", ""},
		{"UTF-16", "\xff\xfe{\x00}\x00", "invalid_utf8", ""},

		{"prose", "The ticket is urgent.", "not_json", ""},
		{"prose before", "Here it is: " + good, "not_json", ""},
		{"byte order mark", "\ufeff" + good, "not_json", ""},
		{"cut", `{"is_urgent":0.5,"urgency_sc`, "not_json", ""},
		{"cut after the last member", good[:len(good)-1], "not_json", ""},
		{"cut after a key", `{"is_urgent"`, "not_json", ""},
		{"single quotes", strings.ReplaceAll(good, `"`, `'`), "not_json", ""},
		{"trailing comma", good[:len(good)-1] + ",}", "not_json", ""},
		{"leading comma", "{," + good[1:], "not_json", ""},
		{"comment", "{/* hm */" + good[1:], "not_json", ""},
		{"NaN", value("NaN"), "not_json", ""},
		{"Infinity", value("-Infinity"), "not_json", ""},
		{"plus sign", value("+0.5"), "not_json", ""},
		{"leading zero", value("00.5"), "not_json", ""},
		{"bare point", value(".5"), "not_json", ""},
		{"point without decimals", value("0."), "not_json", ""},
		{"hexadecimal", value("0x0"), "not_json", ""},
		{"decimal comma", value("0,5"), "not_json", ""},
		{"number as key", `{1:2}`, "not_json", ""},
		{"raw control in a string", department("\"Bil\nling\""), "not_json", ""},
		{"bad escape", department(`"\x42illing"`), "not_json", ""},
		{"fence opened only", "```json\n" + good, "not_json", ""},
		{"fence closed only", good + "\n```", "trailing_data", ""},
		{"fence in a fence", "```\n```\n" + good + "\n```\n```", "not_json", ""},
		{"fence of another language", "```yaml\n" + good + "\n```", "not_json", ""},
		{"fence mark alone", "```", "not_json", ""},

		{"null", "null", "not_an_object", ""},
		{"string", `"Billing"`, "not_an_object", ""},
		{"number", "0.5", "not_an_object", ""},
		{"list", "[" + good + "]", "not_an_object", ""},
		{"object in a string", fmt.Sprintf("%q", good), "not_an_object", ""},

		{"two objects", good + good, "trailing_data", ""},
		{"two objects on lines", good + "\n" + good, "trailing_data", ""},
		{"brace after", good + "}", "trailing_data", ""},
		{"comma after", good + ",", "trailing_data", ""},
		{"prose after", good + " Hope this helps!", "trailing_data", ""},
		{"NUL after", good + "\x00", "trailing_data", ""},

		{"unknown key", good[:len(good)-1] + `,"reason":"angry"}`, "unknown_key", ""},
		{"key in another case", `{"Is_Urgent":0.5` + rest, "unknown_key", ""},
		{"key with white space", `{" is_urgent":0.5` + rest, "unknown_key", ""},
		{"empty key", `{"":0.5` + rest, "unknown_key", ""},
		{"key with half a surrogate", `{"is_urgent\ud800":0.5` + rest, "unknown_key", ""},
		{"nested answer", `{"answer":` + good + `}`, "unknown_key", ""},

		{"key twice", good[:len(good)-1] + `,"is_urgent":0.5}`, "duplicate_key", "is_urgent"},
		{"key twice with other values", good[:len(good)-1] + `,"department":"Technical Support"}`, "duplicate_key", "department"},
		{"key twice, once escaped", good[:len(good)-1] + `,"urgency\u005fscore":1}`, "duplicate_key", "urgency_score"},

		{"empty object", "{}", "missing_key", "is_urgent"},
		{"no score", `{"is_urgent":0.5,"department":"Billing"}`, "missing_key", "urgency_score"},
		{"no department", `{"is_urgent":0.5,"urgency_score":0.5}`, "missing_key", "department"},

		{"true", value("true"), "not_a_number", "is_urgent"},
		{"number as text", value(`"0.5"`), "not_a_number", "is_urgent"},
		{"number is null", value("null"), "not_a_number", "is_urgent"},
		{"number in a list", value("[0.5]"), "not_a_number", "is_urgent"},
		{"number in an object", value(`{"value":0.5}`), "not_a_number", "is_urgent"},
		{"deep nesting", value(strings.Repeat("[", 60<<10)), "not_a_number", "is_urgent"},

		{"above", value("1.01"), "out_of_range", "is_urgent"},
		{"just above", value("1.0000000000000003"), "out_of_range", "is_urgent"},
		{"below", value("-0.01"), "out_of_range", "is_urgent"},
		{"percent", value("85"), "out_of_range", "is_urgent"},
		{"beyond any float", value("1e999"), "out_of_range", "is_urgent"},
		{"below any float", value("-1e999"), "out_of_range", "is_urgent"},
		{"score", `{"is_urgent":0,"urgency_score":2,"department":"Billing"}`, "out_of_range", "urgency_score"},

		{"department is null", department("null"), "not_a_string", "department"},
		{"department is a number", department("1"), "not_a_string", "department"},
		{"department is a list", department(`["Billing"]`), "not_a_string", "department"},

		{"another department", department(`"ROOT_ADMIN"`), "unknown_department", "department"},
		{"no department named", department(`""`), "unknown_department", "department"},
		{"part of a name", department(`"Technical"`), "unknown_department", "department"},
		{"two names", department(`"Billing, Technical Support"`), "unknown_department", "department"},
		{"inner white space", department(`"Technical  Support"`), "unknown_department", "department"},
		{"zero-width in the name", department(`"Bil\u200bling"`), "unknown_department", "department"},
		{"full folding is not simple folding", department(`"STRASSE"`), "unknown_department", "department"},
		{"half a surrogate", department(`"Billing\udc00"`), "unknown_department", "department"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := evaluation.ParseAnswer(c.raw, answerDepartments)
			var violation *evaluation.ContractError
			if !errors.As(err, &violation) || violation.Reason != c.reason || violation.Detail != c.detail {
				t.Errorf("%+v, want %s %s", err, c.reason, c.detail)
			}
			if got != (evaluation.Answer{}) {
				t.Errorf("a violation still gave %+v", got)
			}
		})
	}
}

// A department that no valid version has must not make half a surrogate pair match.
func TestParseAnswerRefusesReplacementCharacter(t *testing.T) {
	t.Parallel()
	raw := `{"is_urgent":0,"urgency_score":0,"department":"\ud800"}`
	if got, err := evaluation.ParseAnswer(raw, []evaluation.Department{{Name: "\ufffd"}}); err == nil {
		t.Errorf("accepted as %+v", got)
	}
}

func TestContractErrorQuotesNothing(t *testing.T) {
	t.Parallel()
	_, err := evaluation.ParseAnswer(`{"is_urgent":0,"my card is 4111":1}`, answerDepartments)
	if got, want := err.Error(), "answer breaks its contract: unknown_key"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	_, err = evaluation.ParseAnswer(`{"is_urgent":"4111"}`, answerDepartments)
	if got, want := err.Error(), "answer breaks its contract: not_a_number: is_urgent"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Whatever a JSON encoder writes of an answer is read back as that answer.
func TestParseAnswerReadsWhatIsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fraction := rapid.Float64Range(0, 1)
		want := evaluation.Answer{
			IsUrgent:     fraction.Draw(t, "is_urgent"),
			UrgencyScore: fraction.Draw(t, "urgency_score"),
			Department:   rapid.SampledFrom(answerDepartments).Draw(t, "department").Name,
		}
		raw, err := json.Marshal(map[string]any{
			"is_urgent": want.IsUrgent, "urgency_score": want.UrgencyScore, "department": want.Department,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := evaluation.ParseAnswer(string(raw), answerDepartments); err != nil || got != want {
			t.Fatalf("%s: %+v, %v", raw, got, err)
		}
	})
}

func TestAnswerJSONSchema(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(evaluation.AnswerJSONSchema(answerDepartments))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Type       string
		Properties map[string]struct {
			Type string
			Enum []string
		}
		Required             []string
		AdditionalProperties *bool
	}
	if err := json.Unmarshal(b, &schema); err != nil {
		t.Fatal(err)
	}
	keys := []string{"is_urgent", "urgency_score", "department"}
	if schema.Type != "object" || !slices.Equal(schema.Required, keys) || len(schema.Properties) != len(keys) ||
		schema.AdditionalProperties == nil || *schema.AdditionalProperties {
		t.Errorf("not a strict object: %s", b)
	}
	for key, want := range map[string]string{"is_urgent": "number", "urgency_score": "number", "department": "string"} {
		if got := schema.Properties[key].Type; got != want {
			t.Errorf("%s is a %q", key, got)
		}
	}
	if got := schema.Properties["department"].Enum; !slices.Equal(got, []string{"Billing", "Technical Support", "Straße", "a\"b"}) {
		t.Errorf("departments are %q", got)
	}
}

func FuzzParseAnswer(f *testing.F) {
	for _, raw := range []string{
		`{"is_urgent":0.9,"urgency_score":0.25,"department":"Billing"}`,
		"```json\n{\"is_urgent\":1,\"urgency_score\":0,\"department\":\" billing \"}\n```",
		`{"is_urgent":0.9,"is_urgent":0.9,"urgency_score":0.25,"department":"Billing"}`,
		`{"is_urgent":true,"urgency_score":null,"department":"\ud800"}`,
		`{"is_urgent":1e999,"urgency_score":-1,"department":["Billing"]} trailing`,
		"", "{", "null", "\xff", "``````",
	} {
		f.Add(raw)
	}
	names := []string{"Billing", "Technical Support", "Straße", "a\"b"}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := evaluation.ParseAnswer(raw, answerDepartments)
		if err != nil {
			var violation *evaluation.ContractError
			if !errors.As(err, &violation) || violation.Reason == "" || got != (evaluation.Answer{}) {
				t.Fatalf("%+v, %v", got, err)
			}
			return
		}
		if !slices.Contains(names, got.Department) {
			t.Fatalf("department %q", got.Department)
		}
		for _, n := range []float64{got.IsUrgent, got.UrgencyScore} {
			if math.IsNaN(n) || n < 0 || n > 1 {
				t.Fatalf("number %v", n)
			}
		}
		// Another decoder, which is laxer, sees the same three members.
		body := raw[strings.IndexByte(raw, '{') : strings.LastIndexByte(raw, '}')+1]
		var members map[string]any
		if err := json.Unmarshal([]byte(body), &members); err != nil || len(members) != 3 {
			t.Fatalf("%v, %v", members, err)
		}
		if members["is_urgent"] != got.IsUrgent || members["urgency_score"] != got.UrgencyScore {
			t.Fatalf("%v, want %+v", members, got)
		}
	})
}
