package evaluate

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

var reasons = []failure.Reason{
	failure.ServerError, failure.ConnectFailed, failure.RateLimited, failure.Timeout, failure.ConnectionLost,
	failure.Unauthorized, failure.QuotaExhausted, failure.ModelNotFound, failure.ContextTooLong, failure.Refusal, failure.ContractViolation,
}

// The promises, for whatever comes: an outage, a wrong key or an exhausted quota never ends in the dead letters; an
// unknown outcome is sent again only within the allowance; a fault of the item ends there at once.
func TestVerdictKeepsThePromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := evaluation.Version{
			MaxAttempts: rapid.IntRange(1, 10).Draw(t, "max attempts"), MaxUnknownCalls: rapid.IntRange(0, 3).Draw(t, "max unknown"),
			MaxAge: time.Hour, UnknownPolicy: rapid.SampledFrom([]evaluation.UnknownPolicy{evaluation.Resend, evaluation.Hold}).Draw(t, "policy"),
		}
		s := standing{
			key:      content.Key("0123456789abcdef0123456789abcdef"),
			attempts: rapid.IntRange(1, 20).Draw(t, "attempts"), unknownCalls: rapid.IntRange(0, 5).Draw(t, "unknown"),
			age:       time.Duration(rapid.IntRange(0, int(2*time.Hour)).Draw(t, "age")),
			routeDown: rapid.Bool().Draw(t, "down"),
		}
		f := failure.New(rapid.SampledFrom(reasons).Draw(t, "reason"), "", nil)
		f.RetryAfter = time.Duration(rapid.IntRange(0, int(10*time.Minute)).Draw(t, "retry after"))
		got := decide(f, v, s)
		buried := got.bury != nil
		var want bool
		switch f.Class {
		case failure.Permanent:
			want = true
		case failure.Throttled, failure.Operator:
			if !got.refund {
				t.Fatal("the route's fault cost the item an attempt")
			}
		case failure.Unknown:
			want = v.UnknownPolicy == evaluation.Hold || s.unknownCalls >= v.MaxUnknownCalls || s.attempts >= v.MaxAttempts
			if !got.unknown {
				t.Fatal("a call of unknown outcome was not counted")
			}
			if buried && got.bury.Reason != failure.UnknownOutcome {
				t.Fatalf("buried for %s", got.bury.Reason)
			}
		case failure.Transient:
			want = !s.routeDown && (s.attempts >= v.MaxAttempts || s.age >= v.MaxAge)
			if buried && !got.bury.Class.Rearmable() {
				t.Fatal("spent attempts cannot be armed again")
			}
		}
		if buried != want {
			t.Fatalf("buried: %v, want %v", buried, want)
		}
		if !buried && got.delay < max(f.RetryAfter, time.Second) {
			t.Fatalf("delay of %s, Retry-After %s", got.delay, f.RetryAfter)
		}
	})
}
