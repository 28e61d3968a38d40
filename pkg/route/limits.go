package route

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/evalonce/evalonce/pkg/route/internal/routesql"
)

// ErrUnknownRoute is returned when there is no route of the name.
var ErrUnknownRoute = errors.New("there is no such route")

// Limits are those of a route's account at the provider. Zero is no limit.
type Limits struct {
	RequestsPerMinute int
	TokensPerMinute   int64
	ConcurrentCalls   int
	CountOutput       bool // the token limit counts output tokens too
}

// SetLimits replaces the limits of a route. Workers follow within about a second. The buckets begin empty, since what
// was called before is not counted in them.
func SetLimits(ctx context.Context, db routesql.DBTX, name string, l Limits) error {
	if l.RequestsPerMinute < 0 || l.TokensPerMinute < 0 || l.ConcurrentCalls < 0 ||
		l.RequestsPerMinute > math.MaxInt32 || l.ConcurrentCalls > math.MaxInt32 {
		return fmt.Errorf("set the limits of route %s: a limit is negative, or no limit at all", name)
	}
	n, err := routesql.New(db).SetLimits(ctx, routesql.SetLimitsParams{
		Name: name, RequestsPerMinute: int32(l.RequestsPerMinute), TokensPerMinute: l.TokensPerMinute,
		ConcurrentCalls: int32(l.ConcurrentCalls), CountOutput: l.CountOutput && l.TokensPerMinute > 0,
	})
	if err == nil && n == 0 {
		err = ErrUnknownRoute
	}
	if err != nil {
		return fmt.Errorf("set the limits of route %s: %w", name, err)
	}
	return nil
}

const (
	// rateShare and burstShare of a limit are what its bucket gains in a minute and what it holds, beside one call.
	// Together they are less than the whole, for calls that arrive at the provider later than they were claimed. The one
	// call more is never part of a minute, since there is no half of it; it keeps small limits from losing what they
	// gain while nobody looks.
	rateShare  = 0.93
	burstShare = 0.05
)

// bucket is what is left of a limit for a minute. Without a limit it is never empty.
type bucket struct {
	limit  float64 // for a minute; 0 is none
	credit float64
}

func (b bucket) burst() float64 { return b.limit*burstShare + 1 }

// perSecond is what the bucket gains.
func (b bucket) perSecond() float64 { return b.limit * rateShare / time.Minute.Seconds() }

// refilled is the bucket after a time. A debt is never more than the limit, whatever a provider reported.
func (b bucket) refilled(after time.Duration) bucket {
	b.credit = min(max(b.credit, -b.limit)+b.perSecond()*after.Seconds(), b.burst())
	return b
}

// left is what may be taken now.
func (b bucket) left() float64 {
	if b.limit == 0 {
		return math.Inf(1)
	}
	return max(b.credit, 0)
}

func (b bucket) full() bool { return b.limit == 0 || b.credit >= b.burst() }

func (b bucket) take(n float64) bucket {
	if b.limit > 0 {
		b.credit -= n
	}
	return b
}

// until is how long it takes until so much may be taken, or until the bucket is full where it never holds so much.
func (b bucket) until(n float64) time.Duration {
	missing := min(n, b.burst()) - b.credit
	if b.limit == 0 || missing <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(missing / b.perSecond() * float64(time.Second)))
}

// Tokens is what calls took, beside what was reserved for them.
type Tokens struct {
	Calls         int
	Expected      float64 // reserved
	Estimated     float64 // from the sizes, before the ratio
	Input, Output int64   // as the provider reported
}

const (
	// learning is the weight of one call in the ratio, which thus remembers about the last fifty.
	learning              = 0.02
	ratioLeast, ratioMost = 0.01, 100
)

// LearnTokens puts the bucket of a route right, and its ratio, which are estimates before calls end.
func (g *Gate) LearnTokens(ctx context.Context, name string, t Tokens) error {
	if t.Calls == 0 || t.Estimated <= 0 {
		return nil
	}
	input, all := float64(t.Input), float64(t.Input)+float64(t.Output)
	ratio := func(counted float64) float64 { return min(max(counted/t.Estimated, ratioLeast), ratioMost) }
	err := g.q.LearnTokens(ctx, routesql.LearnTokensParams{
		Name: name, CreditInput: t.Expected - input, CreditAll: t.Expected - all, RatioInput: ratio(input), RatioAll: ratio(all),
		Weight: 1 - math.Pow(1-learning, float64(t.Calls)),
	})
	if err != nil {
		return fmt.Errorf("learn the tokens of route %s: %w", name, err)
	}
	return nil
}
