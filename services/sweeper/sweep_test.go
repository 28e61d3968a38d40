package main

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"

	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/services/sweeper/internal/reconcile"
)

func want(t *testing.T, got, want summary) {
	t.Helper()
	if want.Skipped == nil {
		want.Skipped = []string{}
	}
	if want.Failed == nil {
		want.Failed = []string{}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("swept %+v\nwant  %+v", got, want)
	}
}

func TestSweepsEverythingOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	w.lose("lost", "v1", 3)
	w.lose("held", "hold", 2)
	w.submit("answered", "v1", 1, 0)
	w.answer(w.claim("v1", 1, time.Hour)...)
	w.request("remembered", 4, time.Hour)
	w.request("forgotten", 5, time.Microsecond)
	w.operatorsRequest("remembered", time.Hour)
	w.operatorsRequest("forgotten", time.Microsecond)
	w.tickets("alone", 6, time.Hour)
	w.dropNextMonth()
	want(t, w.sweep(), summary{
		ReclaimedPending: 3, ReclaimedDead: 2, UnknownCalls: 5, PrunedRequests: 6, PartitionsMade: 1, Reconciled: 6,
	})
	fscktest.Require(t, w.db)
	want(t, w.sweep(), summary{})
	if kept := get[int](w, "SELECT count(*) FROM client_request"); kept != 4 {
		t.Errorf("%d requests are left, want 4", kept)
	}
	if kept := get[string](w, "SELECT string_agg(key, ' ') FROM admin_request"); kept != "remembered" {
		t.Errorf("of the operators' requests %s is left", kept)
	}
}

// A worker of a release that lists no claims has died: nobody but the sweeper finds its leases.
func TestReclaimsWhatNoClaimLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lose("lost", "v1", 3)
	w.exec("DELETE FROM evaluation_claim")
	want(t, w.sweep(), summary{ReclaimedPending: 3, UnknownCalls: 3})
	if n := get[int](w, "SELECT count(*) FROM evaluation_claim"); n != 0 {
		t.Errorf("%d claims are still listed", n)
	}
	fscktest.Require(t, w.db)
}

func TestReclaimsInBatchesAndAsTheVersionAllows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lose("lost", "v1", 1200)
	alive := w.submit("alive", "v1", 1, 0)
	w.claim("v1", 1, time.Hour)
	want(t, w.sweep(), summary{ReclaimedPending: 1200, UnknownCalls: 1200})
	if held := get[string](w, "SELECT idempotency_key FROM evaluation_outbox WHERE status = 'processing'"); held != string(w.key(alive[0], "v1")) {
		t.Errorf("%s is processing, want the lease that holds", held)
	}
	for range 2 { // v1 allows two unknown calls; the third is one too many
		w.claim("v1", 1200, lapsed)
		w.sweep()
	}
	if dead := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE status = 'dead' AND last_reason = 'unknown_outcome' AND unknown_calls = 3"); dead != 1200 {
		t.Errorf("%d evaluations are dead, want 1200", dead)
	}
	fscktest.Require(t, w.db)
}

// One unknown call too many, but the answer came late: the next claim finds it, and nothing is buried.
func TestReclaimBuriesNoAnsweredKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := w.lose("late", "v1", 1)[0]
	w.sweep()
	w.claim("v1", 1, lapsed)
	w.sweep()
	w.claim("v1", 1, lapsed)
	w.answer(late)
	want(t, w.sweep(), summary{ReclaimedPending: 1, UnknownCalls: 1})
	if found := w.claim("v1", 1, time.Hour); !found[0].Answered {
		t.Errorf("claimed %+v, want an answered key", found[0])
	}
	fscktest.Require(t, w.db)
}

func TestReconcileLeavesAloneWhatAnyVersionHasOrHad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit("answered", "hold", 1, 0)
	w.answer(w.claim("hold", 1, time.Hour)...)
	w.submit("dead", "hold", 1, 0)
	w.bury(w.claim("hold", 1, time.Hour)...)
	w.submit("processing", "hold", 1, 0)
	w.claim("hold", 1, time.Hour)
	w.submit("pending", "hold", 1, 0)
	w.promote("v1")
	for _, name := range []string{"answered", "dead", "processing", "pending"} {
		w.tickets(name, 1, 0) // another ticket of the same text
	}
	want(t, w.sweep(), summary{})
	if n := get[int](w, "SELECT count(*) FROM evaluation_outbox WHERE version_id = 'v1'"); n != 0 {
		t.Errorf("%d evaluations that nobody asked for", n)
	}
	fscktest.Require(t, w.db)
}

func TestReconcileMakesOneEvaluationOfEachContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	oldest := w.tickets("alone", 3, 2*time.Hour)
	w.tickets("alone", 3, time.Hour)
	w.tickets("alone", 3, 0)
	want(t, w.sweep(), summary{Reconciled: 9})
	rows, err := w.db.Query(t.Context(), `SELECT idempotency_key, ticket_id::text, version_id, route, lane, status, trace_context
		FROM evaluation_outbox ORDER BY trace_context`)
	if err != nil {
		t.Fatal(err)
	}
	type work struct{ Key, Ticket, Version, Route, Lane, Status, Trace string }
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[work])
	if err != nil {
		t.Fatal(err)
	}
	var wanted []work
	for _, o := range oldest {
		wanted = append(wanted, work{string(w.key(o, "v1")), o.ID.String(), "v1", "route-v1", "bulk", "pending", o.TraceContext})
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("made  %v\nwant %v", got, wanted)
	}
	fscktest.Require(t, w.db)
}

func TestReconcileLooksBackAsFarAsItIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	w.tickets("young", 2, 0)
	w.tickets("old", 3, 47*time.Hour)
	w.tickets("ancient", 4, 5000*time.Hour)
	want(t, w.sweep(func(c *Config) { c.ReconcileWindow = time.Hour }), summary{Reconciled: 2})
	want(t, w.sweep(), summary{Reconciled: 3})
	want(t, w.sweep(func(c *Config) { c.ReconcileAll = true }), summary{Reconciled: 4})
	fscktest.Require(t, w.db)
}

// More than one page, with gaps of tickets that lack nothing.
func TestReconcileWalksOverAllPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		age := time.Duration(i) * time.Hour
		if i%2 == 0 {
			w.tickets(name, 1700, age)
		} else {
			w.submit(name, "v1", 1700, age)
		}
	}
	n, err := reconcile.Run(t.Context(), w.service, 48*time.Hour)
	if err != nil || n != 3*1700 {
		t.Errorf("reconciled %d, %v; want %d", n, err, 3*1700)
	}
	fscktest.Require(t, w.db)
}

// Another sweeper was here first, and another version was promoted meanwhile: the ticket has work, and one is enough.
func TestReconcileLooksAgainBeforeItActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	alone := w.tickets("alone", 1, 0)[0]
	other, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtext('evalonce/sweeper/reconcile'))"); err != nil {
		t.Fatal(err)
	}
	done := make(chan summary, 1)
	go func() { done <- w.sweep() }()
	const waiting = `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted`
	for deadline := time.After(time.Minute); get[int](w, waiting) == 0; {
		select {
		case s := <-done:
			t.Fatalf("did not wait: %+v", s)
		case <-deadline:
			t.Fatal("neither waits nor ends")
		default:
		}
	}
	if err := outbox.Enqueue(t.Context(), other, outbox.Demand{VersionID: "hold", Route: "route-hold", Lane: outbox.Bulk},
		[]outbox.Job{{Key: w.key(alone, "hold"), ContentHash: alone.ContentHash, TicketID: alone.ID}}); err != nil {
		t.Fatal(err)
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, <-done, summary{})
	if versions := get[string](w, "SELECT string_agg(version_id, ' ') FROM evaluation_outbox"); versions != "hold" {
		t.Errorf("work under %s, want hold alone", versions)
	}
}

func TestWithoutAnActiveVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lose("lost", "v1", 1)
	want(t, w.sweep(), summary{ReclaimedPending: 1, UnknownCalls: 1}) // nothing to reconcile, nothing to miss
	w.tickets("alone", 1, 0)
	s := w.sweep()
	want(t, s, summary{Skipped: []string{"reconcile: no version is active"}})
	if s.err() != nil {
		t.Errorf("%v, though it is no failure", s.err())
	}
}

// Claims read all partitions, so they queue behind a new one that waits for a reader.
func TestPartitionsGiveWayToReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dropNextMonth()
	reader, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := reader.Exec(t.Context(), "SELECT count(*) FROM model_call"); err != nil {
		t.Fatal(err)
	}
	s := w.sweep()
	want(t, s, summary{Skipped: []string{"partitions: a long transaction reads the ledger"}})
	if s.err() != nil {
		t.Errorf("%v, though it is no failure", s.err())
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, w.sweep(), summary{PartitionsMade: 1})
}

func TestStepsDoNotStopEachOther(t *testing.T) {
	t.Parallel()
	steps := []string{"reclaim", "prune", "partitions", "reconcile", "retention", "fsck", "record"}
	broken := map[string][]string{
		"ALTER TABLE evaluation_outbox RENAME locked_until TO gone":  {"reclaim", "fsck"},
		"ALTER TABLE client_request RENAME TO gone":                  {"prune", "fsck"},
		"ALTER FUNCTION ensure_model_call_partitions RENAME TO gone": {"partitions"},
		"ALTER TABLE ticket RENAME trace_context TO gone":            {"reconcile"},
		"ALTER TABLE version_promotion RENAME TO gone":               {"fsck"},
		"DROP VIEW ticket_evaluation; DROP TABLE evaluation_result":  {"reclaim", "reconcile", "fsck"},
		"DROP SCHEMA public CASCADE":                                 steps,
	}
	for sql, failed := range broken {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.promote("v1")
			w.lose("lost", "v1", 1)
			w.request("forgotten", 1, time.Microsecond)
			w.tickets("alone", 1, 0)
			w.dropNextMonth()
			w.exec(sql)
			s := w.sweep(func(c *Config) { c.Fsck = true })
			if !slices.Equal(s.Failed, failed) || len(s.Skipped) != 0 {
				t.Errorf("failed %v, skipped %v; want %v failed", s.Failed, s.Skipped, failed)
			}
			if s.err() == nil {
				t.Error("no error")
			}
			for step, n := range map[string]int{"reclaim": s.ReclaimedPending, "prune": s.PrunedRequests, "partitions": s.PartitionsMade, "reconcile": s.Reconciled} {
				if did := n == 1; did == slices.Contains(failed, step) {
					t.Errorf("%s did %d, and failed %v", step, n, failed)
				}
			}
		})
	}
}

func TestFsck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote("v1")
	zero, three := 0, 3
	withFsck := func(c *Config) { c.Fsck = true }
	want(t, w.sweep(withFsck), summary{Violations: &zero})

	// Notes are no failure; violations are one for each thing found.
	w.submit("late", "v1", 1, 0)
	late := w.claim("v1", 1, lapsed)
	w.sweep()
	w.claim("v1", 1, time.Hour)
	w.answer(late...)
	s := w.sweep(withFsck)
	want(t, s, summary{Violations: &zero})
	if s.err() != nil {
		t.Errorf("%v, of a note", s.err())
	}
	w.tickets("too old to be mended", 3, 100*time.Hour)
	s = w.sweep(withFsck)
	want(t, s, summary{Violations: &three})
	if s.err() == nil {
		t.Error("no error, of three violations")
	}
	want(t, w.sweep(), summary{})
}

func TestStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lose("lost", "v1", 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("told to stop"))
	s := sweep(ctx, w.service, config48h(), otel.Tracer(serviceName))
	s.DurationMS = 0
	want(t, s, summary{Skipped: []string{
		"reclaim: told to stop", "prune: told to stop", "partitions: told to stop", "reconcile: told to stop", "retention: told to stop",
		"record: told to stop",
	}})
	if s.err() != nil {
		t.Errorf("%v, though it is no failure", s.err())
	}
}

// Work that a settlement holds is passed over, not waited for.
func TestReclaimWaitsForNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost := w.lose("lost", "v1", 3)
	err := postgres.InTx(t.Context(), w.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM evaluation_outbox WHERE idempotency_key = $1 FOR UPDATE", string(lost[0].Key)); err != nil {
			return err
		}
		want(t, w.sweep(), summary{ReclaimedPending: 2, UnknownCalls: 2})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, w.sweep(), summary{ReclaimedPending: 1, UnknownCalls: 1})
	if open := get[int](w, "SELECT count(*) FROM model_call WHERE outcome <> $1", string(ledger.Unknown)); open != 0 {
		t.Errorf("%d calls are not closed as unknown", open)
	}
}
