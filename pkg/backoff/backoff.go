// Package backoff says how long an item waits before it is tried again.
//
// The delay is a function of its arguments alone: the same attempt of the same key always waits the same time, so
// a run can be reproduced, while different keys that failed together do not come back together.
package backoff

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"github.com/evalonce/evalonce/pkg/content"
)

// Ceiling bounds the exponential part of a delay.
const Ceiling = 300 * time.Second

// Delay is how long to wait after the given number of attempts: the greater of min(2^attempt s, [Ceiling]) and
// retryAfter, plus a jitter of up to a quarter of the exponential part. retryAfter, what the provider asked for, is
// thus a floor and never a ceiling, and jitter is only ever added. Negative arguments count as zero.
func Delay(attempt int, key content.Key, retryAfter time.Duration) time.Duration {
	attempt = max(attempt, 0)
	base := Ceiling
	if attempt < 9 { // 2^9 s is above the ceiling
		base = time.Second << attempt
	}
	wait := max(base, retryAfter)
	return wait + min(jitter(attempt, key, base/4), math.MaxInt64-wait)
}

// jitter is spread evenly over [0, limit] by a hash: a stored key has to give the same delay in every process.
func jitter(attempt int, key content.Key, limit time.Duration) time.Duration {
	b := append(make([]byte, 0, 64), "evalonce/backoff/1"...)
	b = binary.BigEndian.AppendUint64(b, uint64(attempt))
	b = append(b, key...)
	sum := sha256.Sum256(b)
	return time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(limit+1))
}
