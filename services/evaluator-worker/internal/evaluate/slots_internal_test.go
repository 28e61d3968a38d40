package evaluate

import (
	"testing"

	"github.com/evalonce/evalonce/pkg/outbox"
)

func (s *slots) mustTake(t *testing.T, lane outbox.Lane, least, most, want int) {
	t.Helper()
	if got, _ := s.take(lane, least, most); got != want {
		t.Fatalf("%s takes %d slots, want %d", lane, got, want)
	}
}

func TestSlotsOfOneLaneAlone(t *testing.T) {
	t.Parallel()
	s := newSlots(10)
	s.mustTake(t, outbox.Bulk, 1, 500, 8) // never all
	s.claimed(outbox.Bulk, 8, 8)
	s.mustTake(t, outbox.Bulk, 1, 500, 0)
	s.mustTake(t, outbox.Live, 1, 500, 2)
	s.claimed(outbox.Live, 2, 0)
	for range 8 {
		s.end(outbox.Bulk)
	}
	s.rest(outbox.Bulk)
	s.mustTake(t, outbox.Live, 1, 500, 10)
}

func TestSlotsAreTakenOnceThereAreEnough(t *testing.T) {
	t.Parallel()
	s := newSlots(4)
	s.mustTake(t, outbox.Live, 1, 4, 4)
	if taken, free := s.take(outbox.Live, 2, 4); taken != 0 || free {
		t.Fatalf("took %d of none, free: %t", taken, free)
	}
	s.end(outbox.Live)
	if taken, free := s.take(outbox.Live, 2, 4); taken != 0 || !free {
		t.Fatalf("took %d, free: %t", taken, free)
	}
	select {
	case <-s.freed[outbox.Live]:
	default:
		t.Fatal("nobody is told of a slot that is free again")
	}
	s.end(outbox.Live)
	s.mustTake(t, outbox.Live, 2, 4, 2)
}

// While both lanes want more than there is, bulk work gets a fifth, with as few slots as one.
func TestSlotsAreShared(t *testing.T) {
	t.Parallel()
	for _, total := range []int{1, 2, 5, 64, 1000} {
		s := newSlots(total)
		got := map[outbox.Lane]int{}
		var held []outbox.Lane
		for range 4000 {
			for _, lane := range []outbox.Lane{outbox.Live, outbox.Bulk} {
				n, _ := s.take(lane, 1, 500)
				if n > 0 {
					s.claimed(lane, n, n)
				}
				got[lane] += n
				for range n {
					held = append(held, lane)
				}
			}
			if len(held) > total {
				t.Fatalf("%d of %d slots are taken", len(held), total)
			}
			ended := max(1, total/4)
			for _, lane := range held[:min(ended, len(held))] {
				s.end(lane)
			}
			held = held[min(ended, len(held)):]
		}
		if share := float64(got[outbox.Bulk]) / float64(got[outbox.Live]+got[outbox.Bulk]); share < 0.18 || share > 0.22 {
			t.Errorf("of %d slots, bulk work has had %.2f, want a fifth", total, share)
		}
	}
}

// A lane that rests leaves all to the other.
func TestSlotsOfALaneThatRests(t *testing.T) {
	t.Parallel()
	s := newSlots(10)
	s.mustTake(t, outbox.Live, 1, 500, 10)
	s.claimed(outbox.Live, 10, 10)
	s.mustTake(t, outbox.Bulk, 1, 500, 0) // waits from here on, and has earned two
	for range 10 {
		s.end(outbox.Live)
	}
	s.mustTake(t, outbox.Live, 1, 500, 8)
	s.claimed(outbox.Live, 8, 8)
	s.rest(outbox.Bulk)
	s.mustTake(t, outbox.Live, 1, 500, 2)
}
