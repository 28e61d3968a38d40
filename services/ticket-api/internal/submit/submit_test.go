package submit_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/services/ticket-api/internal/submit"
)

type world struct {
	t      *testing.T
	db     *pgxpool.Pool
	submit *submit.Submitter
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t)}
	w.promote("v1")
	w.submit = run(t, w.db, time.Hour)
	return w
}

// promote makes a new version the active one.
func (w *world) promote(id string) {
	w.t.Helper()
	v := evaluation.Version{
		ID: id, PromptVersion: "p1", Provider: "openai", Model: "m", Prompt: "Sort it for " + id, AnswerSchema: evaluation.AnswerSchema,
		Departments: []evaluation.Department{{Name: "billing"}}, MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2,
	}.WithDefaults()
	err := postgres.InTx(w.t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, v.ID, "", "test")
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func run(t *testing.T, db *pgxpool.Pool, retention time.Duration) *submit.Submitter {
	s := submit.New(pgtest.PoolAs(t, db, pgtest.TicketAPI), submit.Options{Retention: retention})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the submitter failed: %v", err)
		}
	})
	return s
}

func (w *world) count(what string) int {
	w.t.Helper()
	var n int
	if err := w.db.QueryRow(w.t.Context(), "SELECT count(*) FROM "+what).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func request(key, message string) submit.Request {
	text, err := content.Canonical("s", message)
	if err != nil {
		// Text that the edge would refuse: what the database makes of it is the point.
		text = content.Text{}
	}
	return submit.Request{
		ClientID: "acme", Operation: "Create", RequestID: key, Fingerprint: sha256.Sum256([]byte(message)),
		Subject: "s", Message: message, ContentHash: text.Hash(),
	}
}

func TestSubmitIsOnceForAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const at = 50
	ids := make([]uuid.UUID, at)
	var replayed int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range at {
		wg.Go(func() {
			r, err := w.submit.Submit(t.Context(), request("k", "hello"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[i] = r.Ticket.ID
			if r.Replayed {
				replayed++
			}
			if r.Ticket.Message != "hello" || r.Ticket.CreatedAt.IsZero() || r.Ticket.Evaluation.State != outbox.Pending {
				t.Errorf("receipt %+v", r)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatal("two tickets for one key")
		}
	}
	if replayed != at-1 {
		t.Errorf("%d replays of %d requests", replayed, at)
	}
	if w.count("ticket") != 1 || w.count("client_request") != 1 || w.count("evaluation_outbox") != 1 {
		t.Error("more than one effect")
	}
	if _, err := w.submit.Submit(t.Context(), request("k", "other")); !errors.Is(err, submit.ErrKeyReused) {
		t.Errorf("key reused with another payload: %v", err)
	}
	other := request("k", "other")
	other.ClientID = "globex"
	if r, err := w.submit.Submit(t.Context(), other); err != nil || r.Replayed {
		t.Errorf("another client's key: %+v, %v", r, err)
	}
}

// What the client was told stays what it was told, whatever has become of the ticket.
func TestReplayTellsTheFirstResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, err := w.submit.Submit(t.Context(), request("k", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	w.answer()
	again, err := w.submit.Submit(t.Context(), request("k", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	if !again.Replayed || again.Ticket.ID != first.Ticket.ID || again.Ticket.Evaluation != first.Ticket.Evaluation || !again.Ticket.CreatedAt.Equal(first.Ticket.CreatedAt) {
		t.Errorf("replayed %+v, first %+v", again.Ticket, first.Ticket)
	}
	for _, key := range []string{"k2", "k2", ""} {
		r, err := w.submit.Submit(t.Context(), request(key, "hello"))
		if err != nil {
			t.Fatal(err)
		}
		e := r.Ticket.Evaluation
		if e.State != outbox.Succeeded || e.Answer == nil || e.Answer.Department != "billing" || !e.AnsweredWithoutCall {
			t.Errorf("a known answer is told as %+v", e)
		}
	}
	if w.count("evaluation_outbox") != 0 {
		t.Error("an answered content got new work")
	}
}

// answer settles all work, as a worker would.
func (w *world) answer() {
	w.t.Helper()
	for _, sql := range []string{
		`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT idempotency_key, content_hash, ticket_id, version_id, 0, 'billing', 0, 'm', 'p', 'p', 'low', 'q', uuid_v7() FROM evaluation_outbox`,
		"DELETE FROM evaluation_outbox",
	} {
		if _, err := w.db.Exec(w.t.Context(), sql); err != nil {
			w.t.Fatal(err)
		}
	}
}

// The version that was active last is only a guess.
func TestAPromotedVersionIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n, version := range []string{"v1", "v2", "v3"} {
		if version != "v1" {
			w.promote(version)
		}
		r, err := w.submit.Submit(t.Context(), request("k-"+version, "hello"))
		if err != nil || r.Ticket.Evaluation.VersionID != version {
			t.Errorf("receipt %+v, %v, want version %s", r, err, version)
		}
		if got := w.count("evaluation_outbox WHERE version_id = '" + version + "'"); got != 1 {
			t.Errorf("%d rows of work for %s", got, version)
		}
		if got := w.count("evaluation_outbox"); got != n+1 {
			t.Errorf("%d rows of work, want %d", got, n+1)
		}
	}
}

// A replay leaves dead work alone; a new ticket of the same content re-arms it. In one group, both.
func TestOnlyNewTicketsRearm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.submit.Submit(t.Context(), request("k", "hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(t.Context(), `UPDATE evaluation_outbox SET status = 'dead', dead_at = now(), attempts = 8,
		last_class = 'transient', last_reason = 'attempts_spent'`); err != nil {
		t.Fatal(err)
	}
	if r, err := w.submit.Submit(t.Context(), request("k", "hello")); err != nil || !r.Replayed {
		t.Fatalf("receipt %+v, %v", r, err)
	}
	if w.count("evaluation_outbox WHERE status = 'dead'") != 1 {
		t.Error("a replay has re-armed dead work")
	}
	receipts, err := w.submit.SubmitAll(t.Context(), []submit.Request{request("k", "hello"), request("l", "hello"), request("l2", "hello")})
	if err != nil {
		t.Fatal(err)
	}
	if !receipts[0].Replayed || receipts[1].Replayed || receipts[1].Ticket.Evaluation.State != outbox.Pending {
		t.Errorf("receipts %+v", receipts)
	}
	if w.count("evaluation_outbox WHERE status = 'pending' AND attempts = 0") != 1 {
		t.Error("new tickets have not re-armed dead work")
	}
}

// The work belongs to the first ticket that is really stored, and a replay whose work is gone by now gets none.
func TestReplaysGetNoWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.submit.Submit(t.Context(), request("k", "hello")); err != nil {
		t.Fatal(err)
	}
	// As if its version had been recalled: neither work nor a result.
	if _, err := w.db.Exec(t.Context(), "DELETE FROM evaluation_outbox"); err != nil {
		t.Fatal(err)
	}
	if r, err := w.submit.Submit(t.Context(), request("k", "hello")); err != nil || !r.Replayed {
		t.Fatalf("receipt %+v, %v", r, err)
	}
	if w.count("evaluation_outbox") != 0 {
		t.Error("a replay got work")
	}
	receipts, err := w.submit.SubmitAll(t.Context(), []submit.Request{request("k", "hello"), request("l", "hello")})
	if err != nil || !receipts[0].Replayed {
		t.Fatalf("receipts %+v, %v", receipts, err)
	}
	if w.count("evaluation_outbox WHERE ticket_id = '"+receipts[1].Ticket.ID.String()+"'") != 1 {
		t.Error("the work is not the stored ticket's")
	}
}

func TestExpiredKeysAreFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.submit.Submit(t.Context(), request("k", "hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.db.Exec(t.Context(), "UPDATE client_request SET created_at = created_at - interval '2 hours', expires_at = now() - interval '1 second'"); err != nil {
		t.Fatal(err)
	}
	r, err := w.submit.Submit(t.Context(), request("k", "other"))
	if err != nil || r.Replayed {
		t.Fatalf("receipt %+v, %v", r, err)
	}
	if again, err := w.submit.Submit(t.Context(), request("k", "other")); err != nil || !again.Replayed || again.Ticket.ID != r.Ticket.ID {
		t.Errorf("receipt %+v, %v", again, err)
	}
}

// A request that the database refuses fails alone, though it shares its transaction with others.
func TestOnlyTheGuiltyFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			message := fmt.Sprintf("message %d", i)
			guilty := i%50 == 7
			if guilty {
				message += "\x00"
			}
			_, err := w.submit.Submit(t.Context(), request("", message))
			var refused *pgconn.PgError
			if guilty != errors.As(err, &refused) || !guilty && err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if got := w.count("ticket"); got != 196 {
		t.Errorf("%d tickets, want 196", got)
	}
	if got := w.count("evaluation_outbox"); got != 196 {
		t.Errorf("%d rows of work, want 196", got)
	}
}

func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.submit.SubmitAll(t.Context(), []submit.Request{request("a", "1"), request("b", "2"), request("", "2")}); err != nil {
		t.Fatal(err)
	}
	if w.count("ticket") != 3 || w.count("evaluation_outbox") != 2 {
		t.Error("want three tickets of two contents")
	}
	_, err := w.submit.SubmitAll(t.Context(), []submit.Request{request("c", "3"), request("b", "changed")})
	var batch *submit.BatchError
	if !errors.As(err, &batch) || batch.Index != 1 || !errors.Is(err, submit.ErrKeyReused) {
		t.Errorf("error %v, want key reuse by request 1", err)
	}
	if w.count("ticket") != 3 || w.count("client_request") != 2 {
		t.Error("a refused batch left something behind")
	}
	receipts, err := w.submit.SubmitAll(t.Context(), []submit.Request{request("a", "1"), request("d", "4")})
	if err != nil || !receipts[0].Replayed || receipts[1].Replayed {
		t.Errorf("receipts %+v, %v, want a replay and a new ticket", receipts, err)
	}
}

func TestNothingIsStoredWithoutAVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := run(t, db, time.Hour)
	if _, err := s.Submit(t.Context(), request("k", "hello")); !errors.Is(err, submit.ErrNoActiveVersion) {
		t.Errorf("error %v", err)
	}
	var n int
	if err := db.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM ticket) + (SELECT count(*) FROM client_request)").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows stored, %v", n, err)
	}
}

// Batches and groups over the same few contents and keys, in any order, against a worker that finishes them:
// nobody deadlocks, and every ticket has work or a result.
func TestCrowd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	workers, stop := context.WithCancel(t.Context())
	var finishing sync.WaitGroup
	finishing.Go(func() { w.finishAll(workers) })
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 20 {
				batch := make([]submit.Request, 0, 8)
				used := map[int]bool{}
				for range 8 {
					if n := rng.IntN(40); !used[n] {
						used[n] = true
						batch = append(batch, request(fmt.Sprintf("k%d-%d", n, rng.IntN(3)), fmt.Sprintf("message %d", n)))
					}
				}
				if _, err := w.submit.SubmitAll(t.Context(), batch); err != nil {
					t.Errorf("batch: %v", err)
				}
				n := rng.IntN(40)
				if _, err := w.submit.Submit(t.Context(), request(fmt.Sprintf("s%d", n), fmt.Sprintf("message %d", n))); err != nil {
					t.Errorf("single: %v", err)
				}
			}
		})
	}
	wg.Wait()
	stop()
	finishing.Wait()
	lost := w.count(`ticket t WHERE NOT EXISTS (SELECT FROM ticket_evaluation e WHERE e.ticket_id = t.id)`)
	if lost != 0 {
		t.Errorf("%d tickets have neither work nor a result", lost)
	}
	if got, want := w.count("client_request"), w.count("ticket"); got != want {
		t.Errorf("%d requests for %d tickets", got, want)
	}
	// Workers log what they retry; the server knows of every deadlock.
	var deadlocks int
	if err := w.db.QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks); err != nil || deadlocks != 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}

// finishAll claims and finishes whatever there is, in batches.
func (w *world) finishAll(ctx context.Context) {
	claimer := outbox.NewClaimer(w.db, "main", outbox.Live, "w", time.Minute)
	for ctx.Err() == nil {
		claimed, err := claimer.Claim(context.WithoutCancel(ctx), 10)
		if err != nil {
			w.t.Errorf("claim: %v", err)
			return
		}
		leases := make([]outbox.Lease, len(claimed))
		for i, c := range claimed {
			leases[i] = c.Lease
		}
		err = postgres.InTx(context.WithoutCancel(ctx), w.db, func(ctx context.Context, tx pgx.Tx) error {
			deleted, err := outbox.Finish(ctx, tx, leases)
			if err != nil {
				return err
			}
			for _, c := range claimed {
				if !deleted[c.Key] {
					continue
				}
				_, err := tx.Exec(ctx, `INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department,
					urgency_score, model_version, prompt_version, policy_version, priority, queue, model_call_id)
					VALUES ($1, $2, $3, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', $4) ON CONFLICT DO NOTHING`,
					string(c.Key), c.ContentHash[:], c.TicketID, uuid.New())
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			w.t.Errorf("finish: %v", err)
			return
		}
	}
}
