package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const (
	asksAtATime = 8
	asksInARow  = 256
	askPause    = 50 * time.Millisecond
	// Time without any evaluation, after which the reason is looked for.
	patience = 5 * time.Second
)

// await asks for every ticket, as a customer would, until it is evaluated or given up.
func (d *demo) await(ctx context.Context, c *client, ids []string) ([]*ticketv1.Ticket, error) {
	tickets := make([]*ticketv1.Ticket, len(ids))
	open := make([]int, len(ids))
	for i := range ids {
		open[i] = i
	}
	progress := d.progress("evaluated")
	defer progress.Stop()
	pause := time.NewTicker(askPause)
	defer pause.Stop()
	last := time.Now()
	for len(open) > 0 {
		batch := open[:min(asksInARow, len(open))]
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(asksAtATime)
		for _, i := range batch {
			group.Go(func() error {
				t, err := c.GetTicket(groupCtx, &ticketv1.GetTicketRequest{Id: ids[i]})
				if err != nil {
					return fmt.Errorf("get ticket %s: %w", ids[i], err)
				}
				if finished(t) {
					tickets[i] = t
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		// What is not finished goes to the end: one that is late holds up nobody's count.
		rest := append([]int(nil), open[len(batch):]...)
		for _, i := range batch {
			if tickets[i] == nil {
				rest = append(rest, i)
			}
		}
		done := len(open) - len(rest)
		open = rest
		progress.Add(done)
		if done > 0 {
			last = time.Now()
			continue
		}
		if time.Since(last) > patience {
			if err := d.explainStall(ctx); err != nil {
				return nil, err
			}
			last = time.Now()
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return tickets, nil
}

func finished(t *ticketv1.Ticket) bool {
	switch t.GetEvaluation().GetState() {
	case ticketv1.Evaluation_SUCCEEDED, ticketv1.Evaluation_DEAD_LETTER:
		return true
	}
	return false
}

// explainStall tells why nothing gets evaluated. What only an operator can mend, such as a wrong API key, ends the
// demo; anything else may pass.
func (d *demo) explainStall(ctx context.Context) error {
	var state, reason, detail string
	err := d.db.QueryRow(ctx, `
		SELECT state, reason, coalesce((SELECT error FROM model_call WHERE error <> '' ORDER BY id DESC LIMIT 1), '')
		FROM provider_route WHERE name = $1`, d.version.GetRoute()).Scan(&state, &reason, &detail)
	if err == pgx.ErrNoRows { //nolint:errorlint // as pgx returns it
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the provider's route: %w", err)
	}
	if state == "halted" {
		return fmt.Errorf("the provider has refused the account, and everything waits for an operator: %s: %s", reason, detail)
	}
	d.say("no evaluation for %s: the provider's route is %s (%s); last error: %s", patience, state, reason, detail)
	return nil
}
