package systemtest

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/evalonce/evalonce/pkg/providersim"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

var hang = providersim.Action{Hang: providersim.HangAfterAnswer}

// 50 identical tickets at once, the worker killed in the call, a 51st ticket when it is over: one result, one
// paid call beside the one that was under way, and everybody has the answer.
func TestIdenticalTicketsAcrossACrash(t *testing.T) {
	t.Parallel()
	s := newSystem(t, providersim.Rule{Match: providersim.Match{Attempt: 1}, Action: hang})
	first := s.worker()
	ids := make([]string, 50)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			ticket, err := s.api.CreateTicket(s.ctx, &ticketv1.CreateTicketRequest{Subject: "Help", Message: "The same for all."})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = ticket.GetId()
		})
	}
	wg.Wait()
	s.hanging(1)
	s.kill(first)
	s.worker()
	s.until(1, "evaluation_result")
	ids = append(ids, s.create("The same for all.").GetId())
	own := 0
	for _, id := range ids {
		e := s.get(id).GetEvaluation()
		if e.GetState() != ticketv1.Evaluation_SUCCEEDED || e.GetAnswer().GetDepartment() == "" {
			t.Errorf("ticket %s is %s", id, e)
		}
		if !e.GetAnsweredWithoutCall() {
			own++
		}
	}
	if own != 1 {
		t.Errorf("%d tickets claim the call as their own, want 1", own)
	}
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != 1 {
		t.Errorf("%d calls of unknown outcome, want the one that was killed", n)
	}
	if got := s.sim.Stats().Billed; got != 2 {
		t.Errorf("%d answers billed, want 2", got)
	}
	s.check()
}

// A worker that is stopped past its lease and goes on: it changes nothing that the other owns by then, and its
// answer, the first that came in, is the result.
func TestStoppedWorkerGoesOn(t *testing.T) {
	t.Parallel()
	s := newSystem(t,
		providersim.Rule{Match: providersim.Match{Attempt: 1}, Action: hang},
		providersim.Rule{Match: providersim.Match{Attempt: 2}, Action: hang},
	)
	a := s.worker()
	id := s.create("hello").GetId()
	s.hanging(1)
	if err := a.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.sim.Release() // A's response waits in its socket
	if err := s.sim.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.worker()
	s.hanging(1)
	var callOfB, ownerB, callOfA string
	if err := s.db.QueryRow(t.Context(), "SELECT locked_by FROM evaluation_outbox WHERE status = 'processing'").Scan(&ownerB); err != nil {
		t.Fatal(err)
	}
	if err := s.db.QueryRow(t.Context(), "SELECT id::text FROM model_call WHERE outcome = 'open'").Scan(&callOfB); err != nil {
		t.Fatal(err)
	}
	if err := s.db.QueryRow(t.Context(), "SELECT id::text FROM model_call WHERE outcome = 'unknown'").Scan(&callOfA); err != nil {
		t.Fatal(err)
	}
	if err := a.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.until(1, "evaluation_result WHERE model_call_id::text = $1", callOfA)
	if n := s.count("evaluation_outbox WHERE status = 'processing' AND locked_by = $1", ownerB); n != 1 {
		t.Error("A changed the row that B owns")
	}
	if n := s.count("model_call WHERE id::text = $1 AND outcome = 'open'", callOfB); n != 1 {
		t.Error("A changed B's call")
	}
	if e := s.get(id).GetEvaluation(); e.GetState() != ticketv1.Evaluation_SUCCEEDED || e.GetAnswer().GetModelCallId() != callOfA {
		t.Errorf("evaluation is %s", e)
	}
	s.sim.Release()
	s.until(0, "evaluation_outbox")
	if n := s.count("evaluation_result WHERE model_call_id::text = $1", callOfA); n != 1 {
		t.Error("B's answer replaced A's")
	}
	if n := s.count("model_call WHERE outcome = 'answered'"); n != 2 {
		t.Errorf("%d answered calls on record, want both", n)
	}
	s.check()
}

// Killed with the response in hand and nothing saved of it: one call of unknown outcome, one more within the
// allowance, one result.
func TestKilledBeforeTheResponseWasSaved(t *testing.T) {
	t.Parallel()
	s := newSystem(t, providersim.Rule{Match: providersim.Match{Attempt: 1}, Action: hang})
	a := s.worker()
	id := s.create("hello").GetId()
	s.hanging(1)
	// Whoever closes the call waits for this transaction.
	lock, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(s.ctx) }()
	if _, err := lock.Exec(t.Context(), "SELECT FROM model_call FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	s.sim.Release()
	s.until(1, "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%CloseCalls%'")
	s.kill(a)
	s.until(0, "pg_stat_activity WHERE datname = current_database() AND application_name = 'evaluator-worker claims'")
	// The server notices a lost client when it next talks to it; the statement of the dead worker is ended here,
	// as its lock wait would be by the server's own checks.
	s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'evaluator-worker'")
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.worker()
	s.until(1, "evaluation_result")
	s.until(0, "evaluation_outbox")
	if unknown, answered := s.count("model_call WHERE outcome = 'unknown'"), s.count("model_call WHERE outcome = 'answered'"); unknown != 1 || answered != 1 {
		t.Errorf("%d unknown and %d answered calls, want one of each", unknown, answered)
	}
	if got := s.sim.Stats().Billed; got != 2 {
		t.Errorf("%d answers billed, want 2", got)
	}
	if e := s.get(id).GetEvaluation(); e.GetState() != ticketv1.Evaluation_SUCCEEDED {
		t.Errorf("evaluation is %s", e)
	}
	s.check()
}

// Killed between saving the response and writing the result: the result, and no further call.
func TestKilledBetweenResponseAndResult(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec("ALTER TABLE evaluation_result ADD CONSTRAINT not_now CHECK (version_id <> 'v1')")
	a := s.worker()
	id := s.create("hello").GetId()
	s.until(1, "model_call WHERE outcome = 'saved'")
	s.kill(a)
	s.exec("ALTER TABLE evaluation_result DROP CONSTRAINT not_now")
	s.worker()
	s.due()
	s.until(1, "evaluation_result")
	s.until(0, "evaluation_outbox")
	if got := s.sim.Stats().Requests; got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
	if e := s.get(id).GetEvaluation(); e.GetState() != ticketv1.Evaluation_SUCCEEDED {
		t.Errorf("evaluation is %s", e)
	}
	s.check()
}

// Told to stop while calls run: their results are saved, what never started is back with its attempt refunded,
// and the process ends by itself within its grace.
func TestTermination(t *testing.T) {
	t.Parallel()
	s := newSystem(t, providersim.Rule{Action: hang})
	for n := range 20 {
		s.create(fmt.Sprintf("ticket %d", n))
	}
	w := s.worker("EVALONCE_CONCURRENCY=4", "EVALONCE_SHUTDOWN_GRACE=30s")
	s.hanging(4)
	if err := w.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.sim.Release()
	state, err := w.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !state.Success() {
		t.Errorf("the worker ended with %s", state)
	}
	if got := s.count("evaluation_result"); got != 4 {
		t.Errorf("%d results, want 4", got)
	}
	if got := s.count("evaluation_outbox WHERE status = 'pending' AND attempts = 0"); got != 16 {
		t.Errorf("%d untouched rows of work, want 16", got)
	}
	if got := s.count("model_call WHERE outcome IN ('open', 'unknown')"); got != 0 {
		t.Errorf("%d calls left open or unknown", got)
	}
	s.check()
}

// While the provider hangs, and with no worker at all, tickets are taken as ever.
func TestCreateDoesNotKnowTheModel(t *testing.T) {
	t.Parallel()
	s := newSystem(t, providersim.Rule{Action: hang})
	for n := range 50 {
		if got := s.create(fmt.Sprintf("before %d", n)).GetEvaluation().GetState(); got != ticketv1.Evaluation_PENDING {
			t.Fatalf("state %s", got)
		}
	}
	s.worker("EVALONCE_CONCURRENCY=10")
	s.hanging(10)
	for n := range 50 {
		if got := s.create(fmt.Sprintf("during %d", n)).GetEvaluation().GetState(); got != ticketv1.Evaluation_PENDING {
			t.Fatalf("state %s", got)
		}
	}
	if got := s.count("evaluation_result"); got != 0 {
		t.Errorf("%d results while the provider hangs", got)
	}
	s.sim.ClearRules()
	s.sim.Release()
	s.until(100, "evaluation_result")
	s.check()
}

// A dead content that is submitted again: what would only fail again stays dead and says why; what was given up
// for the provider's sake is tried again.
func TestDeadContentSubmittedAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t,
		providersim.Rule{Match: providersim.Match{Text: "refuse"}, Action: providersim.Action{Answer: providersim.AnswerRefusal}},
		providersim.Rule{Match: providersim.Match{Text: "fail"}, Action: providersim.Action{Error: providersim.ServerError500}, Times: 2},
	)
	s.worker()
	s.create("refuse me")
	s.until(1, "evaluation_outbox WHERE status = 'dead' AND last_reason = 'refusal'")
	again := s.create("refuse me").GetEvaluation()
	if again.GetState() != ticketv1.Evaluation_DEAD_LETTER || again.GetDeadLetter().GetReason() != "refusal" || again.GetDeadLetter().GetClass() != "permanent" {
		t.Errorf("evaluation is %s", again)
	}

	failed := s.create("fail twice").GetId()
	s.until(1, "evaluation_outbox WHERE status = 'pending' AND attempts = 1")
	s.due()
	s.until(1, "evaluation_outbox WHERE status = 'dead' AND last_reason = 'attempts_spent'")
	if e := s.get(failed).GetEvaluation(); e.GetState() != ticketv1.Evaluation_DEAD_LETTER || e.GetDeadLetter().GetReason() != "attempts_spent" {
		t.Errorf("evaluation is %s", e)
	}
	armed := s.create("fail twice")
	if got := armed.GetEvaluation().GetState(); got != ticketv1.Evaluation_PENDING {
		t.Errorf("state %s, want PENDING", got)
	}
	s.until(1, "evaluation_result")
	for _, id := range []string{failed, armed.GetId()} {
		if got := s.get(id).GetEvaluation().GetState(); got != ticketv1.Evaluation_SUCCEEDED {
			t.Errorf("state %s, want SUCCEEDED", got)
		}
	}
	if got := s.sim.Stats().Requests; got != 4 {
		t.Errorf("%d requests, want 4: a refusal was asked for again", got)
	}
	s.check()
}
