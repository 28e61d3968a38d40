package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

// Claimed is a delivery that is leased, to be sent once.
type Claimed struct {
	ID         uuid.UUID
	Lease      uuid.UUID
	EndpointID uuid.UUID
	Event      Event
	URL        string
	Body       []byte
	Attempts   int // this one included
	// TraceContext is that of the ticket's creation, and empty where it has none.
	TraceContext string

	sealed [][]byte
}

// Message opens the secrets that sign the delivery.
func (c Claimed) Message(keys *Keyring) (Message, error) {
	m := Message{ID: c.ID, URL: c.URL, Body: c.Body, Secrets: make([][]byte, len(c.sealed))}
	for i, sealed := range c.sealed {
		secret, err := keys.open(c.EndpointID, sealed)
		if err != nil {
			return Message{}, err
		}
		m.Secrets[i] = secret
	}
	if len(m.Secrets) == 0 {
		return Message{}, fmt.Errorf("endpoint %s has no secret", c.EndpointID)
	}
	return m, nil
}

// Claim leases up to most due deliveries, of endpoints in turn, and no more of any than it may have under way. Endpoints
// that are left alone cost it nothing, whatever waits for them.
func Claim(ctx context.Context, db postgres.Beginner, worker string, lease time.Duration, perEndpoint, most int) ([]Claimed, error) {
	if most <= 0 {
		return nil, nil
	}
	var rows []webhooksql.ClaimRow
	err := postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		rows = nil
		q := webhooksql.New(tx)
		if err := q.PlanClaim(ctx); err != nil {
			return err
		}
		ready, err := q.LockReady(ctx, webhooksql.LockReadyParams{FailingAfter: failingAfter, PerEndpoint: int64(perEndpoint), Most: int32(most)})
		if err != nil || len(ready) == 0 {
			return err
		}
		rows, err = q.Claim(ctx, webhooksql.ClaimParams{
			Worker: worker, LeaseSeconds: lease.Seconds(), EndpointIds: ready, FailingAfter: failingAfter,
			PerEndpoint: int64(perEndpoint), Most: int64(max(1, most/len(ready))),
		})
		crashpoint.PassIf(len(rows) > 0, crashpoint.DeliverClaimed)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	claimed := make([]Claimed, len(rows))
	for i, r := range rows {
		claimed[i] = Claimed{
			ID: r.ID, Lease: r.LeaseID, EndpointID: r.EndpointID, Event: Event(r.Event), URL: r.Url, Body: r.Body, Attempts: int(r.Attempts),
			TraceContext: r.TraceContext, sealed: r.Secrets,
		}
	}
	return claimed, nil
}

// Extend is the heartbeat: it prolongs all of a worker's leases, and returns those that are lost.
func Extend(ctx context.Context, db webhooksql.DBTX, worker string, leases []uuid.UUID, lease time.Duration) (lost []uuid.UUID, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	lost, err = webhooksql.New(db).Extend(ctx, webhooksql.ExtendParams{Worker: worker, Leases: leases, LeaseSeconds: lease.Seconds()})
	if err != nil {
		return nil, fmt.Errorf("extend %d leases of deliveries: %w", len(leases), err)
	}
	return lost, nil
}

// Reclaim takes back up to most expired leases. Safe to run anywhere, by several at once.
func Reclaim(ctx context.Context, db webhooksql.DBTX, most int) (int, error) {
	n, err := webhooksql.New(db).Reclaim(ctx, int32(most))
	if err != nil {
		return 0, fmt.Errorf("reclaim deliveries: %w", err)
	}
	return int(n), nil
}

// Made is a claimed delivery and what became of the attempt.
type Made struct {
	Claimed
	Attempt Attempt
}

// Disabled is an endpoint that attempts have disabled.
type Disabled struct {
	EndpointID uuid.UUID
	ClientID   string
	Reason     string
}

// Settle writes what attempts have come to, and what they say of their endpoints. Deliveries whose leases are lost are
// left alone.
func Settle(ctx context.Context, db postgres.Beginner, made []Made) (disabled []Disabled, err error) {
	if len(made) == 0 {
		return nil, nil
	}
	var p webhooksql.SettleParams
	notes := map[uuid.UUID]*note{}
	for _, m := range made {
		o := judge(m.Claimed, m.Attempt)
		p.Ids = append(p.Ids, m.ID)
		p.Leases = append(p.Leases, m.Lease)
		p.States = append(p.States, o.state)
		p.DelaySeconds = append(p.DelaySeconds, o.delay.Seconds())
		p.Refunds = append(p.Refunds, o.refund)
		p.Statuses = append(p.Statuses, int32(m.Attempt.Status))
		p.Reasons = append(p.Reasons, string(m.Attempt.Reason))
		n, ok := notes[m.EndpointID]
		if !ok {
			n = &note{}
			notes[m.EndpointID] = n
		}
		n.add(m.Attempt, o)
	}
	np := noteParams(notes)
	var rows []webhooksql.NoteEndpointsRow
	err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		rows = nil
		q := webhooksql.New(tx)
		// Endpoints come first here, as they do in a claim.
		var err error
		if len(np.Ids) > 0 {
			if rows, err = q.NoteEndpoints(ctx, np); err != nil {
				return err
			}
		}
		_, err = q.Settle(ctx, p)
		crashpoint.Pass(crashpoint.DeliverSettled)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("settle %d deliveries: %w", len(made), err)
	}
	for _, r := range rows {
		if r.DisabledReason != "" {
			disabled = append(disabled, Disabled{EndpointID: r.ID, ClientID: r.ClientID, Reason: r.DisabledReason})
		}
	}
	return disabled, nil
}

// note is what the attempts of one group say of one endpoint.
type note struct {
	delivered, gone bool
	failures        int
	pause           time.Duration
}

func (n *note) add(a Attempt, o outcome) {
	n.delivered = n.delivered || a.Delivered()
	n.gone = n.gone || a.Reason == Gone
	if o.blames {
		n.failures++
	}
	n.pause = max(n.pause, o.pause)
}

func noteParams(notes map[uuid.UUID]*note) webhooksql.NoteEndpointsParams {
	p := webhooksql.NoteEndpointsParams{
		FailingAfter: failingAfter, PauseMostSeconds: pauseMost.Seconds(), DisableAfterSeconds: DisableAfter.Seconds(),
	}
	for id, n := range notes {
		if !n.delivered && n.failures == 0 && n.pause == 0 {
			continue
		}
		p.Ids = append(p.Ids, id)
		p.Delivered = append(p.Delivered, n.delivered)
		p.Failures = append(p.Failures, int32(n.failures))
		p.Gone = append(p.Gone, n.gone)
		p.PauseSeconds = append(p.PauseSeconds, n.pause.Seconds())
	}
	return p
}

// Purge removes up to most deliveries of endpoints that were deleted, and the endpoints once they have none.
func Purge(ctx context.Context, db webhooksql.DBTX, most int) (int, error) {
	q := webhooksql.New(db)
	n, err := q.PurgeDeliveries(ctx, int32(most))
	if err == nil && n == 0 {
		_, err = q.PurgeEndpoints(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("purge deleted webhook endpoints: %w", err)
	}
	return int(n), nil
}

// Reseal seals up to most secrets anew that are sealed with another key than the first of the ring, so that the other can
// be given up. It returns their number, and fails when one cannot be opened.
func Reseal(ctx context.Context, db postgres.Beginner, keys *Keyring, most int) (n int, err error) {
	if !keys.Usable() {
		return 0, nil
	}
	err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		q := webhooksql.New(tx)
		rows, err := q.SealedOtherwise(ctx, webhooksql.SealedOtherwiseParams{Prefix: keys.prefix(), Most: int32(most)})
		if err != nil {
			return err
		}
		for _, r := range rows {
			secret, err := keys.open(r.EndpointID, r.Sealed)
			if err != nil {
				return err
			}
			sealed, err := keys.seal(r.EndpointID, secret)
			if err != nil {
				return err
			}
			if err := q.Reseal(ctx, webhooksql.ResealParams{ID: r.ID, Sealed: sealed}); err != nil {
				return err
			}
		}
		n = len(rows)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("seal webhook secrets anew: %w", err)
	}
	return n, nil
}
