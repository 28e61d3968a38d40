package evaluate_test

import (
	"testing"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// A lost response is asked for before another is bought.
func TestRecover(t *testing.T) {
	t.Parallel()
	answered, unanswered := providersim.Action{Close: providersim.CloseAfterAnswer}, providersim.Action{Close: providersim.CloseAfterRequest}
	for name, c := range map[string]struct {
		lost     providersim.Action
		allowed  int // calls of unknown outcome
		results  int
		dead     string
		requests int
		billed   int
	}{
		"the provider has it":                      {lost: answered, allowed: 2, results: 1, requests: 1, billed: 1},
		"has it, and no call more is allowed":      {lost: answered, allowed: 0, results: 1, requests: 1, billed: 1},
		"what it has is no answer":                 {lost: providersim.Action{CutAfterBytes: 20, Content: "no"}, allowed: 2, dead: "contract_violation", requests: 1, billed: 1},
		"the provider has nothing":                 {lost: unanswered, allowed: 2, results: 1, requests: 2, billed: 1},
		"has nothing, and no call more is allowed": {lost: unanswered, allowed: 0, dead: "unknown_outcome", requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := []providersim.Rule{{Match: providersim.Match{Attempt: 1}, Action: c.lost}}
			r := newRigWith(t, providersim.Options{Script: script}, func(v *evaluation.Version) {
				v.UnknownPolicy, v.MaxUnknownCalls = evaluation.Recover, c.allowed
			})
			r.create(outbox.Live, 0, 1)
			r.start()
			r.until(1, "model_call WHERE outcome = 'unknown'")
			r.until(1, "evaluation_outbox WHERE status = 'pending' AND unknown_calls = 1")
			r.due()
			r.until(c.results, "evaluation_result")
			if c.dead != "" {
				r.until(1, "evaluation_outbox WHERE status = 'dead' AND last_reason = $1", c.dead)
			} else {
				r.until(0, "evaluation_outbox")
			}
			if s := r.sim.Stats(); s.Requests != c.requests || s.Billed != c.billed {
				t.Errorf("%d requests, %d billed, want %d and %d", s.Requests, s.Billed, c.requests, c.billed)
			}
			if named := r.count("evaluation_result r JOIN model_call m ON m.id = r.model_call_id AND m.outcome = 'answered'"); named != c.results {
				t.Errorf("%d results name the call that was paid for, want %d", named, c.results)
			}
			r.check()
		})
	}
}

// While the provider cannot say what it has, nothing is bought and nothing is given up.
func TestRecoverWaitsForTheProvider(t *testing.T) {
	t.Parallel()
	script := []providersim.Rule{{Match: providersim.Match{Attempt: 1}, Action: providersim.Action{Close: providersim.CloseAfterAnswer}}}
	r := newRigWith(t, providersim.Options{Script: script}, func(v *evaluation.Version) { v.UnknownPolicy = evaluation.Recover })
	r.create(outbox.Live, 0, 1)
	r.start()
	r.until(1, "evaluation_outbox WHERE status = 'pending' AND unknown_calls = 1")
	if err := r.sim.StartOutage(providersim.Action{Error: providersim.Overloaded503}); err != nil {
		t.Fatal(err)
	}
	r.due()
	r.until(1, "evaluation_outbox WHERE status = 'pending' AND last_class = 'transient'")
	r.sim.EndOutage()
	r.due()
	r.until(1, "evaluation_result")
	if got := r.sim.Stats().Requests; got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
	r.check()
}
