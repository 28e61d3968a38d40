package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
)

// stored stores tickets of the texts from a to b, exclusive, and makes their jobs without enqueuing them.
func (w *world) stored(a, b int) []outbox.Job {
	w.t.Helper()
	var jobs []outbox.Job
	var tickets []ticketdb.NewTicket
	for n := a; n < b; n++ {
		j, t := w.job(n)
		jobs, tickets = append(jobs, j), append(tickets, t)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := ticketdb.Insert(ctx, tx, tickets)
		return err
	})
	return jobs
}

func (w *world) enqueueBulk(job uuid.UUID, spread outbox.Spread, jobs []outbox.Job) (found map[content.Key]outbox.State) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		found, err = outbox.EnqueueBulk(ctx, tx, w.demand(), job, spread, jobs)
		return err
	})
	return found
}

func (w *world) claimBulkOne(worker string) outbox.Claimed {
	w.t.Helper()
	claimed, err := outbox.NewClaimer(w.db, routeName, outbox.Bulk, worker, time.Minute).Claim(w.t.Context(), 1)
	if err != nil || len(claimed) != 1 {
		w.t.Fatalf("claimed %d rows, want 1: %v", len(claimed), err)
	}
	return claimed[0]
}

func (w *world) now() time.Time { return get[time.Time](w, "SELECT now()") }

func TestBulkWorkIsSpreadByItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := w.stored(0, 200)
	from := w.now().Add(time.Hour)
	if found := w.enqueueBulk(uuid.New(), outbox.Spread{From: from, Length: time.Hour}, jobs); len(found) != 0 {
		t.Errorf("found %v", found)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE lane = 'bulk' AND job_id IS NOT NULL AND available_at BETWEEN $1 AND $2",
		from, from.Add(time.Hour)); n != 200 {
		t.Errorf("%d of 200 are due within the spread", n)
	}
	for quarter := range 4 {
		at := from.Add(time.Duration(quarter) * 15 * time.Minute)
		// 50 are expected: fewer than 20, or more than 90, are none of a fair spread.
		if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE available_at >= $1 AND available_at < $2", at, at.Add(15*time.Minute)); n < 20 || n > 90 {
			t.Errorf("%d of 200 are due in quarter %d", n, quarter)
		}
	}
	before := get[string](w, "SELECT string_agg(idempotency_key, ' ' ORDER BY available_at, idempotency_key) FROM evaluation_outbox")
	slices.SortFunc(jobs, func(a, b outbox.Job) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	var keys string
	for i, j := range jobs {
		if i > 0 {
			keys += " "
		}
		keys += string(j.Key)
	}
	if before != keys {
		t.Error("the work is not due in the order of its keys")
	}
}

func TestBulkWorkWhoseSpreadIsOverIsDueNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueueBulk(uuid.New(), outbox.Spread{From: w.now().Add(-2 * time.Hour), Length: time.Hour}, w.stored(0, 5))
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE available_at BETWEEN now() - interval '1 minute' AND now()"); n != 5 {
		t.Errorf("%d of 5 are due now", n)
	}
}

func TestBulkWorkIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 3) // waits, is answered, is dead
	answered, dead := w.claimOne("a"), w.claimOne("a")
	w.finish(answered)
	w.bury(dead, failure.AttemptsSpent)
	job := uuid.New()
	for range 2 {
		found := w.enqueueBulk(job, outbox.Spread{}, w.stored(0, 4))
		if found[answered.Key] != outbox.Succeeded || found[dead.Key] != outbox.Dead {
			t.Errorf("found %v", found)
		}
		if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 3 {
			t.Errorf("%d rows of work, want 3", n)
		}
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE job_id = $1", job); n != 1 {
		t.Errorf("%d rows are the job's, want 1", n)
	}
}

// Jobs and creations take the same keys in all orders, in batches that cross each other.
func TestBulkWorkDeadlocksWithNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const texts, each = 59, 30
	jobs := w.stored(0, texts)
	done := make(chan error)
	for n := range 6 {
		go func() {
			done <- func() error {
				for i := range each {
					part := slices.Clone(jobs[(7*i+n)%30 : (7*i+n)%30+30])
					if i%2 == 1 {
						slices.Reverse(part)
					}
					tx, err := w.db.Begin(t.Context()) // InTx would hide a deadlock
					if err != nil {
						return err
					}
					if n < 3 {
						_, err = outbox.EnqueueBulk(t.Context(), tx, w.demand(), uuid.New(), outbox.Spread{Length: time.Hour, From: time.Now()}, part)
					} else {
						err = outbox.Enqueue(t.Context(), tx, w.demand(), part)
					}
					if err != nil {
						return errors.Join(err, tx.Rollback(t.Context()))
					}
					if err := tx.Commit(t.Context()); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 6 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != texts {
		t.Errorf("%d rows of work for %d texts", n, texts)
	}
}

func TestALiveTicketTakesBulkWorkOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string // to the row
		due    string // what is true of it afterwards
	}{
		"that waits for its spread":  {"available_at = now() + interval '1 hour'", "available_at <= now() AND status = 'pending'"},
		"that is held back":          {"available_at = 'infinity'", "available_at <= now() AND status = 'pending'"},
		"that is held back, retried": {"available_at = 'infinity', attempts = 2", "available_at <= now() AND attempts = 2"},
		"that pauses after a failure": {
			"available_at = now() + interval '1 hour', attempts = 2", "available_at > now() + interval '30 minutes' AND attempts = 2",
		},
		"that is under way": {
			"status = 'processing', attempts = 1, lease_id = '00000000-0000-0000-0000-000000000001', locked_by = 'a', locked_until = now() + interval '1 hour'",
			"status = 'processing' AND lease_id = '00000000-0000-0000-0000-000000000001' AND attempts = 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.enqueueBulk(uuid.New(), outbox.Spread{}, w.stored(0, 2))
			w.exec("UPDATE evaluation_outbox SET " + c.change)
			w.enqueue(0, 1)
			if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE lane = 'live' AND job_id IS NULL AND "+c.due); n != 1 {
				t.Errorf("%d rows were taken over, want 1", n)
			}
			if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE lane = 'bulk' AND job_id IS NOT NULL"); n != 1 {
				t.Errorf("%d rows are the job's still, want 1", n)
			}
		})
	}
}

func TestFollowLeavesBulkWorkToEnqueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	live := w.enqueue(0, 1)[0]
	bulk := w.stored(1, 2)
	w.enqueueBulk(uuid.New(), outbox.Spread{}, bulk)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		followed, err := outbox.Follow(ctx, tx, []content.Key{live.Key, bulk[0].Key})
		if !followed[live.Key] || followed[bulk[0].Key] {
			t.Errorf("followed %v", followed)
		}
		return err
	})
}

func TestBulkDemandTakesNothingOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobs := w.stored(0, 1)
	w.enqueueBulk(uuid.New(), outbox.Spread{From: w.now(), Length: time.Hour}, jobs)
	demand := w.demand()
	demand.Lane = outbox.Bulk
	w.tx(func(ctx context.Context, tx pgx.Tx) error { return outbox.Enqueue(ctx, tx, demand, jobs) })
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE lane = 'bulk' AND job_id IS NOT NULL"); n != 1 {
		t.Error("a backstop has taken a job's work over")
	}
}

// walk does pages of a job's work to the end.
func (w *world) walk(page func(ctx context.Context, tx pgx.Tx, after content.Key) (outbox.Page, error)) (sum outbox.Page) {
	w.t.Helper()
	var after content.Key
	for {
		var p outbox.Page
		w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
			p, err = page(ctx, tx, after)
			return err
		})
		sum.Changed, sum.Processing, sum.Removed, sum.Kept = sum.Changed+p.Changed, sum.Processing+p.Processing, sum.Removed+p.Removed, sum.Kept+p.Kept
		if after = p.Next; after == "" {
			return sum
		}
	}
}

func TestAJobsWorkIsHeldBackAndSpreadAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	job, other := uuid.New(), uuid.New()
	w.enqueueBulk(job, outbox.Spread{}, w.stored(0, 10))
	running := w.claimBulkOne("a")
	w.enqueueBulk(other, outbox.Spread{}, w.stored(10, 12))
	hold := func(ctx context.Context, tx pgx.Tx, after content.Key) (outbox.Page, error) {
		return outbox.HoldBack(ctx, tx, job, after, 3)
	}
	if sum := w.walk(hold); sum != (outbox.Page{Changed: 9, Processing: 1}) {
		t.Errorf("held back: %+v", sum)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := outbox.PutBack(ctx, tx, []outbox.Retry{{Lease: running.Lease, Failure: failure.New(failure.ServerError, "", nil)}})
		return err
	})
	if sum := w.walk(hold); sum != (outbox.Page{Changed: 1}) {
		t.Errorf("held back what came back: %+v", sum)
	}
	work, err := outbox.WorkOf(t.Context(), w.db, job)
	if err != nil || work.Waiting != 10 || work.Held != 10 || !work.LastDueAt.IsZero() {
		t.Errorf("the job's work is %+v, %v", work, err)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE available_at < 'infinity'"); n != 2 {
		t.Errorf("%d of the other job's 2 are as they were", n)
	}
	from := w.now().Add(time.Hour)
	spread := func(ctx context.Context, tx pgx.Tx, after content.Key) (outbox.Page, error) {
		return outbox.SpreadOut(ctx, tx, job, outbox.Spread{From: from, Length: time.Hour}, after, 3)
	}
	if sum := w.walk(spread); sum != (outbox.Page{Changed: 10}) {
		t.Errorf("spread: %+v", sum)
	}
	work, err = outbox.WorkOf(t.Context(), w.db, job)
	if err != nil || work.Held != 0 || work.LastDueAt.Before(from) || work.LastDueAt.After(from.Add(time.Hour)) {
		t.Errorf("the job's work is %+v, %v", work, err)
	}
}

func TestAJobsWorkIsWithdrawnWhereNobodyElseNeedsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	job := uuid.New()
	jobs := w.stored(0, 8)
	w.enqueueBulk(job, outbox.Spread{}, jobs)
	running := w.claimBulkOne("a")
	var kept content.Key
	for _, j := range jobs {
		if j.Key == running.Key {
			continue
		}
		if kept == "" {
			kept = j.Key // has no answer under another version
			continue
		}
		w.answeredBefore(j)
	}
	withdraw := func(ctx context.Context, tx pgx.Tx, after content.Key) (outbox.Page, error) {
		return outbox.Withdraw(ctx, tx, job, after, 3)
	}
	if sum := w.walk(withdraw); sum != (outbox.Page{Removed: 6, Kept: 1, Processing: 1}) {
		t.Errorf("withdrawn: %+v", sum)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE idempotency_key = $1 AND job_id IS NULL AND available_at <= now()", string(kept)); n != 1 {
		t.Error("the only work of a ticket is gone, or is held back")
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox"); n != 2 {
		t.Errorf("%d rows of work, want 2", n)
	}
}

func TestTwoJobsThatAreAllATicketHasLeaveIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(olderVersion)
	jobs := w.stored(0, 1)
	job, other := uuid.New(), uuid.New()
	w.enqueueBulk(job, outbox.Spread{}, jobs)
	w.exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, job_id)
		SELECT evaluation_key($1, digest), $1, $2, id, route, 'bulk', $3 FROM evaluator_version WHERE id = 'v0'`, jobs[0].ContentHash[:], jobs[0].TicketID, other)
	for _, id := range []uuid.UUID{job, other} {
		w.walk(func(ctx context.Context, tx pgx.Tx, after content.Key) (outbox.Page, error) {
			return outbox.Withdraw(ctx, tx, id, after, 3)
		})
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE job_id IS NULL"); n != 1 {
		t.Errorf("%d rows of work are left of two jobs, want 1", n)
	}
}

func TestAWithdrawalWaitsForATicketThatIsBeingCreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	job := uuid.New()
	jobs := w.stored(0, 1)
	w.answeredBefore(jobs[0])
	w.enqueueBulk(job, outbox.Spread{}, jobs)
	withdrawn := make(chan error, 1)
	var page outbox.Page
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := outbox.Enqueue(ctx, tx, w.demand(), jobs); err != nil {
			return err
		}
		go func() {
			withdrawn <- postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) (err error) {
				page, err = outbox.Withdraw(ctx, tx, job, "", 10)
				return err
			})
		}()
		w.untilSomeoneWaits()
		return nil
	})
	if err := <-withdrawn; err != nil {
		t.Fatal(err)
	}
	if page.Removed != 0 || page.Kept != 0 {
		t.Errorf("withdrawn: %+v", page)
	}
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE lane = 'live'"); n != 1 {
		t.Error("the work that a new ticket waits for is gone")
	}
}

// olderVersion is a version beside the world's.
const olderVersion = `INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
	SELECT 'v0', prompt_version, provider, model, 'old', departments, max_output_tokens, answer_schema, sha256('old'), route, created_by
	FROM evaluator_version WHERE id = 'v1' ON CONFLICT DO NOTHING`

// answeredBefore gives a job's content an answer under another version.
func (w *world) answeredBefore(j outbox.Job) {
	w.t.Helper()
	w.exec(olderVersion)
	w.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
		model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT evaluation_key($1, digest), $1, $2, id, 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', uuid_v7() FROM evaluator_version WHERE id = 'v0'`,
		j.ContentHash[:], j.TicketID)
}
