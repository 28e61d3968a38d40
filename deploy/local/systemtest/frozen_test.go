package systemtest

import (
	"syscall"
	"testing"
	"time"

	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// A worker is frozen in the middle of a transaction, with its locks held. Whoever waits for them waits for seconds:
// clients can create the same ticket, and another worker takes the work over. When the frozen one goes on, it does no
// harm.
func TestFrozenInATransaction(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lock, there string
		unknown     int
	}{
		"claim":  {"LOCK TABLE model_call IN SHARE MODE", waitingFor("ClaimWithin"), 0},
		"settle": {"LOCK TABLE evaluation_result IN SHARE MODE", waitingFor("SaveResults"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSystem(t, options{version: patientVersion, metered: true})
			first := s.create("hello").GetId()
			lock := s.hold(test.lock)
			frozen := s.worker(leaseInMatrix)
			s.untilSome(test.there)
			if err := frozen.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			killed := s.openCalls()
			s.letGo(lock)
			began := time.Now()
			second := s.create("hello").GetId()
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("creating the same ticket took %s", took)
			}
			s.worker(leaseInMatrix)
			s.until(1, "evaluation_result")
			s.until(0, "evaluation_outbox")
			if err := frozen.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			third := s.create("goodbye").GetId()
			s.until(2, "evaluation_result")
			for _, id := range []string{first, second, third} {
				if e := s.get(id).GetEvaluation(); e.GetState() != ticketv1.Evaluation_SUCCEEDED {
					t.Errorf("evaluation is %s", e)
				}
			}
			s.stop(frozen) // what it has is written
			if n := s.count("model_call WHERE outcome = 'unknown' OR late"); n != test.unknown {
				t.Errorf("%d calls were taken for lost, want %d", n, test.unknown)
			}
			s.promises(killed)
		})
	}
}
