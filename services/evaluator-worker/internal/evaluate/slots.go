package evaluate

import (
	"sync"

	"github.com/evalonce/evalonce/pkg/outbox"
)

const (
	// bulkShare is the part of a route's work that is sure to be bulk work while live work waits.
	bulkShare = 0.2
	// liveReserve is the part of a route's slots that bulk work leaves free.
	liveReserve = 0.2
)

// slots are the calls that a route may have in flight, and how its lanes share them. Live work goes first; while it waits,
// bulk work gets what it has earned: a part of what live work has got. Bulk work never has all slots, so that live work
// does not wait for a call of it to end.
type slots struct {
	freed map[outbox.Lane]chan struct{} // rung when a lane may have more

	mu     sync.Mutex
	total  int
	used   map[outbox.Lane]int
	waits  map[outbox.Lane]bool // it wants more than it has got, as far as is known
	credit float64              // that bulk work has earned
}

func newSlots(total int) *slots {
	return &slots{
		total: total, used: map[outbox.Lane]int{}, waits: map[outbox.Lane]bool{},
		freed: map[outbox.Lane]chan struct{}{outbox.Live: make(chan struct{}, 1), outbox.Bulk: make(chan struct{}, 1)},
	}
}

// take takes up to most slots, as soon as there are least of them; before, it says whether there is any.
func (s *slots) take(lane outbox.Lane, least, most int) (taken int, free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(s.room(lane), most)
	if n < least {
		s.waits[lane] = true
		return 0, n > 0
	}
	s.used[lane] += n
	return n, true
}

// room is how many slots a lane may take now.
func (s *slots) room(lane outbox.Lane) int {
	free := s.total - s.used[outbox.Live] - s.used[outbox.Bulk]
	bulk := min(free, max(1, int(float64(s.total)*(1-liveReserve)))-s.used[outbox.Bulk])
	earned := min(bulk, int(s.credit))
	switch {
	case lane == outbox.Live && s.waits[outbox.Bulk]:
		return max(0, free-max(0, earned))
	case lane == outbox.Live:
		return max(0, free)
	case s.waits[outbox.Live]:
		return max(0, earned)
	}
	return max(0, bulk)
}

// reach is how many slots a lane could have if all calls of it ended now.
func (s *slots) reach(lane outbox.Lane) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room(lane) + s.used[lane]
}

// claimed tells what a claim got for the slots that were taken for it; those that are left over are given back.
func (s *slots) claimed(lane outbox.Lane, taken, got int) {
	s.mu.Lock()
	s.waits[lane] = got == taken
	s.used[lane] -= taken - got
	if lane == outbox.Live {
		s.credit = min(s.credit+float64(got)*bulkShare/(1-bulkShare), max(1, float64(s.total)*bulkShare))
	} else {
		s.credit = max(0, s.credit-float64(got))
	}
	s.mu.Unlock()
	s.ring()
}

// end gives a slot back.
func (s *slots) end(lane outbox.Lane) {
	s.mu.Lock()
	s.used[lane]--
	s.mu.Unlock()
	s.ring()
}

// rest tells that a lane wants nothing for now.
func (s *slots) rest(lane outbox.Lane) {
	s.mu.Lock()
	s.waits[lane] = false
	s.mu.Unlock()
	s.ring()
}

// earned is how much bulk work may be claimed while live work waits.
func (s *slots) earned() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.credit)
}

// busy reports whether a lane's last claim got all that it asked for.
func (s *slots) busy(lane outbox.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waits[lane]
}

// ring tells both lanes that what they may have has changed.
func (s *slots) ring() {
	for _, freed := range s.freed {
		select {
		case freed <- struct{}{}:
		default:
		}
	}
}
