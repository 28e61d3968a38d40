package systemtest

import (
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/providersim"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// Calls under way when the worker is killed, and a version that sends nothing twice: dead letters for a person, and
// not one further call, whoever takes the leases back and whoever asks again.
func TestHoldSendsNothingAgain(t *testing.T) {
	t.Parallel()
	const lost, others = 4, 8
	s := startSystem(t, options{
		rules:   []providersim.Rule{{Match: providersim.Match{Text: "lost"}, Action: hang}},
		version: func(v *evaluation.Version) { v.UnknownPolicy = evaluation.Hold },
	})
	ids := map[string]bool{}
	for n := range lost {
		ids[s.create("lost "+text(n)).GetId()] = true
	}
	for n := range others {
		s.create(text(n))
	}
	victim := s.worker()
	s.hanging(lost)
	s.until(others, "evaluation_result")
	s.kill(victim)
	s.expire()
	if _, err := s.stack.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.worker()
	for n := range lost {
		ids[s.create("lost "+text(n)).GetId()] = true
	}
	s.create(text(others)) // the last in line: when it is done, all that was due before has been claimed
	s.until(others+1, "evaluation_result")
	for id := range ids {
		e := s.get(id).GetEvaluation()
		if e.GetState() != ticketv1.Evaluation_DEAD_LETTER || e.GetDeadLetter().GetReason() != "unknown_outcome" || e.GetDeadLetter().GetClass() != "unknown" {
			t.Errorf("evaluation is %s", e)
		}
	}
	if got := s.sim.Stats().Requests; got != lost+others+1 {
		t.Errorf("%d requests, want %d: something was sent again", got, lost+others+1)
	}
	if got := s.count("model_call WHERE outcome = 'unknown'"); got != lost {
		t.Errorf("%d calls of unknown outcome, want %d", got, lost)
	}
	s.check()
}

// The same with a version that sends again, killed again and again: as many calls as the allowance and one, and then
// the dead letter.
func TestResendIsBounded(t *testing.T) {
	t.Parallel()
	const lost, allowance = 3, 2
	s := startSystem(t, options{
		rules: []providersim.Rule{{Action: hang}},
		version: func(v *evaluation.Version) {
			v.UnknownPolicy, v.MaxUnknownCalls, v.MaxAttempts = evaluation.Resend, allowance, 8
		},
	})
	for n := range lost {
		s.create(text(n))
	}
	for kills := range allowance + 1 {
		if got := s.count("evaluation_outbox WHERE status <> 'dead' AND unknown_calls = $1", kills); got != lost {
			t.Fatalf("after %d kills %d evaluations count as many unknown calls, want %d", kills, got, lost)
		}
		victim := s.worker()
		s.hanging(lost)
		s.kill(victim)
		s.sim.Release()
		s.expire()
		s.until(0, "pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'evaluator-worker%'")
		if _, err := s.stack.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.until(lost, "evaluation_outbox WHERE status = 'dead' AND last_reason = 'unknown_outcome' AND unknown_calls = $1", allowance+1)
	s.sim.ClearRules()
	s.worker()
	s.create(text(lost))
	s.until(1, "evaluation_result")
	if got := s.sim.Stats().Requests; got != lost*(allowance+1)+1 {
		t.Errorf("%d requests, want %d", got, lost*(allowance+1)+1)
	}
	s.check()
}
