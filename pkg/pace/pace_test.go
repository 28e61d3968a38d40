package pace_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/pace"
)

func TestEachClientGoesAtItsOwnPace(t *testing.T) {
	t.Parallel()
	clients := pace.New(10, 20)
	now := time.Now()
	take := func(client string, n int, wantWait time.Duration) {
		t.Helper()
		wait, ok := clients.Take(client, n, now)
		if ok != (wantWait == 0) || (wait-wantWait).Abs() > time.Millisecond {
			t.Errorf("%s takes %d: %v, %s; want to wait %s", client, n, ok, wait, wantWait)
		}
	}
	take("acme", 15, 0)
	take("acme", 10, 500*time.Millisecond) // all or none
	take("acme", 5, 0)
	take("acme", 1, 100*time.Millisecond)
	take("acme", 1, 100*time.Millisecond) // a refusal costs nothing
	take("other", 20, 0)
	now = now.Add(500 * time.Millisecond)
	take("acme", 5, 0)
	take("acme", 20, 2*time.Second)
	now = now.Add(time.Hour)
	take("acme", 20, 0) // never more than the burst
	take("acme", 1, 100*time.Millisecond)
	if _, ok := clients.Take("acme", 21, now.Add(time.Hour)); ok {
		t.Error("more than the burst is taken at once")
	}
}

func TestWithoutALimitNothingWaits(t *testing.T) {
	t.Parallel()
	if _, ok := pace.New(0, 1).Take("acme", 1_000_000, time.Now()); !ok {
		t.Error("there is a limit")
	}
}

func TestClientsAreForgotten(t *testing.T) {
	t.Parallel()
	clients := pace.New(1, 1)
	now := time.Now()
	for n := range 10_001 {
		clients.Take(strconv.Itoa(n), 1, now)
	}
	if _, ok := clients.Take("10000", 1, now); ok {
		t.Error("the last is forgotten")
	}
	if _, ok := clients.Take("0", 1, now); !ok {
		t.Error("the first is remembered, however many came after it")
	}
}
