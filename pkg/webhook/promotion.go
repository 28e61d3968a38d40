package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

const (
	// tailBefore and tailAfter bound when tickets are stored under the version before by those who read it just before
	// a promotion committed; tailWait is when the last of them is stored, too. All are far longer than such a
	// transaction may take.
	tailBefore = 5 * time.Minute
	tailAfter  = 2 * time.Minute
	tailWait   = 5 * time.Minute
)

// Progress is what a step has done.
type Progress struct {
	Worked bool // there may be more to do at once
	Told   int
}

// Supersede does one chunk of the oldest promotion whose tickets have not all been looked through: those tickets whose
// answer it has changed are told of. A chunk and its progress commit together. Safe to run anywhere, by several at once.
func Supersede(ctx context.Context, db postgres.Beginner, most int) (p Progress, err error) {
	err = postgres.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		p = Progress{}
		q := webhooksql.New(tx)
		if err := q.FindPromotions(ctx); err != nil {
			return fmt.Errorf("find promotions: %w", err)
		}
		s, err := q.LockPromotion(ctx, tailWait.Seconds())
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lock a promotion: %w", err)
		}
		p.Worked = true
		next, told, err := step(ctx, q, s, most)
		if err != nil {
			return fmt.Errorf("promotion %d: %w", s.PromotionID, err)
		}
		p.Told = told
		if err := q.SavePromotion(ctx, next); err != nil {
			return fmt.Errorf("save the progress of promotion %d: %w", s.PromotionID, err)
		}
		crashpoint.Pass(crashpoint.DeliverSuperseded)
		return nil
	})
	if err != nil {
		return Progress{}, fmt.Errorf("tell of superseded answers: %w", err)
	}
	return p, nil
}

// step looks through the next tickets of one client.
func step(ctx context.Context, q *webhooksql.Queries, s webhooksql.LockPromotionRow, most int) (webhooksql.SavePromotionParams, int, error) {
	next := webhooksql.SavePromotionParams{
		PromotionID: s.PromotionID, State: s.State, ClientID: s.ClientID, CreatedAt: s.CreatedAt, TicketID: s.TicketID,
	}
	begin := time.Unix(0, 0)
	if s.State == "tail" {
		begin = s.PromotedAt.Add(-tailBefore)
	}
	if s.Overtaken { // what tickets show now is what the later one makes of them
		next.State = "done"
		return next, 0, nil
	}
	client, err := q.NextClient(ctx, s.ClientID)
	if err != nil {
		return next, 0, fmt.Errorf("look for a client: %w", err)
	}
	if client != s.ClientID || s.CreatedAt.Before(begin) {
		next.ClientID, next.CreatedAt, next.TicketID = client, begin, uuid.Nil
	}
	told := 0
	if client != "" {
		tickets, err := q.NextTickets(ctx, webhooksql.NextTicketsParams{
			ClientID: client, AfterCreatedAt: next.CreatedAt, AfterID: next.TicketID, CreatedBefore: s.PromotedAt.Add(tailAfter),
			Most: int32(most), Digest: s.Digest,
		})
		if err != nil {
			return next, 0, fmt.Errorf("read tickets of client %s: %w", client, err)
		}
		if told, err = tellAnswered(ctx, q, s.PromotionID, tickets); err != nil {
			return next, 0, err
		}
		next.Told = int64(told)
		if n := len(tickets); n == most {
			next.CreatedAt, next.TicketID = tickets[n-1].CreatedAt, tickets[n-1].ID
			return next, told, nil
		}
		if client, err = q.ClientAfter(ctx, client); err != nil {
			return next, 0, fmt.Errorf("look for the next client: %w", err)
		}
	}
	next.ClientID, next.CreatedAt, next.TicketID = client, begin, uuid.Nil
	if client == "" {
		next.CreatedAt = time.Unix(0, 0)
		next.State = map[string]string{"walking": "tail", "tail": "done"}[s.State]
	}
	return next, told, nil
}

func tellAnswered(ctx context.Context, q *webhooksql.Queries, promotion int64, tickets []webhooksql.NextTicketsRow) (int, error) {
	p := webhooksql.TellParams{PromotionID: promotion, Keys: []string{}}
	for _, t := range tickets {
		if t.Answered {
			p.TicketIds = append(p.TicketIds, t.ID)
			p.TicketKeys = append(p.TicketKeys, t.IdempotencyKey)
		}
	}
	if len(p.TicketIds) == 0 {
		return 0, nil
	}
	if err := q.LockByID(ctx, p.TicketIds); err != nil {
		return 0, fmt.Errorf("lock %d tickets: %w", len(p.TicketIds), err)
	}
	n, err := q.Tell(ctx, p)
	if err != nil {
		return 0, fmt.Errorf("tell of %d tickets: %w", len(p.TicketIds), err)
	}
	return int(n), nil
}
