package api

import (
	"encoding/hex"
	"errors"
	"regexp"
	"time"

	"github.com/shopspring/decimal"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// maxAge bounds an age so that its seconds survive the database's arithmetic exactly: a version that came back
// changed would be refused when it is registered again.
const maxAge = 100 * 365 * 24 * time.Hour

// decimalNumber is what people write as a price. The decimal package takes more: exponents, signs, bare points.
var decimalNumber = regexp.MustCompile(`^[0-9]{1,7}(\.[0-9]{1,18})?$`)

// versionFrom is a version with its defaults filled in, or all that is wrong with it, by field below path. Fields
// that only the server sets are ignored, so that a version can be sent as it was shown.
func versionFrom(path string, m *adminv1.Version) (evaluation.Version, []rpc.Violation) {
	if m == nil {
		return evaluation.Version{}, []rpc.Violation{{Field: path, Reason: "REQUIRED", Description: "must be given"}}
	}
	v := evaluation.Version{
		ID: m.GetId(), PromptVersion: m.GetPromptVersion(), Provider: m.GetProvider(), Model: m.GetModel(), Effort: m.GetEffort(),
		Prompt: m.GetPrompt(), MaxOutputTokens: int(m.GetMaxOutputTokens()), Route: m.GetRoute(),
		MaxAttempts: int(m.GetMaxAttempts()), UnknownPolicy: evaluation.UnknownPolicy(m.GetUnknownPolicy()),
		MaxUnknownCalls: evaluation.DefaultMaxUnknownCalls,
	}
	for _, d := range m.GetDepartments() {
		v.Departments = append(v.Departments, evaluation.Department{Name: d.GetName(), Description: d.GetDescription()})
	}
	if m.MaxUnknownCalls != nil {
		v.MaxUnknownCalls = int(m.GetMaxUnknownCalls())
	}
	var malformed []rpc.Violation
	for _, price := range []struct {
		field, text string
		into        *decimal.Decimal
	}{
		{"input_usd_per_mtok", m.GetPrices().GetInputUsdPerMtok(), &v.Prices.InputUSDPerMTok},
		{"cached_input_usd_per_mtok", m.GetPrices().GetCachedInputUsdPerMtok(), &v.Prices.CachedInputUSDPerMTok},
		{"output_usd_per_mtok", m.GetPrices().GetOutputUsdPerMtok(), &v.Prices.OutputUSDPerMTok},
	} {
		var ok bool
		if *price.into, ok = priceFrom(price.text); !ok {
			malformed = append(malformed, rpc.Violation{
				Field: path + ".prices." + price.field, Reason: "MALFORMED",
				Description: `must be a decimal number such as "0.25", from 0 to 1000000 with at most 18 decimals`,
			})
		}
	}
	if m.GetMaxAge() != nil {
		var ok bool
		if v.MaxAge, ok = ageFrom(m.GetMaxAge()); !ok {
			malformed = append(malformed, rpc.Violation{
				Field: path + ".max_age", Reason: "OUT_OF_RANGE", Description: "must be whole seconds, from 1 second to 100 years",
			})
		}
	}
	v = v.WithDefaults()
	return v, append(violationsOf(path, v.Validate()), malformed...)
}

// priceFrom reads a price; none is 0.
func priceFrom(s string) (decimal.Decimal, bool) {
	if s == "" {
		return decimal.Zero, true
	}
	if !decimalNumber.MatchString(s) {
		return decimal.Zero, false
	}
	d, err := decimal.NewFromString(s)
	return d, err == nil
}

func ageFrom(d *durationpb.Duration) (time.Duration, bool) {
	age := d.AsDuration() // beyond its range, the nearest bound
	if d.GetNanos() != 0 || age < time.Second || age > maxAge {
		return 0, false
	}
	return age, true
}

// violationsOf are the field errors that err joins.
func violationsOf(path string, err error) []rpc.Violation {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var violations []rpc.Violation
	for _, one := range joined.Unwrap() {
		var wrong *evaluation.FieldError
		if errors.As(one, &wrong) {
			violations = append(violations, rpc.Violation{Field: path + "." + wrong.Field, Reason: "INVALID", Description: wrong.Problem})
		}
	}
	return violations
}

// checkID finds what is wrong with the form of an id. The form is Validate's to know.
func checkID(field, id string) []rpc.Violation {
	for _, v := range violationsOf("", evaluation.Version{ID: id}.Validate()) {
		if v.Field == ".id" {
			return []rpc.Violation{{Field: field, Reason: "MALFORMED", Description: v.Description}}
		}
	}
	return nil
}

func versionOf(v versiondb.Stored) *adminv1.Version {
	maxUnknownCalls := int32(v.MaxUnknownCalls)
	shown := &adminv1.Version{
		Id: v.ID, PromptVersion: v.PromptVersion, Provider: v.Provider, Model: v.Model, Effort: v.Effort, Prompt: v.Prompt,
		MaxOutputTokens: int32(v.MaxOutputTokens), Route: v.Route,
		Prices: &adminv1.Prices{
			InputUsdPerMtok:       v.Prices.InputUSDPerMTok.String(),
			CachedInputUsdPerMtok: v.Prices.CachedInputUSDPerMTok.String(),
			OutputUsdPerMtok:      v.Prices.OutputUSDPerMTok.String(),
		},
		MaxAttempts: int32(v.MaxAttempts), UnknownPolicy: string(v.UnknownPolicy), MaxUnknownCalls: &maxUnknownCalls,
		MaxAge: durationpb.New(v.MaxAge),
		Digest: hex.EncodeToString(v.Digest[:]), Active: v.Active, CreateTime: timestamppb.New(v.CreatedAt), CreatedBy: v.CreatedBy,
	}
	for _, d := range v.Departments {
		shown.Departments = append(shown.Departments, &adminv1.Department{Name: d.Name, Description: d.Description})
	}
	return shown
}
