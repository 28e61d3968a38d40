package outbox_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// settle buries a claim, with what its call came to.
func (w *world) settle(c outbox.Claimed, outcome ledger.Outcome, reason failure.Reason) {
	w.t.Helper()
	f := failure.New(reason, "", nil)
	closure := ledger.Closure{CallID: c.CallID, Outcome: outcome, Failure: f}
	if outcome == ledger.Rejected {
		closure.HTTPStatus, closure.Response = 200, []byte("{}")
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.Bury(ctx, tx, []outbox.Burial{{Lease: c.Lease, Unknown: f.Class == failure.Unknown, Failure: f}}); err != nil {
			return err
		}
		return ledger.Close(ctx, tx, []ledger.Closure{closure})
	})
}

// replay replays the dead letters of a selection in one chunk, and returns what was skipped.
func (w *world) replay(mode string, s outbox.Selection, between ...func()) (replayed int, skipped map[outbox.Skip]int64) {
	w.t.Helper()
	var job jobdb.Job
	s.ID = uuid.New()
	w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		if _, err = outbox.SelectDead(ctx, tx, s); err != nil {
			return err
		}
		job, err = jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Replay, Spec: map[string]string{"mode": mode}, CreatedBy: "ana"})
		return err
	})
	for _, do := range between {
		do()
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		taken, err := outbox.TakeSelected(ctx, tx, s.ID, job.CreatedAt, "", 1000)
		if err != nil {
			return err
		}
		if mode == "recall" {
			if err := ledger.Recall(ctx, tx, job.ID, taken.Dead); err != nil {
				return err
			}
		} else if reopened, err := ledger.Reopen(ctx, tx, taken.Dead); err != nil || len(reopened) != len(taken.Dead) {
			w.t.Fatalf("reopened %d of %d, %v", len(reopened), len(taken.Dead), err)
		}
		replayed, skipped = len(taken.Dead), taken.Skipped
		_, _, err = outbox.Revive(ctx, tx, outbox.Revival{Job: job.ID, Keys: taken.Dead, Recalled: mode == "recall"})
		return err
	})
	return replayed, skipped
}

func (w *world) claimBulk() outbox.Claimed {
	w.t.Helper()
	claimed, err := outbox.NewClaimer(w.db, routeName, outbox.Bulk, "bulk", time.Minute).Claim(w.t.Context(), 10)
	if err != nil || len(claimed) != 1 {
		w.t.Fatalf("claimed %d rows, %v; want 1", len(claimed), err)
	}
	return claimed[0]
}

func TestARecalledResponseIsNotJudgedAgain(t *testing.T) {
	t.Parallel()
	for name, die := range map[string]func(w *world){
		"in time": func(w *world) { w.settle(w.claimOne("a"), ledger.Rejected, failure.Refusal) },
		"late": func(w *world) {
			c := w.claimOne("a")
			w.expire()
			w.settle(c, ledger.Rejected, failure.Refusal)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			key := w.enqueue(0, 1)[0].Key
			die(w)
			if got := w.row(key); got.Status != "dead" {
				t.Fatalf("the row is %+v", got)
			}
			if n, skipped := w.replay("recall", outbox.Selection{}); n != 1 || len(skipped) != 0 {
				t.Fatalf("replayed %d, skipped %v", n, skipped)
			}
			if got := w.row(key); got.Status != "pending" || got.Attempts != 0 || got.UnknownCalls != 0 {
				t.Errorf("the row is %+v", got)
			}
			c := w.claimBulk()
			if c.CallID == uuid.Nil || c.SavedCallID != uuid.Nil || c.Attempts != 1 {
				t.Fatalf("claimed %+v, want a call to be made", c)
			}
			w.finish(c)
			fscktest.Require(t, w.db)
		})
	}
}

// A call of unknown outcome under hold is set aside; the next one is the first of a new life, and as unknown again it is
// the end once more.
func TestARecalledCallOfUnknownOutcomeCountsForNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(v *evaluation.Version) { v.UnknownPolicy = evaluation.Hold })
	key := w.enqueue(0, 1)[0].Key
	first := w.claimOne("a")
	if r := w.expire(); r.Dead != 1 {
		t.Fatalf("reclaimed %+v", r)
	}
	w.replay("recall", outbox.Selection{})
	fscktest.Require(t, w.db)
	unknown, err := ledger.UnknownCalls(t.Context(), w.db, key)
	if err != nil || len(unknown) != 0 {
		t.Errorf("unknown calls %v, %v: a recalled one is history", unknown, err)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		tried, err := ledger.TriedFor(ctx, tx, []content.Key{key})
		if len(tried) != 0 {
			t.Errorf("tried for %v before its first call", tried)
		}
		return err
	})
	w.claimBulk()
	if r := w.expire(); r.Dead != 1 || r.Unknown != 1 {
		t.Errorf("reclaimed %+v, want one dead", r)
	}
	if got := w.row(key); got.UnknownCalls != 1 || got.LastReason != "unknown_outcome" {
		t.Errorf("the row is %+v", got)
	}
	fscktest.Require(t, w.db)

	// A third call is on its way when the first response comes after all: it is the answer, and the third finds it.
	w.replay("recall", outbox.Selection{})
	third := w.claimBulk()
	w.finish(first)
	if got := w.outcome(first.CallID); got != "answered" {
		t.Errorf("the late response left its call %s", got)
	}
	w.finish(third)
	if got := get[uuid.UUID](w, "SELECT model_call_id FROM evaluation_result"); got != first.CallID {
		t.Errorf("the result is of call %s, want the first written", got)
	}
	fscktest.Require(t, w.db)
}

// A verdict on a response that came when its call had been recalled says nothing against the call that an operator has
// asked for since.
func TestALateRefusalOfARecalledCallBuriesNothing(t *testing.T) {
	t.Parallel()
	for name, recalled := range map[string]bool{"recalled": true, "not recalled": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(v *evaluation.Version) { v.MaxUnknownCalls = 0 })
			key := w.enqueue(0, 1)[0].Key
			first := w.claimOne("a")
			w.expire() // dead, as no unknown call is allowed
			want := "pending"
			if recalled {
				w.replay("recall", outbox.Selection{})
			} else {
				w.exec("UPDATE evaluation_outbox SET status = 'pending', dead_at = NULL")
				want = "dead"
			}
			w.settle(first, ledger.Rejected, failure.Refusal)
			if got := w.row(key); got.Status != want {
				t.Errorf("the row is %+v, want it %s", got, want)
			}
			if got := w.outcome(first.CallID); got != "rejected" {
				t.Errorf("the call is %s", got)
			}
			fscktest.Require(t, w.db)
		})
	}
}

func TestAReopenedResponseIsJudgedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.enqueue(0, 1)[0].Key
	first := w.claimOne("a")
	w.settle(first, ledger.Rejected, failure.ContractViolation)
	w.replay("revalidate", outbox.Selection{})
	fscktest.Require(t, w.db)
	c := w.claimBulk()
	if c.SavedCallID != first.CallID || c.CallID != uuid.Nil || c.SavedReason != failure.ContractViolation || string(c.SavedResponse) != "{}" {
		t.Fatalf("claimed %+v, want the saved response", c)
	}
	c.CallID = c.SavedCallID
	w.settle(c, ledger.Rejected, failure.Refusal)
	if got := w.row(key); got.Status != "dead" || got.LastReason != "refusal" {
		t.Errorf("the row is %+v", got)
	}
	fscktest.Require(t, w.db)
}

func TestASelectionIsWhatWasDeadThen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := w.enqueue(0, 6)
	die := func(n int) content.Key {
		w.t.Helper()
		key := jobs[n].Key
		for _, c := range w.claim("a", 10) {
			w.settle(c, ledger.Failed, failure.AttemptsSpent)
		}
		return key
	}
	die(0)
	demand := func(n int) {
		w.tx(func(ctx context.Context, tx pgx.Tx) error { return outbox.Enqueue(ctx, tx, w.demand(), jobs[n:n+1]) })
	}
	discard := func(n int) {
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.DiscardDead(ctx, tx, []content.Key{jobs[n].Key})
			return err
		})
	}
	discard(5)
	replayed, skipped := w.replay("recall", outbox.Selection{}, func() {
		demand(0)
		w.finish(w.claimOne("b")) // answered
		demand(1)
		w.settle(w.claimOne("b"), ledger.Failed, failure.AttemptsSpent) // died again
		demand(2)                                                       // due again
		discard(3)
	})
	want := map[outbox.Skip]int64{outbox.SkipAnswered: 1, outbox.SkipDiedAgain: 1, outbox.SkipNotDead: 1, outbox.SkipDiscarded: 1}
	if replayed != 1 || !maps.Equal(skipped, want) {
		t.Errorf("replayed %d and skipped %v, want 1 and %v", replayed, skipped, want)
	}
	if got := get[int](w, "SELECT count(*) FROM replay_selection"); got != 0 {
		t.Errorf("%d rows of the selection are left", got)
	}
	fscktest.Require(t, w.db)
}

// A discarded dead letter stays dead; new demand of it is as of any other of its class.
func TestDiscardedAndDemandedAgain(t *testing.T) {
	t.Parallel()
	for reason, want := range map[failure.Reason]string{failure.AttemptsSpent: "pending", failure.Refusal: "dead"} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			job := w.enqueue(0, 1)[0]
			w.settle(w.claimOne("a"), ledger.Failed, reason)
			w.tx(func(ctx context.Context, tx pgx.Tx) error {
				for i, want := range []int64{1, 0} {
					if n, err := outbox.DiscardDead(ctx, tx, []content.Key{job.Key}); err != nil || n != want {
						t.Errorf("time %d: discarded %d, %v", i, n, err)
					}
				}
				return nil
			})
			groups, err := outbox.GroupDead(t.Context(), w.db, outbox.DeadFilter{})
			if err != nil || len(groups) != 0 {
				t.Errorf("groups are %v, %v", groups, err)
			}
			groups, err = outbox.GroupDead(t.Context(), w.db, outbox.DeadFilter{Discarded: true})
			if err != nil || len(groups) != 1 || groups[0].Count != 1 || groups[0].Reason != reason {
				t.Errorf("with discarded ones the groups are %v, %v", groups, err)
			}
			fscktest.Require(t, w.db)
			w.tx(func(ctx context.Context, tx pgx.Tx) error {
				return outbox.Enqueue(ctx, tx, w.demand(), []outbox.Job{job})
			})
			if got := w.row(job.Key).Status; got != want {
				t.Errorf("new demand left it %s, want %s", got, want)
			}
			fscktest.Require(t, w.db)
		})
	}
}

func TestRevivedWorkIsSpaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 4)
	for _, c := range w.claim("a", 10) {
		w.settle(c, ledger.Failed, failure.AttemptsSpent)
	}
	keys := make([]content.Key, 0, 4)
	letters, err := outbox.ListDead(t.Context(), w.db, outbox.DeadFilter{}, outbox.DeadPosition{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		keys = append(keys, l.Key)
	}
	var next time.Time
	for range 2 {
		w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
			next, _, err = outbox.Revive(ctx, tx, outbox.Revival{Job: uuid.New(), Keys: keys[:2], NextAt: next, Step: time.Minute})
			keys = keys[2:]
			return err
		})
	}
	if got := get[string](w, `SELECT string_agg(extract(epoch FROM at - before)::int::text, ' ' ORDER BY at)
		FROM (SELECT available_at AS at, lag(available_at) OVER (ORDER BY available_at) AS before FROM evaluation_outbox) x WHERE before IS NOT NULL`); got != "60 60 60" {
		t.Errorf("due %s seconds after each other, want a minute", got)
	}
}
