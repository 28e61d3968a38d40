package backoff_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/content"
)

const key content.Key = "0123456789abcdef0123456789abcdef"

// exponential is the part of a delay that grows, written as the rule is told.
func exponential(attempt int) time.Duration {
	seconds := math.Min(math.Pow(2, float64(max(attempt, 0))), 300)
	return time.Duration(seconds * float64(time.Second))
}

func keys() *rapid.Generator[content.Key] {
	return rapid.Map(rapid.StringMatching(`[0-9a-f]{32}`), func(s string) content.Key { return content.Key(s) })
}

func attempts() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(-3, 12), rapid.IntRange(0, 1e9), rapid.Int())
}

func TestDelayIsWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		attempt := attempts().Draw(t, "attempt")
		retryAfter := time.Duration(rapid.Int64().Draw(t, "retry after"))
		got := backoff.Delay(attempt, keys().Draw(t, "key"), retryAfter)

		base := exponential(attempt)
		floor := max(base, retryAfter)
		if got < floor || got-floor > base/4 {
			t.Fatalf("%v, want %v and at most a quarter of %v more", got, floor, base)
		}
	})
}

// A later attempt may wait a little less only where both have reached the ceiling, give or take the jitter.
func TestDelayGrowsToTheCeiling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		attempt := rapid.IntRange(0, 1e9).Draw(t, "attempt")
		k := keys().Draw(t, "key")
		now, next := backoff.Delay(attempt, k, 0), backoff.Delay(attempt+1, k, 0)
		if now < backoff.Ceiling*3/4 && next < now {
			t.Fatalf("%v, then %v", now, next)
		}
		if limit := backoff.Ceiling + backoff.Ceiling/4; now > limit || next > limit {
			t.Fatalf("%v, then %v, above %v", now, next, limit)
		}
	})
}

// Delays are reproduced by other processes and other releases: the values are pinned.
func TestDelayIsReproducible(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int]time.Duration{
		0:   1075554104,
		1:   2305237385,
		8:   281722164101,
		9:   320532161544,
		1e9: 359796714906,
	} {
		if got := backoff.Delay(attempt, key, 0); got != want {
			t.Errorf("attempt %d waits %d, want %d", attempt, got, want)
		}
	}
}

// Items that failed together are spread over the whole of the jitter.
func TestJitterSpreads(t *testing.T) {
	t.Parallel()
	var quarters [4]int
	const n = 4000
	for i := range n {
		k := content.KeyOf(content.Hash{byte(i), byte(i >> 8)}, [32]byte{})
		jitter := backoff.Delay(9, k, 0) - backoff.Ceiling
		quarters[min(int(4*jitter/(backoff.Ceiling/4)), 3)]++
	}
	for i, count := range quarters {
		if count < n/5 || count > n*3/10 {
			t.Errorf("quarter %d has %d of %d", i, count, n)
		}
	}
}

func TestJitterDependsOnTheAttempt(t *testing.T) {
	t.Parallel()
	if a, b := backoff.Delay(20, key, 0), backoff.Delay(21, key, 0); a == b {
		t.Errorf("two attempts both wait %v", a)
	}
}
