// Package pace bounds how fast each client may go on: a rate, and a burst that may come at once.
//
// Each process counts for itself, so a fleet of n lets n times as much through. What is counted is forgotten once it would
// be full again, and a bounded number of clients is remembered: the one that was seen longest ago goes first.
package pace

import (
	"time"

	"github.com/jellydator/ttlcache/v3"
	"golang.org/x/time/rate"
)

// remembered is how many clients are counted at once. Clients are known callers, who are not made up.
const remembered = 10_000

// Clients paces each client. The nil value lets everything through.
type Clients struct {
	perSecond rate.Limit
	burst     int
	each      *ttlcache.Cache[string, *rate.Limiter]
}

// New lets each client take perSecond units in a second, and burst at once; 0 perSecond is no limit.
func New(perSecond float64, burst int) *Clients {
	if perSecond <= 0 {
		return nil
	}
	full := time.Duration(float64(burst) / perSecond * float64(time.Second))
	return &Clients{
		perSecond: rate.Limit(perSecond), burst: burst,
		each: ttlcache.New(
			ttlcache.WithTTL[string, *rate.Limiter](full+time.Second), ttlcache.WithCapacity[string, *rate.Limiter](remembered)),
	}
}

// Take takes n units for a client, all or none. When they are not there, wait is how long until they could be; more than
// the burst never are.
func (c *Clients) Take(client string, n int, now time.Time) (wait time.Duration, ok bool) {
	if c == nil {
		return 0, true
	}
	item, _ := c.each.GetOrSetFunc(client, func() *rate.Limiter { return rate.NewLimiter(c.perSecond, c.burst) })
	r := item.Value().ReserveN(now, n)
	if !r.OK() {
		return rate.InfDuration, false
	}
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait, false
	}
	return 0, true
}
