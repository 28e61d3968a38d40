package outbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest/plan"
	"github.com/evalonce/evalonce/pkg/postgres"
)

// What an evaluation costs is its own: no statement on its way reads the backlog, the leases of others, or what is in
// the ledger and among the results, whatever the statistics say.
func TestPlansOfDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Statistics of empty tables, then what they do not know of.
	w.exec("ANALYZE")
	w.exec("ALTER TABLE evaluation_outbox SET (autovacuum_enabled = off)")
	w.exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), 'c', '', n::text, sha256(n::text::bytea) FROM generate_series(1, 20000) n`)
	digest := w.version.Digest()
	w.exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT evaluation_key(content_hash, $1), content_hash, id, 'v1', $2, 'live' FROM ticket`, digest[:], routeName)
	w.exec(`INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome)
		SELECT uuid_v7(), md5(n::text), 'v1', gen_random_uuid(), 1, now(), 'answered' FROM generate_series(1, 20000) n`)
	w.exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT idempotency_key, sha256('x'), lease_id, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id FROM model_call`)
	const batch, most = 100, 1000 // dead entries of an index count, too
	w.claim("another", batch)
	w.expireLeases("status = 'processing'")
	w.claim("another", batch)
	held := w.claim("a", batch)
	var (
		leases   []outbox.Lease
		unplaced []outbox.Lease // as a worker that only knows their keys has them
		retries  []outbox.Retry
		burials  []outbox.Burial
		closures []ledger.Closure
		results  []ledger.Result
	)
	f := failure.New(failure.Overloaded, "", nil)
	for _, c := range held {
		leases = append(leases, c.Lease)
		unplaced = append(unplaced, outbox.Lease{Key: c.Key, ID: c.ID})
		retries = append(retries, outbox.Retry{Lease: c.Lease, Failure: f})
		burials = append(burials, outbox.Burial{Lease: c.Lease, Failure: failure.New(failure.AttemptsSpent, "", nil)})
		closures = append(closures, ledger.Closure{CallID: c.CallID, Outcome: ledger.Answered})
		results = append(results, w.resultOf(c))
	}

	const claim, key = "evaluation_outbox_due", "evaluation_outbox_pkey"
	for name, test := range map[string]struct {
		index string
		do    func(ctx context.Context, tx pgx.Tx, c *outbox.Claimer) error
	}{
		"Claim": {claim, func(ctx context.Context, _ pgx.Tx, c *outbox.Claimer) error {
			_, err := c.Claim(ctx, batch)
			return err
		}},
		"ClaimWithin": {claim, func(ctx context.Context, tx pgx.Tx, c *outbox.Claimer) error {
			_, err := c.ClaimWithin(ctx, tx, batch, plenty())
			return err
		}},
		"Extend": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Extend(ctx, tx, "a", leases, time.Minute)
			return err
		}},
		"Leased": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Leased(ctx, tx, "a")
			return err
		}},
		"FinishPlaced": {"", func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Finish(ctx, tx, leases)
			return err
		}},
		"Finish": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Finish(ctx, tx, unplaced)
			return err
		}},
		"EndClaims": {"", func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			return outbox.EndClaims(ctx, tx, []uuid.UUID{held[0].ClaimID})
		}},
		"Retry": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.PutBack(ctx, tx, retries)
			return err
		}},
		"LockForBurial": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Bury(ctx, tx, burials)
			return err
		}},
		"Bury": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Bury(ctx, tx, burials)
			return err
		}},
		"Release": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := outbox.Release(ctx, tx, leases)
			return err
		}},
		"Reclaim": {key, func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, _, err := outbox.Reclaim(ctx, tx, batch)
			return err
		}},
		"CloseCalls": {"model_call_*_pkey", func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			return ledger.Close(ctx, tx, closures)
		}},
		"SaveResults": {"", func(ctx context.Context, tx pgx.Tx, _ *outbox.Claimer) error {
			_, err := ledger.Save(ctx, tx, results)
			return err
		}},
	} {
		p := planOf(t, w, name, test.do)
		if test.index != "" {
			p.Uses(test.index)
		}
		p.ReadsAtMost(most)
		p.NoSeqScan("evaluation_outbox")
		p.NoSeqScan("evaluation_result")
		p.NoSeqScan("model_call_*")
		if name == "Claim" {
			p.NoSort()
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func planOf(t *testing.T, w *world, name string, do func(context.Context, pgx.Tx, *outbox.Claimer) error) *plan.Plan {
	t.Helper()
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	return plan.Named(t, tx, name, func(tx pgx.Tx) error {
		return do(t.Context(), tx, outbox.NewClaimer(tx.(postgres.Beginner), routeName, outbox.Live, "a", time.Minute))
	})
}

// Statements are planned once for a connection, which may be when there is nothing to claim, nor anything in the ledger or
// among the results, and known to be so.
func TestPlansOfDrainMadeOnEmptyTables(t *testing.T) {
	t.Parallel()
	// The arguments may be compared with what was looked up, one by one.
	const batch, most, stored = 100, 100*100 + 1000, 20_000
	w := newWorld(t)
	w.exec("VACUUM ANALYZE model_call") // all its months
	s := w.sessionOnEmptyTables("evaluation_outbox", "evaluation_result", "model_call_default")
	tx, exec := s.tx, s.exec

	var claimed []outbox.Claimed
	leases := func(placed bool) (leases []outbox.Lease) {
		for _, c := range claimed {
			l := outbox.Lease{Key: c.Key, ID: c.ID}
			if placed {
				l.Place = c.Place
			}
			leases = append(leases, l)
		}
		return leases
	}
	settling := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"FinishPlaced": func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.Finish(ctx, tx, leases(true))
			return err
		},
		"Finish": func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.Finish(ctx, tx, leases(false))
			return err
		},
		"Release": func(ctx context.Context, tx pgx.Tx) error {
			_, err := outbox.Release(ctx, tx, leases(false))
			return err
		},
		"Reclaim": func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := outbox.Reclaim(ctx, tx, batch)
			return err
		},
		"Retry": func(ctx context.Context, tx pgx.Tx) error {
			var retries []outbox.Retry
			for _, l := range leases(false) {
				retries = append(retries, outbox.Retry{Lease: l, Failure: failure.New(failure.Overloaded, "", nil)})
			}
			_, err := outbox.PutBack(ctx, tx, retries)
			return err
		},
		"CloseCalls": func(ctx context.Context, tx pgx.Tx) error {
			var closures []ledger.Closure
			for _, c := range claimed {
				closures = append(closures, ledger.Closure{CallID: c.CallID, Outcome: ledger.Answered})
			}
			return ledger.Close(ctx, tx, closures)
		},
		"SaveResults": func(ctx context.Context, tx pgx.Tx) error {
			var results []ledger.Result
			for _, c := range claimed {
				results = append(results, w.resultOf(c))
			}
			_, err := ledger.Save(ctx, tx, results)
			return err
		},
	}
	claim := func(tx pgx.Tx) error {
		_, err := outbox.NewClaimer(tx.(postgres.Beginner), routeName, outbox.Live, "a", time.Minute).Claim(t.Context(), batch)
		return err
	}
	limited := func(tx pgx.Tx) error {
		_, err := w.claimer("a", time.Minute).ClaimWithin(t.Context(), tx, batch, plenty())
		return err
	}
	settle := func(do func(ctx context.Context, tx pgx.Tx) error) func(tx pgx.Tx) error {
		return func(tx pgx.Tx) error {
			if err := outbox.PlanKeys(t.Context(), tx); err != nil {
				return err
			}
			return do(t.Context(), tx)
		}
	}
	claimed = []outbox.Claimed{{Lease: outbox.Lease{Place: pgtype.TID{OffsetNumber: 1, Valid: true}}}}
	s.within(func() { plan.Keep(t, tx, "Claim", claim) })
	s.within(func() { plan.Keep(t, tx, "ClaimWithin", limited) })
	for name, do := range settling {
		s.within(func() { plan.Keep(t, tx, name, settle(do)) })
	}
	exec(`INSERT INTO ticket (id, client_id, subject, message, content_hash)
		SELECT uuid_v7(), 'c', '', n::text, sha256(n::text::bytea) FROM generate_series(1, $1::int) n`, stored)
	digest := w.version.Digest()
	exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
		SELECT evaluation_key(content_hash, $1), content_hash, id, 'v1', $2, 'live' FROM ticket`, digest[:], routeName)
	exec(`INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome)
		SELECT uuid_v7(), md5(n::text), 'v1', gen_random_uuid(), 1, now(), 'answered' FROM generate_series(1, $1::int) n`, stored)
	exec(`INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT idempotency_key, sha256('x'), lease_id, 'v1', 0, 'billing', 0, 'm', 'p', 'p', 'p', 'q', id FROM model_call`)
	var err error
	if claimed, err = w.claimer("a", time.Minute).ClaimWithin(t.Context(), tx, batch, plenty()); err != nil || len(claimed) != batch {
		t.Fatalf("claimed %d, %v", len(claimed), err)
	}
	slices.SortFunc(claimed, func(a, b outbox.Claimed) int { return strings.Compare(string(a.Key), string(b.Key)) })
	held, err := outbox.Leased(t.Context(), tx, "a")
	if err != nil || len(held) != batch {
		t.Fatalf("%d leases, %v", len(held), err)
	}
	for i, h := range held {
		claimed[i].Place = h.Place
	}

	check := func(name string, p *plan.Plan) {
		p.ReadsAtMost(most)
		p.NoSeqScan("evaluation_outbox")
		p.NoSeqScan("evaluation_result")
		p.NoSeqScan("model_call_*")
		if t.Failed() {
			t.Fatal(name)
		}
	}
	s.within(func() {
		p := plan.Kept(t, tx, "Claim", claim)
		p.Uses("evaluation_outbox_due")
		p.Uses("ticket_pkey")
		check("Claim", p)
	})
	s.within(func() {
		p := plan.Kept(t, tx, "ClaimWithin", limited)
		p.Uses("evaluation_outbox_due")
		check("ClaimWithin", p)
	})
	for name, do := range settling {
		s.within(func() { check(name, plan.Kept(t, tx, name, settle(do))) })
	}
}
