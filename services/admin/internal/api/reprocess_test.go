package api_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	"github.com/evalonce/evalonce/services/admin/internal/api"
	"github.com/evalonce/evalonce/services/admin/internal/job"
)

// archive is a database with tickets that were created an hour ago, one a second.
type archive struct {
	*adminAPI
	began time.Time
}

// newArchive is empty; its active version is v1, and v2 is another one.
func newArchive(t *testing.T) *archive {
	t.Helper()
	a := &archive{adminAPI: start(t)}
	a.mustRegister("v1")
	a.mustRegister("v2")
	a.mustPromote("v1")
	if err := a.db.QueryRow(t.Context(), "SELECT date_trunc('second', now() - interval '1 hour')").Scan(&a.began); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *archive) reprocess() adminv1.ReprocessServiceClient {
	return adminv1.NewReprocessServiceClient(a.conn)
}

// runJobs runs a replica of what works on jobs.
func (a *archive) runJobs(name string) {
	a.t.Helper()
	r := job.New(job.Options{
		DB: pgtest.PoolAs(a.t, a.db, pgtest.Admin), Steps: api.Steps(), Worker: name,
		Poll: 10 * time.Millisecond, Lease: time.Minute, Retry: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(a.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	a.t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			a.t.Errorf("a replica ended with %v", err)
		}
	})
}

// work is that of the n-th text under a version, and its ticket.
func (a *archive) work(version versiondb.Stored, client string, n int) (outbox.Job, ticketdb.NewTicket, error) {
	text, err := content.Canonical("subject", fmt.Sprintf("message %d", n))
	if err != nil {
		return outbox.Job{}, ticketdb.NewTicket{}, err
	}
	id, err := uuid.NewV7()
	return outbox.Job{Key: content.KeyOf(text.Hash(), version.Digest), ContentHash: text.Hash(), TicketID: id},
		ticketdb.NewTicket{ID: id, ClientID: client, Subject: text.Subject, Message: text.Message, ContentHash: text.Hash()}, err
}

// create stores tickets of the texts from a to b, exclusive, as ticket-api does.
func (a *archive) create(ctx context.Context, version, client string, from, to int) (ids []uuid.UUID, err error) {
	stored, err := versiondb.Get(ctx, a.db, version)
	if err != nil {
		return nil, err
	}
	var jobs []outbox.Job
	var tickets []ticketdb.NewTicket
	for n := from; n < to; n++ {
		j, ticket, err := a.work(stored, client, n)
		if err != nil {
			return nil, err
		}
		jobs, tickets, ids = append(jobs, j), append(tickets, ticket), append(ids, ticket.ID)
	}
	return ids, postgres.InTx(ctx, a.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := ticketdb.Insert(ctx, tx, tickets); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: version, Route: stored.Route, Lane: outbox.Live}, jobs)
	})
}

// stock stores tickets under v1 that were created from an hour ago on, the n-th text in the n-th second.
func (a *archive) stock(client string, from, to int) {
	a.t.Helper()
	ids, err := a.create(a.t.Context(), "v1", client, from, to)
	if err != nil {
		a.t.Fatal(err)
	}
	a.exec(`UPDATE ticket t SET created_at = $1::timestamptz + make_interval(secs => $2 + u.n - 1) FROM unnest($3::uuid[]) WITH ORDINALITY u(id, n) WHERE t.id = u.id`,
		a.began, float64(from), ids)
}

// answer answers what is due, up to most, and returns how much that was.
func (a *archive) answer(ctx context.Context, lane outbox.Lane, most int, department string, cost string) (answered int, err error) {
	claimed, err := outbox.NewClaimer(a.db, "main", lane, "worker", time.Hour).Claim(ctx, most)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	return len(claimed), postgres.InTx(ctx, a.db, func(ctx context.Context, tx pgx.Tx) error {
		var leases []outbox.Lease
		var closures []ledger.Closure
		var results []ledger.Result
		for _, c := range claimed {
			leases = append(leases, c.Lease)
			if c.Answered {
				continue
			}
			closures = append(closures, ledger.Closure{
				CallID: c.CallID, Outcome: ledger.Answered, HTTPStatus: 200, Response: []byte("{}"), ServedModel: "model",
				Usage: &evaluation.Usage{InputTokens: 100, OutputTokens: 10}, CostUSD: decimal.RequireFromString(cost),
			})
			results = append(results, ledger.Result{
				Key: c.Key, ContentHash: c.ContentHash, TicketID: c.TicketID, VersionID: c.VersionID, CallID: c.CallID,
				Answer:       evaluation.Answer{Department: department, IsUrgent: 1, UrgencyScore: 0.5},
				Decision:     evaluation.Decision{PolicyVersion: "p", Priority: "high", Queue: "q"},
				ModelVersion: "m", PromptVersion: "triage-1",
			})
		}
		if _, err := outbox.Finish(ctx, tx, leases); err != nil {
			return err
		}
		if err := ledger.Close(ctx, tx, closures); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, results)
		return err
	})
}

func (a *archive) mustAnswer(lane outbox.Lane, most int, department string) {
	a.t.Helper()
	n, err := a.answer(a.t.Context(), lane, most, department, "0.001")
	if err != nil || n != most {
		a.t.Fatalf("answered %d of %d: %v", n, most, err)
	}
}

// all selects all that was stocked, and what is yet to come of that time.
func (a *archive) all() *adminv1.ReprocessSelection {
	return &adminv1.ReprocessSelection{
		CreatedFrom: timestamppb.New(a.began), CreatedTo: timestamppb.New(a.began.Add(30 * time.Minute)), Version: "v2",
	}
}

func (a *archive) mustStart(s *adminv1.ReprocessSelection, spread time.Duration) *adminv1.Reprocess {
	a.t.Helper()
	r, err := a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{Selection: s, Spread: durationpb.New(spread)})
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

// look returns a job, and holds it to its sums.
func (a *archive) look(id string) *adminv1.Reprocess {
	a.t.Helper()
	r, err := a.reprocess().GetReprocess(a.as(a.bob), &adminv1.GetReprocessRequest{Id: id})
	if err != nil {
		a.t.Fatal(err)
	}
	p := r.GetProgress()
	if p.GetExamined() != p.GetEnqueued()+p.GetAlreadyAnswered()+p.GetAlreadyQueued()+p.GetAlreadyDead() {
		a.t.Errorf("what was examined does not add up: %v", p)
	}
	if p.GetEnqueued() != p.GetWaiting()+p.GetProcessing()+p.GetEvaluated()+p.GetDead()+p.GetTakenOver()+p.GetRemoved()+p.GetKept() {
		a.t.Errorf("what was enqueued does not add up: %v", p)
	}
	return r
}

// jobUntil waits for a job to be as it should.
func (a *archive) jobUntil(id, what string, is func(*adminv1.Reprocess) bool) *adminv1.Reprocess {
	a.t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Minute); ; {
		r := a.look(id)
		if is(r) {
			return r
		}
		if r.GetState() == "failed" {
			a.t.Fatalf("the job has failed: %v", r)
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("the job does not come to be %s: %v", what, r)
		}
		<-look.C
	}
}

func inPhase(phase string) func(*adminv1.Reprocess) bool {
	return func(r *adminv1.Reprocess) bool { return r.GetPhase() == phase }
}

func inState(state string) func(*adminv1.Reprocess) bool {
	return func(r *adminv1.Reprocess) bool { return r.GetState() == state && r.GetPhase() == "" }
}

func (a *archive) cancel(id string) *adminv1.Reprocess {
	a.t.Helper()
	if _, err := a.reprocess().CancelReprocess(a.as(a.ana), &adminv1.CancelReprocessRequest{Id: id}); err != nil {
		a.t.Fatal(err)
	}
	return a.jobUntil(id, "canceled", inState("canceled"))
}

func TestAJobDoesWhatItsPreviewSaid(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.stock("c", 0, 12)
	a.mustAnswer(outbox.Live, 12, "billing")
	a.stock("c", 12, 20)
	a.mustAnswer(outbox.Live, 8, "technical")
	a.stock("d", 0, 5) // the texts of the first five once more
	a.stock("d", 20, 24)
	a.stock("gone", 24, 26)
	a.exec(`DELETE FROM evaluation_outbox WHERE ticket_id IN (SELECT id FROM ticket WHERE client_id = 'gone')`)
	a.exec(`UPDATE ticket SET subject = '', message = '', erased_at = now() WHERE client_id = 'gone'`)
	a.exec(`UPDATE evaluation_outbox SET status = 'dead', dead_at = now(), last_class = 'permanent', last_reason = 'refusal', attempts = 1
		WHERE idempotency_key = (SELECT min(idempotency_key) FROM evaluation_outbox)`)
	a.runJobs("one")
	for name, c := range map[string]struct {
		change         func(*adminv1.ReprocessSelection)
		tickets, calls int64
	}{
		"all":                    {func(*adminv1.ReprocessSelection) {}, 29, 24},
		"a half-open range":      {func(s *adminv1.ReprocessSelection) { s.CreatedTo = timestamppb.New(a.began.Add(10 * time.Second)) }, 15, 10},
		"the end of the range":   {func(s *adminv1.ReprocessSelection) { s.CreatedFrom = timestamppb.New(a.began.Add(22 * time.Second)) }, 2, 2},
		"a client":               {func(s *adminv1.ReprocessSelection) { s.ClientId = "d" }, 9, 9},
		"a department":           {func(s *adminv1.ReprocessSelection) { s.Department = "technical" }, 8, 8},
		"a client's department":  {func(s *adminv1.ReprocessSelection) { s.Department, s.ClientId = "billing", "d" }, 5, 5},
		"what is answered":       {func(s *adminv1.ReprocessSelection) { s.States = []string{"succeeded"} }, 25, 20},
		"what waits, or is dead": {func(s *adminv1.ReprocessSelection) { s.States = []string{"pending", "dead"} }, 4, 4},
		"what is dead":           {func(s *adminv1.ReprocessSelection) { s.States = []string{"dead"} }, 1, 1},
		"what has no answer":     {func(s *adminv1.ReprocessSelection) { s.OnlyMissing = true }, 4, 4},
		"the first few":          {func(s *adminv1.ReprocessSelection) { s.Limit = 7 }, 7, 4},
		"the first few of many":  {func(s *adminv1.ReprocessSelection) { s.Limit, s.States = 22, []string{"succeeded"} }, 22, 17},
		"what was answered, too": {func(s *adminv1.ReprocessSelection) { s.Version = "v1" }, 29, 0},
	} {
		selection := a.all()
		c.change(selection)
		e, err := a.reprocess().PreviewReprocess(a.as(a.bob), &adminv1.PreviewReprocessRequest{Selection: selection})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if e.GetTickets() != c.tickets || e.GetCalls() != c.calls || e.GetCalls() != e.GetContents()-e.GetAlreadyAnswered()-e.GetAlreadyQueued()-e.GetAlreadyDead() {
			t.Errorf("%s: the preview is %v, want %d tickets and %d calls", name, e, c.tickets, c.calls)
		}
		id := a.mustStart(selection, 0).GetId()
		done := a.jobUntil(id, "enqueued", func(r *adminv1.Reprocess) bool {
			return r.GetState() == "done" || c.calls > 0 && r.GetPhase() == "evaluating"
		})
		if p := done.GetProgress(); p.GetExamined() != c.tickets || p.GetEnqueued() != c.calls || p.GetWaiting() != c.calls {
			t.Errorf("%s: the job came to %v, want %d tickets and %d calls", name, p, c.tickets, c.calls)
		}
		if done.GetState() != "done" {
			if p := a.cancel(id).GetProgress(); p.GetRemoved()+p.GetKept() != c.calls {
				t.Errorf("%s: the canceled job came to %v", name, p)
			}
		}
		if n := a.text("SELECT count(*)::text FROM evaluation_outbox WHERE version_id = 'v2'"); n != "0" {
			t.Fatalf("%s: %s evaluations are left of the canceled job", name, n)
		}
	}
}

func TestJobsAtOnceAndBesideCreationsEvaluateOnce(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	const texts = 150
	a.stock("c", 0, texts)
	a.mustAnswer(outbox.Live, texts, "billing")
	if _, err := a.client().PromoteVersion(a.as(a.ana), &adminv1.PromoteVersionRequest{Id: "v2", Force: true}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	failed := make(chan error, 8)
	var creating, working sync.WaitGroup
	for creator := range 3 {
		creating.Go(func() {
			for n := range 30 {
				from := (n*37 + creator*50) % texts
				if _, err := a.create(ctx, "v2", "live", from, min(from+5, texts)); err != nil {
					failed <- fmt.Errorf("create: %w", err)
					return
				}
			}
		})
	}
	for _, lane := range []outbox.Lane{outbox.Live, outbox.Bulk} {
		working.Go(func() {
			for ctx.Err() == nil {
				if _, err := a.answer(ctx, lane, 20, "technical", "0.001"); err != nil && ctx.Err() == nil {
					failed <- fmt.Errorf("answer on lane %s: %w", lane, err)
					return
				}
			}
		})
	}
	a.runJobs("one")
	a.runJobs("two")
	ids := make(chan string, 3)
	for range 3 {
		creating.Go(func() {
			r, err := a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{Selection: a.all(), Spread: durationpb.New(0)})
			if err != nil {
				failed <- fmt.Errorf("start: %w", err)
			}
			ids <- r.GetId()
		})
	}
	creating.Wait()
	var evaluated int64
	for range 3 {
		p := a.jobUntil(<-ids, "done", inState("done")).GetProgress()
		if p.GetExamined() != texts || p.GetSeen() != texts {
			t.Errorf("a job has examined %d of %d tickets", p.GetExamined(), texts)
		}
		evaluated += p.GetEvaluated()
	}
	for a.text("SELECT count(*)::text FROM evaluation_outbox") != "0" {
	}
	stop()
	working.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	if n := a.text("SELECT count(*)::text FROM evaluation_result WHERE version_id = 'v2'"); n != fmt.Sprint(texts) {
		t.Errorf("%s results of %d texts", n, texts)
	}
	if n := a.text("SELECT count(*)::text FROM model_call WHERE version_id = 'v2'"); n != fmt.Sprint(texts) {
		t.Errorf("%s calls for %d texts", n, texts)
	}
	if n := a.text("SELECT count(*)::text FROM model_call WHERE job_id IS NOT NULL"); n != fmt.Sprint(evaluated) {
		t.Errorf("the jobs have evaluated %d, and have %s calls", evaluated, n)
	}
	fscktest.Require(t, a.db)
}

func TestATicketThatIsCommittedLateIsNotMissed(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.stock("c", 0, 5)
	a.mustAnswer(outbox.Live, 5, "billing")
	v1, err := versiondb.Get(t.Context(), a.db, "v1")
	if err != nil {
		t.Fatal(err)
	}
	j, ticket, err := a.work(v1, "late", 100)
	if err != nil {
		t.Fatal(err)
	}
	held, err := a.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := ticketdb.Insert(t.Context(), held, []ticketdb.NewTicket{ticket}); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), "UPDATE ticket SET created_at = $1 WHERE id = $2", a.began.Add(time.Second), ticket.ID); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Enqueue(t.Context(), held, outbox.Demand{VersionID: "v1", Route: "main", Lane: outbox.Live}, []outbox.Job{j}); err != nil {
		t.Fatal(err)
	}
	a.runJobs("one")
	id := a.mustStart(a.all(), 0).GetId()
	waiting := a.jobUntil(id, "waiting", inPhase("waiting"))
	if n := waiting.GetProgress().GetEnqueued(); n != 5 {
		t.Errorf("%d of 5 tickets are enqueued while another is on its way", n)
	}
	// Another one that comes and goes meanwhile, so that the job has looked more than once.
	if _, err := a.create(t.Context(), "v1", "other", 200, 201); err != nil {
		t.Fatal(err)
	}
	if r := a.look(id); r.GetPhase() != "waiting" {
		t.Errorf("the job does not wait: %v", r)
	}
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := a.jobUntil(id, "evaluating", inPhase("evaluating")).GetProgress()
	if p.GetEnqueued() != 6 || p.GetExamined() != 6 {
		t.Errorf("with the late ticket the job came to %v, want 6", p)
	}
}

func TestAPausedJobHoldsItsWorkBack(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.stock("c", 0, 30)
	a.mustAnswer(outbox.Live, 30, "billing")
	a.runJobs("one")
	id := a.mustStart(a.all(), 0).GetId()
	a.jobUntil(id, "evaluating", inPhase("evaluating"))
	a.mustAnswer(outbox.Bulk, 10, "technical")
	for range 2 { // the second changes nothing
		if _, err := a.reprocess().PauseReprocess(a.as(a.ana), &adminv1.PauseReprocessRequest{Id: id, Reason: "too late in the day"}); err != nil {
			t.Fatal(err)
		}
	}
	p := a.jobUntil(id, "paused", inState("paused")).GetProgress()
	if p.GetEvaluated() != 10 || p.GetHeld() != 20 || p.GetWaiting() != 20 {
		t.Errorf("the paused job is at %v", p)
	}
	if n, err := a.answer(t.Context(), outbox.Bulk, 100, "technical", "0"); err != nil || n != 0 {
		t.Errorf("answered %d of a paused job: %v", n, err)
	}
	if n := a.text("SELECT count(*)::text FROM admin_audit WHERE method = 'ReprocessService.PauseReprocess' AND reason = 'too late in the day' AND target = $1", "reprocesses/"+id); n != "1" {
		t.Errorf("%s records of one pause", n)
	}
	if _, err := a.reprocess().ResumeReprocess(a.as(a.ana), &adminv1.ResumeReprocessRequest{Id: id}); err != nil {
		t.Fatal(err)
	}
	a.jobUntil(id, "going on", func(r *adminv1.Reprocess) bool { return r.GetProgress().GetHeld() == 0 })
	a.mustAnswer(outbox.Bulk, 20, "technical")
	done := a.jobUntil(id, "done", inState("done"))
	if p := done.GetProgress(); p.GetEvaluated() != 30 || p.GetSpentUsd() != "0.03" {
		t.Errorf("the job has come to %v", p)
	}
	_, err := a.reprocess().PauseReprocess(a.as(a.ana), &adminv1.PauseReprocessRequest{Id: id})
	wantProblem(t, err, codes.FailedPrecondition, "JOB_STATE")
	fscktest.Require(t, a.db)
}

func TestACanceledJobLeavesWhatIsAllThatATicketHas(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.stock("c", 0, 10)
	a.mustAnswer(outbox.Live, 10, "billing")
	a.stock("c", 10, 13)
	a.exec("DELETE FROM evaluation_outbox") // as if restored without it
	a.runJobs("one")
	id := a.mustStart(a.all(), time.Hour).GetId()
	a.jobUntil(id, "evaluating", inPhase("evaluating"))
	if _, err := a.create(t.Context(), "v2", "live", 0, 2); err != nil {
		t.Fatal(err)
	}
	p := a.cancel(id).GetProgress()
	if p.GetEnqueued() != 13 || p.GetTakenOver() != 2 || p.GetRemoved() != 8 || p.GetKept() != 3 {
		t.Errorf("the canceled job has come to %v", p)
	}
	if n := a.text("SELECT count(*)::text FROM evaluation_outbox WHERE available_at <= now() AND job_id IS NULL"); n != "5" {
		t.Errorf("%s evaluations are left, want 5", n)
	}
	fscktest.Require(t, a.db)
}

func TestAJobKeepsToItsMaximum(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.stock("c", 0, 30)
	a.mustAnswer(outbox.Live, 30, "billing")
	begin := func(most string) (*adminv1.Reprocess, error) {
		return a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{Selection: a.all(), Spread: durationpb.New(0), MaxCostUsd: most})
	}
	// By the 30 calls of v1: 100 tokens of input at $0.25 and 10 of output at $2 for a million.
	_, err := begin("0.001")
	p := wantProblem(t, err, codes.FailedPrecondition, "COST_ABOVE_MAXIMUM")
	if p.metadata["calls"] != "30" || p.metadata["estimatedCostUsd"] != "0.00135" || p.metadata["maxCostUsd"] != "0.001" {
		t.Errorf("the figures are %v", p.metadata)
	}
	if n := a.text("SELECT count(*)::text FROM reprocess_job"); n != "0" {
		t.Fatalf("%s jobs were made by a refusal", n)
	}
	r, err := begin("0.00135")
	if err != nil {
		t.Fatal(err)
	}
	if e := r.GetEstimate(); e.GetCostBasis() != adminv1.CostBasis_COST_BASIS_OTHER_VERSIONS || e.GetBasisCalls() != 30 || e.GetCostUsd() != "0.00135" {
		t.Errorf("the estimate is %v", e)
	}
	a.runJobs("one")
	a.jobUntil(r.GetId(), "evaluating", inPhase("evaluating"))
	if n, err := a.answer(t.Context(), outbox.Bulk, 3, "technical", "0.0006"); err != nil || n != 3 { // dearer than was thought
		t.Fatalf("answered %d: %v", n, err)
	}
	paused := a.jobUntil(r.GetId(), "paused", inState("paused"))
	if !strings.Contains(paused.GetStateReason(), "$0.0018") || !strings.Contains(paused.GetStateReason(), "$0.00135") || paused.GetProgress().GetHeld() != 27 {
		t.Errorf("the job has paused as %v", paused)
	}
	if n, err := a.answer(t.Context(), outbox.Bulk, 100, "technical", "0"); err != nil || n != 0 {
		t.Errorf("answered %d beyond the maximum: %v", n, err)
	}
}

func TestWhatIsWrongWithAJobIsSaidByField(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	_, err := a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{
		Selection:  &adminv1.ReprocessSelection{Version: "V 2", States: []string{"pending", "gone"}, Limit: -1, ClientId: "a\x00b", Department: "\x00"},
		Spread:     durationpb.New(-time.Second),
		MaxCostUsd: "much", RequestId: strings.Repeat("x", 1000), Reason: strings.Repeat("x", 10_000),
	})
	wantProblem(t, err, codes.InvalidArgument, "FIELD_TOO_LARGE", "selection.version", "selection.states[1]", "selection.limit", "selection.client_id",
		"selection.department", "selection.created_from", "spread", "max_cost_usd", "request_id", "reason")
	future := a.all()
	future.CreatedTo = timestamppb.New(time.Now().Add(time.Hour))
	_, err = a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{Selection: future})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "selection.created_to")
	backwards := a.all()
	backwards.CreatedFrom = backwards.CreatedTo
	_, err = a.reprocess().PreviewReprocess(a.as(a.ana), &adminv1.PreviewReprocessRequest{Selection: backwards})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "selection.created_from")
	unknown := a.all()
	unknown.Version = "v9"
	_, err = a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{Selection: unknown})
	wantProblem(t, err, codes.NotFound, "VERSION_NOT_FOUND")
	_, err = a.reprocess().GetReprocess(a.as(a.ana), &adminv1.GetReprocessRequest{Id: "1"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "id")
	_, err = a.reprocess().CancelReprocess(a.as(a.ana), &adminv1.CancelReprocessRequest{Id: uuid.NewString()})
	wantProblem(t, err, codes.NotFound, "JOB_NOT_FOUND")
	_, err = a.reprocess().ListReprocesses(a.as(a.ana), &adminv1.ListReprocessesRequest{State: "asleep", PageSize: -1, PageToken: "x"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "state", "page_size", "page_token")
	if n := a.text("SELECT count(*)::text FROM reprocess_job"); n != "0" {
		t.Errorf("%s jobs were made by refusals", n)
	}
}

func TestReprocessingOverREST(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	body := func(from string) string {
		return `{"selection": {"created_from": "` + from + `", "version": "v2"}, "spread": "0s", "request_id": "once"}`
	}
	r := a.rest("POST", "/v1/reprocesses", body("2026-11-01T00:00:00"))
	if r.status != 400 || !strings.Contains(r.body, "offset") {
		t.Errorf("a time without an offset: %d %s", r.status, r.body)
	}
	first := a.rest("POST", "/v1/reprocesses", body("2020-11-01T00:00:00+01:00"))
	if first.status != 201 || !strings.Contains(first.body, `"2020-10-31T23:00:00Z"`) {
		t.Fatalf("%d %s", first.status, first.body)
	}
	again := a.rest("POST", "/v1/reprocesses", body("2020-11-01T00:00:00+01:00"))
	if again.header.Get("Idempotent-Replayed") == "" || again.body != first.body {
		t.Errorf("repeated: %d %s", again.status, again.body)
	}
	wantREST(t, a.rest("POST", "/v1/reprocesses", body("2021-11-01T00:00:00+01:00")), 422, "IDEMPOTENCY_KEY_REUSED")
	id := a.text("SELECT id::text FROM reprocess_job")
	for _, verb := range []string{"pause", "resume", "cancel"} {
		dry := a.rest("POST", "/v1/reprocesses/"+id+":"+verb, `{"dry_run": true}`)
		if dry.status != 200 {
			t.Errorf("%s: %d %s", verb, dry.status, dry.body)
		}
	}
	if got := a.rest("GET", "/v1/reprocesses/"+id, ""); got.status != 200 || !strings.Contains(got.body, `"running"`) {
		t.Errorf("after dry runs: %d %s", got.status, got.body)
	}
	if got := a.rest("POST", "/v1/reprocesses:preview", body("2020-11-01T00:00:00Z")); got.status != 400 {
		t.Errorf("an unknown field: %d %s", got.status, got.body)
	}
	if got := a.rest("POST", "/v1/reprocesses:preview", `{"selection": {"created_from": "2020-11-01T00:00:00Z", "version": "v2"}}`); got.status != 200 || !strings.Contains(got.body, `"duration":"0s"`) {
		t.Errorf("preview of nothing: %d %s", got.status, got.body)
	}
}

func TestJobsAreListed(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.stock("c", 0, 1)
	for range 3 {
		a.mustStart(a.all(), time.Hour)
	}
	dry, err := a.reprocess().StartReprocess(a.as(a.ana), &adminv1.StartReprocessRequest{Selection: a.all(), DryRun: true})
	if err != nil || dry.GetEstimate().GetTickets() != 1 || dry.GetSpread().AsDuration() != 30*time.Minute {
		t.Errorf("dry run: %v, %v", dry, err)
	}
	var ids []string
	for token := ""; ; {
		page, err := a.reprocess().ListReprocesses(a.as(a.bob), &adminv1.ListReprocessesRequest{State: "running", PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.GetReprocesses() {
			ids = append(ids, r.GetId())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if got, want := strings.Join(ids, " "), a.text("SELECT string_agg(id::text, ' ' ORDER BY id DESC) FROM reprocess_job"); got != want || len(ids) != 3 {
		t.Errorf("listed %s, want %s", got, want)
	}
}
