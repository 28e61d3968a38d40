package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

func TestClaimLeasesAndOpensACall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := w.enqueue(0, 3)
	claimed := w.claim("a", 10)
	if len(claimed) != 3 {
		t.Fatalf("claimed %d rows, want 3", len(claimed))
	}
	for _, c := range claimed {
		if c.Attempts != 1 || c.Answered || c.SavedResponse != nil {
			t.Errorf("claimed %+v", c)
		}
		if got := w.outcome(c.CallID); got != "open" {
			t.Errorf("call is %s, want open", got)
		}
		if want := (row{Status: "processing", Attempts: 1, Owner: "a"}); w.row(c.Key) != want {
			t.Errorf("row is %+v, want %+v", w.row(c.Key), want)
		}
	}
	if claimed[0].Subject != "subject" || !strings.HasPrefix(claimed[0].Message, "message ") {
		t.Errorf("claimed the text %q, %q", claimed[0].Subject, claimed[0].Message)
	}
	if more := w.claim("b", 10); len(more) != 0 {
		t.Errorf("claimed %d leased rows", len(more))
	}
	_ = jobs
}

func TestClaimsAtOnceShareTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 200)
	var mu sync.Mutex
	seen := map[content.Key]int{}
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			c := w.claimer(name, time.Minute)
			for {
				claimed, err := c.Claim(t.Context(), 7)
				if err != nil {
					t.Error(err)
					return
				}
				if len(claimed) == 0 {
					return
				}
				mu.Lock()
				for _, c := range claimed {
					seen[c.Key]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 200 {
		t.Errorf("claimed %d keys, want 200", len(seen))
	}
	for key, n := range seen {
		if n != 1 {
			t.Errorf("key %s was claimed %d times", key, n)
		}
	}
	if calls := get[int](w, "SELECT count(*) FROM model_call"); calls != 200 {
		t.Errorf("%d ledger rows, want 200", calls)
	}
}

func TestClaimFindsWhatIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 2)
	answered, saved := w.claimOne("a"), w.claimOne("a")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := ledger.Close(ctx, tx, []ledger.Closure{
			{CallID: answered.CallID, Outcome: ledger.Answered, Response: []byte("a")},
			{CallID: saved.CallID, Outcome: ledger.Saved, Response: []byte("the response")},
		}); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, []ledger.Result{w.resultOf(answered)})
		return err
	})
	if r := w.expire(); r != (outbox.Reclaimed{Pending: 2}) {
		t.Fatalf("reclaimed %+v, want two rows and no unknown call", r)
	}
	for _, c := range w.claim("b", 2) {
		if c.Attempts != 1 {
			t.Errorf("attempt %d: a row whose answer is here was not refunded", c.Attempts)
		}
		switch c.Key {
		case answered.Key:
			if !c.Answered {
				t.Error("the result was not found")
			}
		case saved.Key:
			if c.Answered || c.SavedCallID != saved.CallID || string(c.SavedResponse) != "the response" {
				t.Errorf("claimed %+v, want the saved response", c)
			}
		}
	}
	if calls := get[int](w, "SELECT count(*) FROM model_call"); calls != 2 {
		t.Errorf("%d ledger rows: a call was opened for a known answer", calls)
	}
}

// A transaction that began early and committed late leaves its row behind the cursor.
func TestClaimerFindsLateCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	job, ticket := w.job(1000)
	if _, err := ticketdb.Insert(t.Context(), late, []ticketdb.NewTicket{ticket}); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Enqueue(t.Context(), late, w.demand(), []outbox.Job{job}); err != nil {
		t.Fatal(err)
	}
	w.enqueue(0, 50)
	c := w.claimer("a", time.Minute)
	for range 5 {
		if _, err := c.Claim(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		claimed, err := c.Claim(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(claimed) == 1 && claimed[0].Key == job.Key {
			return
		}
	}
	t.Fatal("the late row was not found")
}

func TestClaimTakesOnlyWhatIsDueOnItsRouteAndLane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 4)
	w.exec("INSERT INTO provider_route (name) VALUES ('other')")
	w.exec(`WITH n AS (SELECT idempotency_key, row_number() OVER () AS n FROM evaluation_outbox)
		UPDATE evaluation_outbox o SET available_at = available_at + CASE n.n WHEN 1 THEN interval '1 hour' ELSE '0' END,
			route = CASE n.n WHEN 2 THEN 'other' ELSE o.route END, lane = CASE n.n WHEN 3 THEN 'bulk' ELSE o.lane END
		FROM n WHERE n.idempotency_key = o.idempotency_key`)
	if claimed := w.claim("a", 10); len(claimed) != 1 {
		t.Errorf("claimed %d rows, want 1", len(claimed))
	}
	bulk, err := outbox.NewClaimer(w.db, routeName, outbox.Bulk, "a", time.Minute).Claim(t.Context(), 10)
	if err != nil || len(bulk) != 1 {
		t.Errorf("claimed %d bulk rows, %v, want 1", len(bulk), err)
	}
}
