package reprocess

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// shelf is a database with a version.
type shelf struct {
	t   *testing.T
	db  *pgxpool.Pool
	now time.Time
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{t: t, db: pgtest.New(t)}
	s.exec(`INSERT INTO provider_route (name) VALUES ('main')`)
	s.exec(`INSERT INTO evaluator_version (id, prompt_version, provider, model, prompt, departments, max_output_tokens, answer_schema, digest, route, created_by)
		VALUES ('v1', 'p', 'openai', 'm', 'Sort', '[{"name": "billing"}]', 100, 1, sha256('v1'), 'main', 'test')`)
	if err := s.db.QueryRow(t.Context(), "SELECT now()").Scan(&s.now); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shelf) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// store stores n tickets that were created from a time on, so far from each other, every second one with the content of
// the one before it.
func (s *shelf) store(n int, from time.Time, apart time.Duration) {
	s.t.Helper()
	s.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
		SELECT gen_random_uuid(), 'c', 's', 'm', sha256((extract(epoch FROM $2::timestamptz)::text || '/' || (i / 2))::bytea), $2::timestamptz + i * make_interval(secs => $3)
		FROM generate_series(0, $1 - 1) i`, n, from, apart.Seconds())
}

func (s *shelf) begin(spec Spec) (j jobdb.Job) {
	s.t.Helper()
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Evaluate, Spec: spec, CreatedBy: "ana"})
		return err
	})
	j, ok, err := jobdb.Claim(s.t.Context(), s.db, "test", []jobdb.Kind{jobdb.Evaluate}, time.Hour)
	if err != nil || !ok {
		s.t.Fatal(ok, err)
	}
	return j
}

func (s *shelf) tx(do func(ctx context.Context, tx pgx.Tx) error) {
	s.t.Helper()
	if err := postgres.InTx(s.t.Context(), s.db, do); err != nil {
		s.t.Fatal(err)
	}
}

// step does a chunk, and returns the job and the time that it would wait.
func (s *shelf) step(j jobdb.Job) (next jobdb.Job, wait time.Duration) {
	s.t.Helper()
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		held, err := jobdb.Hold(ctx, tx, j.ID, j.Lease)
		if err != nil {
			return err
		}
		p, err := Step(ctx, tx, held)
		if err != nil {
			return err
		}
		wait, p.Wait = p.Wait, 0 // which would give the lease back
		next, err = jobdb.Step(ctx, tx, held, p, time.Hour)
		return err
	})
	return next, wait
}

// until does chunks until the job comes to a phase.
func (s *shelf) until(j jobdb.Job, want phase) (next jobdb.Job, chunks int) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; chunks++ {
		c, err := cursorOf(j)
		if err != nil {
			s.t.Fatal(err)
		}
		if c.Phase == want {
			return j, chunks
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the job does not come to %q: %s", want, j.Cursor)
		}
		j, _ = s.step(j)
	}
}

func TestEachTicketIsExaminedOnceHoweverTheyWereCreated(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	from := s.now.Add(-100 * 24 * time.Hour)
	s.store(2*chunk+7, from, 0)                                   // at once
	s.store(chunk+3, from.Add(24*time.Hour), time.Microsecond)    // a burst
	s.store(300, from.Add(50*24*time.Hour), 45*time.Minute)       // slowly, after a long time
	s.store(1, s.now.Add(-time.Hour), 0)                          // alone at the end
	s.store(5, from.Add(-time.Microsecond), 2*time.Hour)          // the first of them before the range
	s.store(chunk, s.now.Add(-30*time.Second), time.Microsecond)  // behind the range
	s.store(chunk, from.Add(75*24*time.Hour), 10*time.Nanosecond) // at a few instants
	const tickets, contents = 2*chunk + 7 + chunk + 3 + 300 + 1 + 4 + chunk, (2*chunk+8)/2 + (chunk+4)/2 + 150 + 1 + 3 + chunk/2
	j, chunks := s.until(s.begin(Spec{From: from, To: s.now.Add(-time.Minute), Version: "v1"}), wait)
	if chunks > 60 {
		t.Errorf("it took %d chunks", chunks)
	}
	j, _ = s.until(j, late)
	if j, chunks = s.until(j, drain); chunks > 60 {
		t.Errorf("the late ones took %d chunks", chunks)
	}
	if j.Counts[countSeen] != tickets || j.Counts[countExamined] != tickets {
		t.Errorf("seen %d and examined %d of %d", j.Counts[countSeen], j.Counts[countExamined], tickets)
	}
	if j.Counts[countEnqueued] != contents || j.Counts[countQueued] != tickets-contents {
		t.Errorf("enqueued %d of %d contents, found %d", j.Counts[countEnqueued], contents, j.Counts[countQueued])
	}
}

func TestAnEmptyRangeIsDone(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	j := s.begin(Spec{From: s.now.Add(-10 * 365 * 24 * time.Hour), To: s.now.Add(-time.Minute), Version: "v1"})
	if j, _ = s.until(j, drain); j.Counts[countSeen] != 0 {
		t.Errorf("seen %d tickets", j.Counts[countSeen])
	}
	if j, _ = s.step(j); j.State != jobdb.Done {
		t.Errorf("the job is %s", j.State)
	}
}

// A ticket's creation may have begun, and nothing of it may be seen yet: that takes until the services end such
// transactions.
func TestAJobUpToNowWaitsForWhoMayHaveBegun(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.store(3, s.now.Add(-time.Hour), time.Second)
	j, _ := s.until(s.begin(Spec{From: s.now.Add(-2 * time.Hour), To: s.now, Version: "v1"}), wait)
	j, rest := s.step(j)
	c, err := cursorOf(j)
	if err != nil || c.Phase != wait || rest <= 0 || rest > beginning {
		t.Errorf("it waits for %s in phase %s, %v", rest, c.Phase, err)
	}
}

func TestTheLimitEndsAJobWithinAChunk(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.store(chunk+100, s.now.Add(-2*time.Hour), time.Second)
	j, _ := s.until(s.begin(Spec{From: s.now.Add(-3 * time.Hour), To: s.now.Add(-time.Minute), Version: "v1", Limit: chunk + 11}), drain)
	if j.Counts[countExamined] != chunk+11 || j.Counts[countEnqueued] != (chunk+12)/2 {
		t.Errorf("with a limit of %d: %v", chunk+11, j.Counts)
	}
}
