package webhook

import (
	"encoding/binary"
	"net/http"
	"time"

	"github.com/google/uuid"
)

// schedule is when an attempt follows the one before; the first is made at once.
func schedule() []time.Duration {
	return []time.Duration{
		0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
	}
}

const (
	// failingAfter failures in a row an endpoint is tried with one delivery at a time, and with pauses.
	failingAfter = 5
	pauseMost    = 5 * time.Minute
	// busyPause is how long an endpoint is left alone that is overloaded and does not say for how long.
	busyPause = 5 * time.Second
	// secretPause is how long deliveries wait whose secret this process cannot read.
	secretPause = time.Minute
	// DisableAfter so long with nothing but failures an endpoint is disabled.
	DisableAfter = 5 * 24 * time.Hour
)

// outcome is what an attempt comes to.
type outcome struct {
	state  string
	delay  time.Duration // until the next attempt
	refund bool          // the attempt does not count
	pause  time.Duration // that the endpoint is to be left alone for
	blames bool          // the endpoint, for a failure
}

// judge decides what follows an attempt, the n-th.
func judge(c Claimed, a Attempt) outcome {
	steps := schedule()
	switch a.Reason {
	case "":
		return outcome{state: "delivered"}
	case Stopped:
		return outcome{state: "pending", refund: true}
	case NoSecret:
		return outcome{state: "pending", refund: true, delay: secretPause, pause: secretPause}
	case Gone:
		return outcome{state: "failed", blames: true}
	}
	o := outcome{state: "pending", blames: true, pause: a.RetryAfter}
	switch a.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		o.pause = max(o.pause, busyPause)
	}
	if c.Event == Test || c.Attempts >= len(steps) {
		o.state = "failed"
		return o
	}
	step := steps[c.Attempts]
	o.delay = max(step, a.RetryAfter) + jitter(c.ID, c.Attempts, step/5)
	return o
}

// jitter is spread over [0, limit] by the delivery's random bits, so that a run can be reproduced.
func jitter(id uuid.UUID, attempt int, limit time.Duration) time.Duration {
	bits := binary.BigEndian.Uint64(id[8:]) * (2*uint64(attempt) + 1)
	return time.Duration(bits >> 1 % uint64(limit+1))
}
