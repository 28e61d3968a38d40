package failure_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/failure"
)

// Whatever a provider asks for, a route is left alone for an hour at most, and never for less than nothing.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "1", "0.5", "-1", "1e400", "NaN", "Inf", "Wed, 21 Oct 2026 07:28:00 GMT", "9223372036854775807", "0x1p-2", " 7 "} {
		f.Add(s, "")
		f.Add("", s)
	}
	now := time.Date(2026, 10, 21, 7, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, seconds, milliseconds string) {
		h := http.Header{"Retry-After": {seconds}, "Retry-After-Ms": {milliseconds}}
		if d := failure.RetryAfter(h, now); d < 0 || d > time.Hour {
			t.Errorf("%q and %q give %s", seconds, milliseconds, d)
		}
	})
}
