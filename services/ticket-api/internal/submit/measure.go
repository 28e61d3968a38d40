package submit

import (
	"context"
	"errors"
	"time"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// measure counts what came of requests that were answered together.
func (s *Submitter) measure(ctx context.Context, began time.Time, receipts []Receipt, requests int, err error) {
	took := time.Since(began)
	switch {
	case errors.Is(err, ErrKeyReused):
		s.metrics.Answered(ctx, metrics.Refused, requests, took)
	case err != nil:
		s.metrics.Answered(ctx, metrics.Failed, requests, took)
	default:
		replayed := 0
		for _, r := range receipts {
			if r.Replayed {
				replayed++
			}
		}
		if created := len(receipts) - replayed; created > 0 {
			s.metrics.Answered(ctx, metrics.Created, created, took)
		}
		if replayed > 0 {
			s.metrics.Answered(ctx, metrics.Replayed, replayed, took)
		}
	}
}

// savings are tickets that need no call of their own.
type savings struct {
	answered, following int
}

// savings counts them by where their evaluations stood when the transaction looked first: of the stored tickets of a key
// that had no work, one is what the call is made for.
func (g *group) savings() savings {
	var s savings
	asked := make(map[content.Key]bool, len(g.offered))
	for i, key := range g.seen.keys {
		if !g.stored(i) {
			continue
		}
		standing := g.seen.standings[key]
		anew := standing.State == outbox.Absent || standing.State == outbox.Dead && standing.Class.Rearmable()
		switch {
		case standing.State == outbox.Succeeded:
			s.answered++
		case anew && !asked[key]:
			asked[key] = true
		case standing.State != outbox.Dead || anew:
			s.following++
		}
	}
	return s
}
