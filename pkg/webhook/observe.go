package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

// endpointsMost bounds how many endpoints are looked at to say how webhooks stand.
const endpointsMost = 10_000

// Standing is how webhooks stand.
type Standing struct {
	Enabled   int64            // endpoints
	Disabled  map[string]int64 // by reason
	OldestDue time.Duration    // of the deliveries that somebody should have attempted; 0 when there is none
}

// Stand returns how webhooks stand.
func Stand(ctx context.Context, db webhooksql.DBTX) (Standing, error) {
	q := webhooksql.New(db)
	counts, err := q.EndpointsByState(ctx, endpointsMost)
	if err != nil {
		return Standing{}, fmt.Errorf("count the webhook endpoints: %w", err)
	}
	age, err := q.OldestDue(ctx, endpointsMost)
	if err != nil {
		return Standing{}, fmt.Errorf("look for the oldest delivery: %w", err)
	}
	s := Standing{Disabled: map[string]int64{}, OldestDue: max(0, time.Duration(age*float64(time.Second)))}
	for _, c := range counts {
		if c.DisabledReason == "" {
			s.Enabled = c.Count
		} else {
			s.Disabled[c.DisabledReason] = c.Count
		}
	}
	return s, nil
}
