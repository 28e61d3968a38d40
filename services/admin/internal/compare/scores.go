package compare

import (
	"math"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const (
	bins = 10
	// grain is the resolution of deciles: scores are counted and not kept.
	grain = 10_000
)

// scores counts numbers from 0 to 1.
type scores struct {
	n     int64
	sum   float64
	bins  [bins]int64
	grain [grain + 1]int64
}

func (s *scores) add(score float64) {
	s.n++
	s.sum += score
	s.bins[min(bins-1, int(score*bins))]++
	s.grain[int(math.Round(score*grain))]++
}

func (s *scores) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.sum / float64(s.n)
}

// deciles are, for each tenth, the least score that so many do not exceed.
func (s *scores) deciles() []float64 {
	if s.n == 0 {
		return nil
	}
	deciles := make([]float64, 0, bins-1)
	var seen int64
	for at, n := range s.grain {
		seen += n
		for len(deciles) < bins-1 && seen*bins >= s.n*int64(len(deciles)+1) {
			deciles = append(deciles, float64(at)/grain)
		}
	}
	return deciles
}

func (s *scores) message() *adminv1.ScoreDistribution {
	return &adminv1.ScoreDistribution{Mean: s.mean(), Bins: s.bins[:], Deciles: s.deciles()}
}
