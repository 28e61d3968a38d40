package evaluate

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/outbox"
)

func TestClaimsEndWithTheLastOfThem(t *testing.T) {
	t.Parallel()
	whole, kept, adopted := uuid.New(), uuid.New(), uuid.Nil
	of := func(claim uuid.UUID) settlement {
		return settlement{item: &item{Claimed: outbox.Claimed{ClaimID: claim}}}
	}
	c := newClaims()
	c.begin([]outbox.Claimed{{ClaimID: whole}, {ClaimID: kept}, {ClaimID: whole}, {ClaimID: kept}})
	c.settle([]settlement{of(whole), of(kept), of(adopted)})
	if over := c.takeOver(); len(over) != 0 {
		t.Errorf("%v are over while some of them is not settled", over)
	}
	c.keep(kept)
	c.settle([]settlement{of(kept), of(whole)})
	over := c.takeOver()
	if !slices.Equal(over, []uuid.UUID{whole}) {
		t.Errorf("over are %v, want %s and not %s, of which a lease stays", over, whole, kept)
	}
	if again := c.takeOver(); len(again) != 0 {
		t.Errorf("%v are taken twice", again)
	}
	c.putBack(over)
	if again := c.takeOver(); !slices.Equal(again, over) {
		t.Errorf("%v came back, want %v", again, over)
	}
	if len(c.left) != 0 {
		t.Errorf("%v are still counted", c.left)
	}
}
