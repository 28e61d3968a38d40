package systemtest

import (
	"slices"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// The connection is lost at COMMIT, and whoever sent it cannot know whether the server committed. Both may be: every
// ticket is stored once and evaluated once all the same, nothing is called twice, and nobody has to wait for a lease
// that belongs to nobody.
func TestCommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		statement string
		metered   bool
	}{
		"create":          {"InsertTickets", false}, // ticket-api; clients come again with the same request id
		"claim":           {"Claim", false},         // the worker does not know its leases
		"claim in budget": {"UsePermit", true},      // nor what they are charged
		"settle":          {"SaveResults", true},    // the worker writes again what may be written
	} {
		for outcome, committed := range map[string]bool{"committed": true, "not committed": false} {
			t.Run(name+" "+outcome, func(t *testing.T) {
				t.Parallel()
				const times = 3
				database := pgtest.URL(t)
				p := newProxy(t, database)
				s := startSystem(t, options{database: database, through: p.address, latency: someLatency, version: patientVersion, metered: test.metered})
				cut := treatment{statement: test.statement, fate: cutBefore}
				if committed {
					cut.fate = cutAfter
				}
				done := p.treat(slices.Repeat([]treatment{cut}, times)...)
				// No lease of these may expire in the test.
				s.worker("EVALONCE_LEASE=2m", fewAtOnce)
				ids := s.submit(someOrders())
				select {
				case <-done:
				case <-time.After(patience):
					t.Fatal("no connection was cut")
				}
				s.conclude(ids, scenario{}, nil)
				if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
					t.Errorf("%d calls of unknown outcome: they had not left, or their responses were here", n)
				}
			})
		}
	}
}

// A claim on one route is committed and its answer on the way, while a claim on another has lost its answer. The worker
// gives back what it does not know of, and not what it is about to learn.
func TestStraysAreNotThoseOfAnotherClaim(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	p := newProxy(t, database)
	s := startSystem(t, options{database: database, through: p.address, latency: someLatency, version: patientVersion})
	other := s.version
	other.ID, other.Prompt, other.Route = "v2", "Sort it again.", "other"
	s.register(other)
	ids := s.submit(someOrders())
	if err := s.reprocess(t.Context(), other); err != nil {
		t.Fatal(err)
	}

	// Whichever route is first.
	answer := make(chan struct{})
	done := p.treat(
		treatment{statement: "Claim", fate: holdBack, until: answer},
		treatment{statement: "Claim", fate: cutAfter},
	)
	s.worker("EVALONCE_LEASE=2m", fewAtOnce)
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("no connection was cut")
	}
	// Long enough for a worker that looks at once: it has to wait for the claim that is under way.
	soon := time.After(time.Second)
	for waiting := true; waiting && s.count("model_call WHERE outcome = 'unsent'") == 0; {
		select {
		case <-soon:
			waiting = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	close(answer)
	s.until(0, "evaluation_outbox")
	s.ended(ids, "")
	if n := s.count("evaluation_result"); n != 2*contents {
		t.Errorf("%d results, want %d", n, 2*contents)
	}
	if n := s.count("(SELECT DISTINCT version_id FROM model_call WHERE outcome = 'unsent') given_back"); n != 1 {
		t.Errorf("work of %d claims was given back, want that of one", n)
	}
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
		t.Errorf("%d calls of unknown outcome", n)
	}
	s.promises(nil)
}

// A lease is left to expire, because the database refuses whatever the worker writes of it. When the worker then looks
// for strays, that one is none: its call has left.
func TestStrayIsNoLeaseThatWasLeft(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	p := newProxy(t, database)
	s := startSystem(t, options{
		database: database, through: p.address, version: patientVersion,
		rules: []providersim.Rule{{Match: providersim.Match{Text: "left", Attempt: 1}, Action: providersim.Action{Close: providersim.CloseAfterAnswer}}},
	})
	left := s.create("left")
	s.exec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '23514'; END $$")
	s.exec("CREATE TRIGGER refuse BEFORE UPDATE ON evaluation_outbox FOR EACH ROW WHEN (NEW.status <> 'processing' AND NEW.idempotency_key = '" +
		left.GetEvaluation().GetEvaluationKey() + "') EXECUTE FUNCTION refuse()")
	w := s.worker("EVALONCE_LEASE=5s")
	s.untilLogged(w, "cannot write a result")
	done := p.treat(treatment{statement: "Claim", fate: cutAfter})
	stray := s.create("stray")
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("no connection was cut")
	}
	s.until(1, "evaluation_result")
	if n := s.count("model_call WHERE idempotency_key = $1 AND outcome = 'unsent'", stray.GetEvaluation().GetEvaluationKey()); n != 1 {
		t.Errorf("%d calls of the stray lease are given back, want 1", n)
	}
	killed := s.openCalls()
	s.exec("DROP TRIGGER refuse ON evaluation_outbox")
	s.until(2, "evaluation_result")
	if n := s.count("model_call WHERE idempotency_key = $1 AND outcome = 'unknown'", left.GetEvaluation().GetEvaluationKey()); n != 1 {
		t.Errorf("%d calls of the lease that was left are of unknown outcome, want 1", n)
	}
	s.promises(killed)
}
