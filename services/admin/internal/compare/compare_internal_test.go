package compare

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// seeded are random numbers that are the same in each run.
func seeded(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, seed))
}

func TestWorstKeepsTheGreatest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := seeded(seed)
		w := worst{limit: r.IntN(12)}
		var all []disagreement
		for i := range r.IntN(60) {
			d := disagreement{distance: float64(r.IntN(6)) / 4, pair: comparison.Pair{TicketID: uuid.UUID{byte(i)}}}
			w.add(d)
			if d.distance > 0 {
				all = append(all, d)
			}
		}
		slices.SortFunc(all, disagreement.more)
		want := all[:min(len(all), w.limit)]
		same := func(a, b disagreement) bool { return a.pair.TicketID == b.pair.TicketID && a.distance == b.distance }
		if got := w.sorted(); !slices.EqualFunc(got, want, same) {
			t.Fatalf("seed %d, limit %d: kept %v, want %v", seed, w.limit, got, want)
		}
	}
}

func TestDeciles(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := seeded(seed)
		var s scores
		values := make([]float64, 1+r.IntN(50))
		for i := range values {
			values[i] = float64(r.IntN(grain+1)) / grain
			s.add(values[i])
		}
		slices.Sort(values)
		deciles := s.deciles()
		if len(deciles) != 9 {
			t.Fatalf("seed %d: deciles %v", seed, deciles)
		}
		for i, got := range deciles {
			// The least score that a share of (i+1)/10 does not exceed.
			at := (len(values)*(i+1) + 9) / 10
			if want := values[at-1]; got != want {
				t.Fatalf("seed %d: decile %d of %v is %v, want %v", seed, i+1, values, got, want)
			}
		}
		var binned int64
		for _, n := range s.bins {
			binned += n
		}
		if binned != int64(len(values)) {
			t.Fatalf("seed %d: %d of %d scores are in bins", seed, binned, len(values))
		}
	}
}

// Whatever the truth says, each row of it is accounted for once, no ticket is compared twice, and what is compared does not
// depend on the order of the rows.
func TestTruthIsAccountedFor(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		r := seeded(seed)
		tickets := make([]comparison.Pair, 6)
		for i := range tickets {
			tickets[i] = comparison.Pair{TicketID: uuid.UUID{1 + byte(i)}, ExternalID: string(rune('a' + r.IntN(8)))}
			if r.IntN(4) > 0 {
				tickets[i].Side.State = outbox.Succeeded
			}
		}
		truth := make([]Truth, r.IntN(20))
		for i := range truth {
			truth[i].Department = []string{"x", "X ", "y"}[r.IntN(3)]
			if r.IntN(2) == 0 {
				truth[i].TicketID = uuid.UUID{1 + byte(r.IntN(8))}
			} else {
				truth[i].ExternalID = string(rune('a' + r.IntN(9)))
			}
		}
		used := func() []uuid.UUID {
			x := newIndex(truth)
			for _, p := range tickets {
				x.match(p)
			}
			var used []uuid.UUID
			account := x.conclude(func(p comparison.Pair, _ Truth) { used = append(used, p.TicketID) })
			sum := account.GetUsed() + account.GetDuplicates() + account.GetContradictions() + account.GetUnknown() + account.GetAmbiguous() + account.GetUnanswered()
			if sum != int64(len(truth)) || account.GetUsed() != int64(len(used)) {
				t.Fatalf("seed %d: %d rows, accounted for as %v, and %d used", seed, len(truth), account, len(used))
			}
			slices.SortFunc(used, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
			if len(slices.Compact(slices.Clone(used))) != len(used) {
				t.Fatalf("seed %d: used twice in %v", seed, used)
			}
			return used
		}
		first := used()
		r.Shuffle(len(truth), func(i, j int) { truth[i], truth[j] = truth[j], truth[i] })
		if again := used(); !slices.Equal(first, again) {
			t.Fatalf("seed %d: used %v, and %v in another order", seed, first, again)
		}
	}
}
