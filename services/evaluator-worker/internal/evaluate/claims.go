package evaluate

import (
	"sync"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/outbox"
)

// claims counts what of each claim is not settled yet. With the last of it the claim is over, and can be struck off the list
// in which expired leases are looked for.
type claims struct {
	mu   sync.Mutex
	left map[uuid.UUID]int
	over []uuid.UUID
}

func newClaims() *claims { return &claims{left: map[uuid.UUID]int{}} }

// begin takes note of what was claimed.
func (c *claims) begin(rows []outbox.Claimed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range rows {
		c.left[r.ClaimID]++
	}
}

// settle takes note of what is settled. What of a claim that was kept, or that others took in, is not counted.
func (c *claims) settle(group []settlement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range group {
		id := s.item.ClaimID
		switch left, ok := c.left[id]; {
		case !ok:
		case left > 1:
			c.left[id] = left - 1
		default:
			delete(c.left, id)
			c.over = append(c.over, id)
		}
	}
}

// keep leaves a claim on the list for good: one of its leases stays, and is taken back when it is over.
func (c *claims) keep(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.left, id)
}

// takeOver returns the claims that are over and that nobody has taken.
func (c *claims) takeOver() []uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := c.over
	c.over = nil
	return over
}

// putBack returns claims that could not be struck off.
func (c *claims) putBack(over []uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = append(c.over, over...)
}
