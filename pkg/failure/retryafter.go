package failure

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds what a provider can ask for: a route must not stay closed for days on one odd header.
const maxRetryAfter = time.Hour

// RetryAfter reads how long the provider wants to be left alone: Retry-After-Ms, as OpenAI sends it, else
// Retry-After as whole or fractional seconds or as an HTTP date. It is 0 for what is absent, unreadable or past.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if d, ok := duration(h.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	value := h.Get("Retry-After")
	if d, ok := duration(value, time.Second); ok {
		return d
	}
	if at, err := http.ParseTime(value); err == nil && !now.IsZero() {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// duration compares before it converts, since a float beyond the range of a Duration converts to anything.
func duration(s string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return 0, false
	}
	switch d := n * float64(unit); {
	case d >= float64(maxRetryAfter):
		return maxRetryAfter, true
	case d > 0:
		return time.Duration(d), true
	}
	return 0, true // negative, or not a number at all
}
