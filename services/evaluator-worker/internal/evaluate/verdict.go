package evaluate

import (
	"time"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
)

// standing is what a verdict depends on beside the failure.
type standing struct {
	key          content.Key
	attempts     int           // this one included
	unknownCalls int           // this one not included
	age          time.Duration // since it was made, or first tried
	routeDown    bool          // the route's gate is shut: the failure says nothing of the item
}

// verdict is what follows for an item whose call failed.
type verdict struct {
	bury    *failure.Failure // to the dead letters, for this reason
	delay   time.Duration    // else back to pending, due after this
	refund  bool             // the attempt does not count
	unknown bool             // a call of unknown outcome counts
}

// decide is the table of failure classes, seen from the item.
//
// What the route is to blame for costs the item nothing. What may have been paid for is sent again only as the
// version allows. Only the item's own faults, and transient ones that go on while the route is well, end in the
// dead letters.
func decide(f *failure.Failure, v evaluation.Version, s standing) verdict {
	back := verdict{
		delay:  backoff.Delay(s.attempts, s.key, f.RetryAfter),
		refund: f.Class.RefundsAttempt(), unknown: f.Class == failure.Unknown,
	}
	switch f.Class {
	case failure.Permanent:
		return verdict{bury: f}
	case failure.Throttled, failure.Operator:
		// The gate keeps the route shut for as long as it takes; the item is due when it opens.
		back.delay = backoff.Delay(0, s.key, f.RetryAfter)
		return back
	case failure.Unknown:
		if f.Reason == failure.UnknownOutcome { // a lost response was asked for in vain
			return verdict{bury: f}
		}
		if v.UnknownPolicy == evaluation.Recover {
			return back
		}
		if v.UnknownPolicy == evaluation.Hold || s.unknownCalls+1 > v.MaxUnknownCalls || s.attempts >= v.MaxAttempts {
			return verdict{bury: failure.New(failure.UnknownOutcome, f.Detail, f), unknown: true}
		}
		return back
	}
	switch {
	case s.routeDown:
		back.refund = true
		back.delay = backoff.Delay(0, s.key, f.RetryAfter)
	case s.attempts >= v.MaxAttempts:
		return verdict{bury: failure.New(failure.AttemptsSpent, f.Detail, f)}
	case s.age >= v.MaxAge:
		return verdict{bury: failure.New(failure.TooOld, f.Detail, f)}
	}
	return back
}
