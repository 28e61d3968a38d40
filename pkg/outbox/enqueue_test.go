package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

func TestEnqueueIsOnceForAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.enqueue(0, 3)
	w.enqueue(0, 5)
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 5 {
		t.Errorf("%d rows of work, want 5", n)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE ticket_id = $1", first[0].TicketID); n != 1 {
		t.Error("the work is not the first ticket's")
	}
	c := w.claimOne("a")
	w.finish(c)
	w.enqueue(0, 5)
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 4 {
		t.Errorf("%d rows of work, want 4: a finished key got new work", n)
	}
}

func TestEnqueueOnDeadWork(t *testing.T) {
	t.Parallel()
	for reason, rearmed := range map[failure.Reason]bool{
		failure.AttemptsSpent:     true,
		failure.TooOld:            true,
		failure.UnknownOutcome:    false,
		failure.ContractViolation: false,
		failure.ContextTooLong:    false,
		failure.Refusal:           false,
	} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.enqueue(0, 1)
			c := w.claimOne("a")
			w.exec("UPDATE evaluation_outbox SET attempts = 8")
			w.bury(c, reason)
			w.enqueue(0, 1)
			got := w.row(c.Key)
			want := row{Status: "dead", Attempts: 8, LastClass: string(reason.Class()), LastReason: string(reason)}
			if rearmed {
				want.Status, want.Attempts = "pending", 0
			}
			if got != want {
				t.Errorf("row is %+v, want %+v", got, want)
			}
			states, err := outbox.StateOf(t.Context(), w.db, []content.Key{c.Key})
			if err != nil {
				t.Fatal(err)
			}
			if s := states[c.Key]; string(s.State) != want.Status || s.Reason != reason {
				t.Errorf("state is %+v", s)
			}
		})
	}
}

// A follower that enqueues before the finish holds it up until it is committed, so the finish sees its ticket.
func TestFinishWaitsForFollowers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	c := w.claimOne("a")
	job, ticket := w.job(0)
	finished := make(chan struct{})
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := ticketdb.Insert(ctx, tx, []ticketdb.NewTicket{ticket}); err != nil {
			return err
		}
		if err := outbox.Enqueue(ctx, tx, w.demand(), []outbox.Job{job}); err != nil {
			return err
		}
		go func() {
			defer close(finished)
			w.finish(c)
		}()
		w.untilSomeoneWaits()
		return nil
	})
	<-finished
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 0 {
		t.Errorf("%d rows of work remain", n)
	}
}

// A follower that comes while the finish is not yet committed leaves, at the worst, work that the next claim finds
// finished.
func TestFollowerOfAnUncommittedFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 1)
	c := w.claimOne("a")
	job, ticket := w.job(0)
	follower := make(chan error, 1)
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Finish(ctx, tx, []outbox.Lease{c.Lease}); err != nil {
			return err
		}
		go func() {
			follower <- postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := ticketdb.Insert(ctx, tx, []ticketdb.NewTicket{ticket}); err != nil {
					return err
				}
				return outbox.Enqueue(ctx, tx, w.demand(), []outbox.Job{job})
			})
		}()
		_, err := tx.Exec(ctx, `INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department,
			urgency_score, model_version, prompt_version, policy_version, priority, queue, model_call_id)
			VALUES ($1, $2, $3, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', $4)`, string(c.Key), c.ContentHash[:], c.TicketID, c.CallID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-follower; err != nil {
		t.Fatal(err)
	}
	for _, again := range w.claim("b", 10) {
		if !again.Answered {
			t.Error("a finished key would be called again")
		}
	}
}

// Whoever finishes work locks it in the order of the keys. One who follows some, and finds more before it, gives way.
func TestFollowersOutOfOrderGiveWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := w.enqueue(0, 2)
	slices.SortFunc(jobs, func(a, b outbox.Job) int { return strings.Compare(string(a.Key), string(b.Key)) })
	claimed := w.claim("a", 2)
	finished := make(chan error, 1)
	tries := 0
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if tries++; tries > 1 {
			return nil
		}
		if _, err := outbox.Follow(ctx, tx, []content.Key{jobs[1].Key}); err != nil {
			return err
		}
		go func() {
			finished <- postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
				_, err := outbox.Finish(ctx, tx, []outbox.Lease{claimed[0].Lease, claimed[1].Lease})
				return err
			})
		}()
		w.untilSomeoneWaits()
		err := outbox.EnqueueMore(ctx, tx, w.demand(), jobs[:1])
		if !errors.Is(err, postgres.ErrRunAgain) {
			t.Errorf("the follower ends with %v", err)
		}
		return err
	})
	if err := <-finished; err != nil || tries != 2 {
		t.Errorf("the finish ends with %v, the follower after %d tries", err, tries)
	}
	if n := get[int](w, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}
