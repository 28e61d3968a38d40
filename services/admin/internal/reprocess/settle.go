package reprocess

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// hold keeps a part of what waits from becoming due. Work under way may come back to wait, so the walk over a paused
// job's work is repeated until there is none.
func (c *cursor) hold(ctx context.Context, tx pgx.Tx, job uuid.UUID) (jobdb.Progress, error) {
	c.on(holding)
	page, err := outbox.HoldBack(ctx, tx, job, c.Key, chunk)
	if err != nil {
		return jobdb.Progress{}, err
	}
	c.Held = c.Held || page.Changed > 0
	return c.settled(page), nil
}

// withdraw removes a part of what waits.
func (c *cursor) withdraw(ctx context.Context, tx pgx.Tx, job uuid.UUID) (jobdb.Progress, error) {
	c.on(withdrawing)
	page, err := outbox.Withdraw(ctx, tx, job, c.Key, chunk)
	if err != nil {
		return jobdb.Progress{}, err
	}
	p := c.settled(page)
	p.Add = map[string]int64{countRemoved: int64(page.Removed), countKept: int64(page.Kept)}
	return p, nil
}

// spread makes a part of what is held back due again.
func (c *cursor) spread(ctx context.Context, tx pgx.Tx, job uuid.UUID, spread outbox.Spread) error {
	c.on(spreading)
	page, err := outbox.SpreadOut(ctx, tx, job, spread, c.Key, chunk)
	if err != nil {
		return err
	}
	c.Key, c.Held = page.Next, page.Next != ""
	return nil
}

// on begins a walk at its beginning, unless it is under way.
func (c *cursor) on(w walk) {
	if c.Walk != w {
		c.Walk, c.Key, c.Busy = w, "", false
	}
}

func (c *cursor) settled(page outbox.Page) jobdb.Progress {
	c.Busy = c.Busy || page.Processing > 0
	if c.Key = page.Next; c.Key != "" {
		return jobdb.Progress{}
	}
	busy := c.Busy
	c.Walk, c.Busy = "", false
	if busy {
		return jobdb.Progress{Wait: settlePause}
	}
	return jobdb.Progress{Done: true}
}
