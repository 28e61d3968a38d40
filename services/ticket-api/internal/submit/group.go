package submit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// ErrStopped is returned once the submitter has stopped taking requests.
var ErrStopped = errors.New("the service is stopping")

type pending struct {
	ctx     context.Context
	request Request
	receipt Receipt
	err     error
	done    chan struct{}
}

// Submit stores one ticket in the next group. When ctx ends first the ticket may still be stored; the same
// request id then tells.
func (s *Submitter) Submit(ctx context.Context, r Request) (Receipt, error) {
	began := time.Now()
	receipt, err := s.submit(ctx, r)
	s.measure(ctx, began, []Receipt{receipt}, 1, err)
	return receipt, err
}

func (s *Submitter) submit(ctx context.Context, r Request) (Receipt, error) {
	p := &pending{ctx: ctx, request: r, done: make(chan struct{})}
	leave, taken := s.queue.put(p)
	if !taken {
		return Receipt{}, ErrStopped
	}
	select {
	case <-p.done:
		return p.receipt, p.err
	case <-ctx.Done():
		leave()
		return Receipt{}, context.Cause(ctx)
	}
}

// Run flushes groups until ctx ends. Every request that was taken is answered before it returns.
func (s *Submitter) Run(ctx context.Context) error {
	s.queue.open(func(group []*pending) {
		ctx, span := startStore(context.WithoutCancel(ctx), group)
		defer span.End()
		s.flush(ctx, group)
	})
	err := s.notifier.Run(ctx)
	s.queue.stop()
	return err
}

// flushTimeout bounds a group's transaction with its retries; requests may give up sooner.
const flushTimeout = 20 * time.Second

// flush answers a group. Of two requests with one id the second is kept for the replay.
func (s *Submitter) flush(ctx context.Context, group []*pending) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	var live, twins []*pending
	ids := make(map[ticketdb.RequestID]bool, len(group))
	for _, p := range group {
		switch id := p.request.id(); {
		case p.ctx.Err() != nil:
			p.err = context.Cause(p.ctx)
			close(p.done)
		case p.request.RequestID != "" && ids[id]:
			twins = append(twins, p)
		default:
			ids[id] = true
			live = append(live, p)
		}
	}
	s.commit(ctx, live)
	s.replayTwins(ctx, twins)
	s.notifier.Ring()
}

// replayTwins answers requests whose first twin is decided by now. Where that one failed, they try themselves.
func (s *Submitter) replayTwins(ctx context.Context, twins []*pending) {
	if len(twins) == 0 {
		return
	}
	requests := make([]Request, len(twins))
	for i, p := range twins {
		requests[i] = p.request
	}
	receipts := make([]Receipt, len(twins))
	errs := make([]error, len(twins))
	err := s.replay(ctx, s.pool, requests, receipts, func(i int, err error) error {
		errs[i] = err
		return nil
	})
	for i, p := range twins {
		switch {
		case errors.Is(errs[i], ErrExpired):
			s.commit(ctx, []*pending{p})
			continue
		case errs[i] != nil:
			p.err = errs[i]
		case receipts[i].Ticket.ID == uuid.Nil:
			p.err = fmt.Errorf("read the stored response: %w", err)
		}
		p.receipt = receipts[i]
		close(p.done)
	}
}

// commit stores a group in one transaction and answers its members.
func (s *Submitter) commit(ctx context.Context, group []*pending) {
	if len(group) == 0 {
		return
	}
	requests := make([]Request, len(group))
	for i, p := range group {
		requests[i] = p.request
	}
	var receipts []Receipt
	var saved savings
	err := postgres.InTx(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		receipts, saved, err = s.insert(ctx, tx, requests)
		return err
	})
	if err != nil && len(group) > 1 && refused(err) {
		for _, p := range group {
			s.commit(ctx, []*pending{p})
		}
		return
	}
	if err != nil {
		for _, p := range group {
			p.err = fmt.Errorf("store the ticket: %w", err)
			close(p.done)
		}
		return
	}
	crashpoint.Pass(crashpoint.CreateCommitted)
	s.metrics.Committed(ctx, len(requests), saved.answered, saved.following)
	// Committed. What cannot be replayed fails alone.
	err = s.replay(ctx, s.pool, requests, receipts, func(i int, err error) error {
		group[i].err = err
		return nil
	})
	for i, p := range group {
		p.receipt = receipts[i]
		if p.receipt.Ticket.ID == uuid.Nil && p.err == nil {
			p.err = fmt.Errorf("read the stored response: %w", err)
		}
		close(p.done)
	}
}

// refused reports whether the database refused the data of some row, so that the others may pass without it.
func refused(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code[:2] {
	case "21", "22", "23", "54": // cardinality, data, integrity constraint, program limit
		return true
	}
	return false
}
