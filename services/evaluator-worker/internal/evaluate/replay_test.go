package evaluate_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

// replay replays all dead letters, as an operator does who says revalidate or recall.
func (r *rig) replay(mode string) (replayed int) {
	r.t.Helper()
	selection := uuid.New()
	err := postgres.InTx(r.t.Context(), r.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := outbox.SelectDead(ctx, tx, outbox.Selection{ID: selection}); err != nil {
			return err
		}
		job, err := jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Replay, Spec: map[string]string{"mode": mode}, CreatedBy: "test"})
		if err != nil {
			return err
		}
		taken, err := outbox.TakeSelected(ctx, tx, selection, job.CreatedAt, "", 10_000)
		if err != nil {
			return err
		}
		if mode == "recall" {
			err = ledger.Recall(ctx, tx, job.ID, taken.Dead)
		} else {
			_, err = ledger.Reopen(ctx, tx, taken.Dead)
		}
		if err != nil {
			return err
		}
		replayed = len(taken.Dead)
		_, _, err = outbox.Revive(ctx, tx, outbox.Revival{Job: job.ID, Keys: taken.Dead, Recalled: mode == "recall"})
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return replayed
}

// A thousand responses that the validator of their time refused are answers to the one of today, and nobody is asked
// again.
func TestRevalidationPaysNothing(t *testing.T) {
	t.Parallel()
	const refused = 1000
	r := newRig(t,
		providersim.Rule{Match: providersim.Match{Text: "ticket <0>"}, Action: providersim.Action{}},
		providersim.Rule{Action: providersim.Action{Content: "no"}})
	r.create(outbox.Live, 0, refused+1)
	r.start()
	r.until(refused, "evaluation_outbox WHERE status = 'dead' AND last_reason = 'contract_violation'")
	r.until(1, "evaluation_result")
	asked := r.sim.Stats().Requests
	// What was stored is what the validator of today accepts.
	r.exec(`UPDATE model_call SET response = (SELECT response FROM model_call WHERE outcome = 'answered') WHERE outcome = 'rejected'`)
	if n := r.replay("revalidate"); n != refused {
		t.Fatalf("replayed %d, want %d", n, refused)
	}
	r.until(refused+1, "evaluation_result")
	r.until(0, "evaluation_outbox")
	if got := r.sim.Stats().Requests; got != asked {
		t.Errorf("%d calls, want none", got-asked)
	}
	r.check()
}

// What is no answer today either is dead again, also where the response is of no form at all, which is a reason to ask
// again when it comes at first.
func TestRevalidationInVainPaysNothing(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]string{"the same": "", "of no form": "<html>"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, providersim.Rule{Action: providersim.Action{Content: "no"}})
			r.create(outbox.Live, 0, 3)
			r.start()
			r.until(3, "evaluation_outbox WHERE status = 'dead'")
			if response != "" {
				r.exec("UPDATE model_call SET response = $1", []byte(response))
			}
			r.exec("UPDATE evaluation_outbox SET dead_at = dead_at - interval '1 hour'") // to know them from those that die next
			r.replay("revalidate")
			r.until(3, "evaluation_outbox WHERE status = 'dead' AND dead_at > now() - interval '30 minutes' AND last_reason = 'contract_violation'")
			if got := r.sim.Stats().Requests; got != 3 {
				t.Errorf("%d calls, want the first 3", got)
			}
			if n := r.count("model_call WHERE outcome = 'rejected' AND reason = 'contract_violation'"); n != 3 {
				t.Errorf("%d calls are rejected, want 3", n)
			}
			r.check()
		})
	}
}

// A recall asks again what was refused, once for each.
func TestRecallAsksAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, providersim.Rule{Match: providersim.Match{Attempt: 1}, Action: providersim.Action{Content: "no"}})
	r.create(outbox.Live, 0, 20)
	r.start()
	r.until(20, "evaluation_outbox WHERE status = 'dead'")
	r.replay("recall")
	r.until(20, "evaluation_result")
	r.until(0, "evaluation_outbox")
	if s := r.sim.Stats(); s.Requests != 40 || s.Billed != 40 {
		t.Errorf("%d requests, %d billed, want 40", s.Requests, s.Billed)
	}
	if n := r.count("model_call WHERE recalled_by IS NOT NULL AND outcome = 'rejected'"); n != 20 {
		t.Errorf("%d calls are recalled, want 20", n)
	}
	r.check()
}

// Nobody claims on a paused route, be it well, with limits, or to be probed; and no success ends the pause.
func TestAPausedRouteIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]string{
		"well":      "UPDATE provider_route SET call_timeout = call_timeout",
		"metered":   "UPDATE provider_route SET requests_per_minute = 100000, request_credit = 1000",
		"probe due": "UPDATE provider_route SET state = 'open', reason = 'overloaded', not_before = now()",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(shape)
			r.exec("UPDATE provider_route SET paused_at = now(), paused_by = 'ana', pause_reason = ''")
			r.create(outbox.Live, 0, 5)
			r.start()
			r.elsewhere(3) // so the worker has had the time
			if n := r.count("evaluation_outbox WHERE route = 'main' AND status = 'pending' AND attempts = 0"); n != 5 {
				t.Errorf("%d evaluations wait untouched, want 5", n)
			}
			if n := r.count("provider_route WHERE name = 'main' AND probe_id IS NULL AND paused_at IS NOT NULL"); n != 1 {
				t.Error("a probe was begun")
			}
			r.exec("UPDATE provider_route SET paused_at = NULL, paused_by = NULL, pause_reason = NULL")
			r.until(0, "evaluation_outbox WHERE route = 'main'")
		})
	}
}

// elsewhere has n tickets evaluated on another route.
func (r *rig) elsewhere(n int) {
	r.t.Helper()
	version := r.version
	defer func() { r.version = version }()
	r.version.ID, r.version.Prompt, r.version.Route = "elsewhere", "Sort it.", "elsewhere"
	if err := postgres.InTx(r.t.Context(), r.db, func(ctx context.Context, tx pgx.Tx) error {
		_, err := versiondb.Register(ctx, tx, r.version, "test")
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	r.create(outbox.Live, 1000, 1000+n)
	r.until(n, "evaluation_result WHERE version_id = 'elsewhere'")
}
