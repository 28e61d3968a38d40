package erasure_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/pkg/erasure"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// search returns the columns of all tables in which the sentinel is, as text, as bytes, or in base64.
func (w *world) search() []string {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `
		SELECT c.relname, a.attname
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped`)
	if err != nil {
		w.t.Fatal(err)
	}
	type column struct{ Table, Name string }
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
	if err != nil {
		w.t.Fatal(err)
	}
	var found []string
	for _, c := range columns {
		sql := fmt.Sprintf(`SELECT EXISTS (SELECT FROM %s WHERE %s::text ~* $1)`, pgx.Identifier{c.Table}.Sanitize(), pgx.Identifier{c.Name}.Sanitize())
		if get[bool](w, sql, fmt.Sprintf("%s|%x|%s", sentinel, sentinel, base64.StdEncoding.EncodeToString([]byte(sentinel))[:20])) {
			found = append(found, c.Table+"."+c.Name)
		}
	}
	slices.Sort(found)
	return found
}

func (w *world) listen() {
	w.t.Helper()
	keys := &webhook.Keyring{}
	if err := keys.UnmarshalText([]byte("k=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err != nil {
		w.t.Fatal(err)
	}
	if _, err := webhook.NewEndpoints(w.db, keys).Create(w.t.Context(), webhook.NewEndpoint{ClientID: "acme", URL: "https://acme.example", Events: webhook.Events()}); err != nil {
		w.t.Fatal(err)
	}
}

func TestNoTextIsLeftAndAllElseIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.listen()
	answered := w.submit("answered")
	w.answer(w.claim(time.Hour))
	refused := w.submit("refused")
	w.bury(w.claim(time.Hour), ledger.Rejected, failure.Refusal)
	spent := w.submit("spent")
	w.bury(w.claim(time.Hour), ledger.Failed, failure.AttemptsSpent)
	tried := w.submit("tried")
	w.putBack(w.claim(time.Hour))
	if found, want := w.search(), []string{
		"evaluation_outbox.last_error", "model_call.error", "model_call.response", "ticket.message", "ticket.subject",
	}; !slices.Equal(found, want) {
		t.Fatalf("texts are in %v, want them in %v: the search, or the list of what is erased, is out of date", found, want)
	}
	const kept = `SELECT jsonb_build_object(
		'keys', (SELECT jsonb_agg(jsonb_build_array(id, client_id, external_id, content_hash) ORDER BY id) FROM ticket),
		'requests', (SELECT jsonb_agg(to_jsonb(r) ORDER BY key) FROM client_request r),
		'results', (SELECT jsonb_agg(to_jsonb(r)) FROM evaluation_result r),
		'calls', (SELECT jsonb_agg(to_jsonb(m) - 'response' - 'error' ORDER BY id) FROM model_call m),
		'dead', (SELECT jsonb_agg(jsonb_build_array(idempotency_key, last_class, last_reason, dead_at) ORDER BY idempotency_key)
		         FROM evaluation_outbox WHERE ticket_id = ANY ($1)))::text`
	dead := []uuid.UUID{refused, spent}
	before := get[string](w, kept, dead)

	done := w.erase(answered, refused, spent, tried)
	if done.Buried != 1 || done.Responses != 4 {
		t.Errorf("%+v, want 1 evaluation buried and 4 calls without what the provider said", done)
	}
	if found := w.search(); len(found) > 0 {
		t.Errorf("texts are left in %v", found)
	}
	if after := get[string](w, kept, dead); after != before {
		t.Errorf("kept is\n%s\nand was\n%s", after, before)
	}
	if got := get[string](w, `SELECT last_class || ' ' || last_reason FROM evaluation_outbox WHERE ticket_id = $1 AND status = 'dead'`, tried); got != "permanent erased" {
		t.Errorf("what waited is dead for %s", got)
	}
	if n := get[int](w, `SELECT count(*) FROM webhook_delivery WHERE ticket_id = $1 AND event = 'evaluation.dead_letter'`, tried); n != 1 {
		t.Errorf("the client is told %d times that it will not be answered", n)
	}
	if again, err := w.tryErase(answered, tried, uuid.New()); err != nil || len(again.Erased)+len(again.Waiting) > 0 {
		t.Errorf("erased once more: %+v, %v", again, err)
	}
	fscktest.Require(t, w.db)
}

func TestOthersKeepWhatIsTheirs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.submit("shared"), w.submit("shared")
	w.putBack(w.claim(time.Hour))
	if done := w.erase(first); done.Buried+done.Responses > 0 {
		t.Errorf("%+v, though another ticket has the same text", done)
	}
	c := w.claim(time.Hour)
	if c.TicketID != second || c.Message != textOf(t, "shared").Message {
		t.Errorf("the work is of ticket %s with text %q, want the other's", c.TicketID, c.Message)
	}
	third := w.submit("shared")
	w.erase(second) // while its text is with the model, as the third's is
	w.answer(c)
	if n := get[int](w, `SELECT count(*) FROM model_call WHERE response IS NOT NULL`); n != 1 {
		t.Errorf("%d responses, want the third ticket's to stay", n)
	}
	fscktest.Require(t, w.db)
	w.erase(third)
	if found := w.search(); len(found) > 0 {
		t.Errorf("texts are left in %v", found)
	}
	fscktest.Require(t, w.db)
}

func TestWhatIsUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	for why, prepare := range map[erasure.Wait]func(*world){
		erasure.WithTheModel: func(w *world) { w.claim(time.Hour) },
		erasure.Unjudged: func(w *world) {
			c := w.claim(time.Hour)
			w.tx(func(ctx context.Context, tx pgx.Tx) error {
				if _, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: c.Lease, Delay: time.Hour, Failure: failure.New(failure.ResultUnsaved, "", nil)}}); err != nil {
					return err
				}
				return ledger.Close(ctx, tx, []ledger.Closure{{CallID: c.CallID, Outcome: ledger.Saved, HTTPStatus: 200, Response: []byte(sentinel)}})
			})
		},
	} {
		t.Run(string(why), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := w.submit("busy")
			prepare(w)
			other := w.submit("idle")
			before := w.search()
			done, err := w.tryErase(id, other)
			if err != nil || !slices.Equal(done.Erased, []uuid.UUID{other}) || len(done.Waiting) != 1 || done.Waiting[id] != why {
				t.Errorf("%+v, %v", done, err)
			}
			if after := w.search(); !slices.Equal(after, before) {
				t.Errorf("texts are in %v and were in %v", after, before)
			}
			if !get[bool](w, `SELECT erased_at IS NULL AND message <> '' FROM ticket WHERE id = $1`, id) {
				t.Error("it is erased")
			}
			fscktest.Require(t, w.db)
		})
	}
}

// A new ticket with the same text needs what the erased one needed no more, and brings its own text.
func TestTheSameTextOnceMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end func(*world, outbox.Claimed)
		due bool
	}{
		"waiting": {func(w *world, c outbox.Claimed) { w.putBack(c) }, true},
		"spent":   {func(w *world, c outbox.Claimed) { w.bury(c, ledger.Failed, failure.AttemptsSpent) }, true},
		"refused": {func(w *world, c outbox.Claimed) { w.bury(c, ledger.Rejected, failure.Refusal) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			old := w.submit("once more")
			c.end(w, w.claim(time.Hour))
			w.erase(old)
			fresh := w.submit("once more")
			fscktest.Require(t, w.db)
			if !c.due {
				if state := get[string](w, `SELECT status FROM evaluation_outbox`); state != "dead" {
					t.Errorf("what was refused is %s", state)
				}
				return
			}
			claimed := w.claim(time.Hour)
			if claimed.TicketID != fresh || claimed.Message != textOf(t, "once more").Message {
				t.Errorf("claimed for ticket %s with %q", claimed.TicketID, claimed.Message)
			}
			w.answer(claimed)
			fscktest.Require(t, w.db)
		})
	}
}

func TestReplaysSkipWhatHasNoText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.submit("refused")
	w.bury(w.claim(time.Hour), ledger.Failed, failure.ContentFilter)
	w.erase(id)
	replay := func() (taken outbox.Taken, fresh uuid.UUID) {
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			selection := uuid.New()
			if _, err := outbox.SelectDead(ctx, tx, outbox.Selection{ID: selection}); err != nil {
				return err
			}
			job, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Replay, Spec: map[string]string{"mode": "recall"}, CreatedBy: "ana"})
			if err != nil {
				return err
			}
			if taken, err = outbox.TakeSelected(ctx, tx, selection, job.CreatedAt, "", 10); err != nil || len(taken.Dead) == 0 {
				return err
			}
			if err := ledger.Recall(ctx, tx, job.ID, taken.Dead); err != nil {
				return err
			}
			if _, _, err := outbox.Revive(ctx, tx, outbox.Revival{Job: job.ID, Keys: taken.Dead, Recalled: true}); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `SELECT ticket_id FROM evaluation_outbox WHERE status = 'pending'`).Scan(&fresh)
		})
		return taken, fresh
	}
	if taken, _ := replay(); len(taken.Dead) != 0 || taken.Skipped[outbox.SkipErased] != 1 {
		t.Errorf("%+v, want it skipped", taken)
	}
	fresh := w.submit("refused")
	if taken, of := replay(); len(taken.Dead) != 1 || of != fresh {
		t.Errorf("%+v of ticket %s, want the new ticket's", taken, of)
	}
	fscktest.Require(t, w.db)
}

func TestAResponseThatComesLateIsSweptAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.submit("late")
	late := w.claim(-time.Second)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, _, err := outbox.Reclaim(ctx, tx, 10)
		return err
	})
	w.erase(id)
	w.answer(late)
	if found := w.search(); !slices.Equal(found, []string{"model_call.response"}) {
		t.Fatalf("texts are in %v", found)
	}
	sweeper := pgtest.PoolAs(t, w.db, pgtest.Sweeper)
	if n, err := erasure.Sweep(t.Context(), sweeper); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if found := w.search(); len(found) > 0 {
		t.Errorf("texts are in %v", found)
	}
	if n := get[int](w, `SELECT count(*) FROM evaluation_result`); n != 1 {
		t.Errorf("%d results: it was paid for", n)
	}
	fscktest.Require(t, w.db)
}

// Whoever gives an old ticket work, and whoever erases it: the second sees what the first has done.
func TestWorkOfOthersAndErasure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.submit("old")
	w.exec(`DELETE FROM evaluation_outbox`)
	enqueuer, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = enqueuer.Rollback(context.WithoutCancel(t.Context())) }()
	if held, err := ticketdb.HoldTexts(t.Context(), enqueuer, []uuid.UUID{id}); err != nil || !held[id] {
		t.Fatal(held, err)
	}
	erased := make(chan error, 1)
	go func() {
		_, err := w.tryErase(id)
		erased <- err
	}()
	w.awaitBlocked()
	hash := textOf(t, "old").Hash()
	if _, err := outbox.EnqueueBulk(t.Context(), enqueuer, outbox.Demand{VersionID: "v1", Route: "main", Lane: outbox.Bulk}, uuid.New(), outbox.Spread{From: time.Now()},
		[]outbox.Job{{Key: w.key("old"), ContentHash: hash, TicketID: id}}); err != nil {
		t.Fatal(err)
	}
	if err := enqueuer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var busy *erasure.BusyError
	if err := <-erased; !errors.As(err, &busy) || busy.Why != erasure.NewWork {
		t.Errorf("%v, want it to be told of the new work", err)
	}
	if done := w.erase(id); done.Buried != 1 {
		t.Errorf("%+v, want the new work buried", done)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if held, err := ticketdb.HoldTexts(ctx, tx, []uuid.UUID{id}); err != nil || held[id] {
			t.Errorf("held %v, %v, though its text is erased", held, err)
		}
		return nil
	})
	fscktest.Require(t, w.db)
}

// awaitBlocked waits until a session of the database waits for a lock.
func (w *world) awaitBlocked() {
	w.t.Helper()
	for !get[bool](w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`) {
		if w.t.Context().Err() != nil {
			w.t.Fatal("nobody waits")
		}
	}
}

// Clients create, workers claim and answer, operators erase, all of them the same few texts.
func TestCrowd(t *testing.T) {
	t.Parallel()
	const texts, rounds = 3, 40
	w := newWorld(t)
	created := make(chan uuid.UUID, texts*rounds)
	clients, ctx := errgroup.WithContext(t.Context())
	for text := range texts {
		clients.Go(func() error {
			for range rounds {
				id, err := w.store(ctx, fmt.Sprint("text ", text))
				if err != nil {
					return err
				}
				created <- id
			}
			return nil
		})
	}
	stop := make(chan struct{})
	var others errgroup.Group
	for range 2 {
		others.Go(func() error {
			claimer := outbox.NewClaimer(w.db, "main", outbox.Live, uuid.NewString(), time.Hour)
			for {
				claimed, err := claimer.Claim(t.Context(), 2)
				if err != nil {
					return err
				}
				for _, c := range claimed {
					if c.CallID != uuid.Nil && c.Message == "" {
						return fmt.Errorf("a call for ticket %s has no text", c.TicketID)
					}
					if err := w.settleAnswer(t.Context(), c); err != nil {
						return err
					}
				}
				select {
				case <-stop:
					if len(claimed) == 0 {
						return nil
					}
				default:
				}
			}
		})
	}
	var erasers errgroup.Group
	for range 2 {
		erasers.Go(func() error {
			for id := range created {
				for {
					done, err := w.tryErase(id)
					var busy *erasure.BusyError
					if err != nil && !errors.As(err, &busy) {
						return err
					}
					if len(done.Erased) == 1 {
						break
					}
				}
			}
			return nil
		})
	}
	// The answers are forgotten now and then, so that there is always work.
	others.Go(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `WITH gone AS (DELETE FROM evaluation_result RETURNING idempotency_key)
					DELETE FROM model_call WHERE idempotency_key IN (SELECT idempotency_key FROM gone)`)
				return err
			})
			if err != nil {
				return err
			}
		}
	})
	err := clients.Wait()
	close(created)
	err = errors.Join(err, erasers.Wait())
	close(stop)
	if err := errors.Join(err, others.Wait()); err != nil {
		t.Fatal(err)
	}
	if n := get[int](w, `SELECT count(*) FROM ticket WHERE erased_at IS NOT NULL AND message = ''`); n != texts*rounds {
		t.Errorf("%d tickets are erased", n)
	}
	if _, err := erasure.Sweep(t.Context(), w.db); err != nil {
		t.Fatal(err)
	}
	if found := w.search(); len(found) > 0 {
		t.Errorf("texts are left in %v", found)
	}
	if n := get[int](w, `SELECT count(*) FROM evaluation_outbox WHERE status <> 'dead'`); n != 0 {
		t.Errorf("%d evaluations are left to do", n)
	}
}
