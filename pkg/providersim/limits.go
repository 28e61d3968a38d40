package providersim

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits are the account's; 0 sets no limit. The limits for a minute refill continuously, and a full minute may
// come at once.
type Limits struct {
	RequestsPerMinute int
	TokensPerMinute   int // of input, as estimated from the request's size
	Concurrent        int
}

// limiter admits requests under Limits.
type limiter struct {
	limits Limits

	mu       sync.Mutex
	requests *rate.Limiter // nil: no limit
	tokens   *rate.Limiter
	running  int
}

func newLimiter(l Limits) *limiter {
	perMinute := func(n int) *rate.Limiter {
		if n <= 0 {
			return nil
		}
		return rate.NewLimiter(rate.Limit(float64(n)/60), n)
	}
	return &limiter{limits: l, requests: perMinute(l.RequestsPerMinute), tokens: perMinute(l.TokensPerMinute)}
}

// overLimit says which limit refused a request.
type overLimit struct {
	of         string // one of the words below
	limit      int
	requested  int
	retryAfter time.Duration // 0: it can never be admitted, or nobody knows when
}

const (
	overRequests    = "requests"
	overTokens      = "tokens"
	overConcurrency = "concurrent requests"
)

// admit takes a place for a request of so many tokens, which the caller gives back with done. A refused request
// consumes nothing.
func (l *limiter) admit(tokens int64, now time.Time) *overLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits.Concurrent > 0 && l.running >= l.limits.Concurrent {
		return &overLimit{of: overConcurrency, limit: l.limits.Concurrent, requested: 1}
	}
	taken, delay := take(l.requests, 1, now)
	if delay > 0 {
		return &overLimit{of: overRequests, limit: l.limits.RequestsPerMinute, requested: 1, retryAfter: delay}
	}
	if _, delay := take(l.tokens, int(tokens), now); delay > 0 {
		if taken != nil {
			taken.CancelAt(now)
		}
		if delay == rate.InfDuration {
			delay = 0
		}
		return &overLimit{of: overTokens, limit: l.limits.TokensPerMinute, requested: int(tokens), retryAfter: delay}
	}
	l.running++
	return nil
}

func (l *limiter) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
}

// take reserves n at once or not at all, and then says how long until it could.
func take(l *rate.Limiter, n int, now time.Time) (*rate.Reservation, time.Duration) {
	if l == nil {
		return nil, 0
	}
	r := l.ReserveN(now, n)
	delay := r.DelayFrom(now)
	if delay > 0 {
		r.CancelAt(now)
	}
	return r, delay
}

// allowance is what is left of a limit for a minute.
type allowance struct {
	of          string // overRequests or overTokens
	limit, left int
	reset       time.Duration // until all of it is there again
}

// left is what is left of the limits for a minute that are set.
func (l *limiter) left(now time.Time) []allowance {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []allowance
	for _, a := range []struct {
		of      string
		limiter *rate.Limiter
	}{{overRequests, l.requests}, {overTokens, l.tokens}} {
		if a.limiter == nil {
			continue
		}
		limit := a.limiter.Burst()
		left := min(max(0, a.limiter.TokensAt(now)), float64(limit))
		reset := time.Duration((float64(limit) - left) / float64(a.limiter.Limit()) * float64(time.Second))
		all = append(all, allowance{of: a.of, limit: limit, left: int(left), reset: reset})
	}
	return all
}

// setRetryAfter gives whole seconds, rounded up, and the exact milliseconds beside them.
func setRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
	h.Set("Retry-After-Ms", strconv.FormatInt(int64(math.Ceil(float64(d)/float64(time.Millisecond))), 10))
}
