package evaluation_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
)

// Every field of a version is compared, those to come as well: whatever is changed in one makes a difference, and one that
// is said to decide answers exactly when the digest says so too.
func TestDiffComparesEveryField(t *testing.T) {
	t.Parallel()
	base := evaluation.Version{
		ID: "v", PromptVersion: "p", Provider: "openai", Model: "m", Effort: "low", Prompt: "Sort.", MaxOutputTokens: 1, Route: "r",
		Departments: []evaluation.Department{{Name: "a", Description: "b"}}, MaxUnknownCalls: 1, MaxAge: time.Hour,
	}.WithDefaults()
	if d := evaluation.Diff(base, base); len(d) != 0 {
		t.Errorf("a version differs from itself in %+v", d)
	}
	var change func(path string, v reflect.Value, check func(path string))
	change = func(path string, v reflect.Value, check func(path string)) {
		switch kept := reflect.ValueOf(v.Interface()); v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
			check(path)
			v.Set(kept)
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
			check(path)
			v.Set(kept)
		case reflect.Slice:
			element := v.Index(0)
			for i := range element.NumField() {
				change(path+"."+element.Type().Field(i).Name, element.Field(i), check)
			}
		case reflect.Struct:
			if price, ok := v.Interface().(decimal.Decimal); ok {
				v.Set(reflect.ValueOf(price.Add(decimal.NewFromInt(1))))
				check(path)
				v.Set(kept)
				return
			}
			for i := range v.NumField() {
				change(path+"."+v.Type().Field(i).Name, v.Field(i), check)
			}
		default:
			t.Fatalf("this test cannot change %s, a %s", path, v.Kind())
		}
	}
	changed := base
	changed.Departments = slices.Clone(base.Departments)
	fields := 0
	change("", reflect.ValueOf(&changed).Elem(), func(path string) {
		fields++
		d := evaluation.Diff(base, changed)
		if path == ".ID" {
			if len(d) != 0 {
				t.Errorf("another id makes %+v", d)
			}
			return
		}
		if len(d) != 1 {
			t.Errorf("%s makes %d differences: %+v", path, len(d), d)
			return
		}
		if d[0].Old == d[0].New || d[0].AffectsAnswers != (base.Digest() != changed.Digest()) {
			t.Errorf("%s: %+v, though the digests differ: %t", path, d[0], base.Digest() != changed.Digest())
		}
	})
	if fields != 18 {
		t.Errorf("%d fields were changed", fields)
	}
}

func TestDiffComparesPricesByValue(t *testing.T) {
	t.Parallel()
	a, b := evaluation.Version{}, evaluation.Version{}
	a.Prices.InputUSDPerMTok, b.Prices.InputUSDPerMTok = decimal.RequireFromString("0.5"), decimal.RequireFromString("0.50")
	if d := evaluation.Diff(a, b); len(d) != 0 {
		t.Errorf("%+v", d)
	}
	b.Departments = []evaluation.Department{{Name: "a", Description: "b\nc"}}
	if got, want := fmt.Sprint(evaluation.Diff(a, b)), `[{departments  "a": "b\nc"`+"\n"+` true true}]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
