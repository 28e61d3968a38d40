package systemtest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/evalonce/evalonce/deploy/local/stack"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// Two sweepers and two workers take the leases of a killed worker back at the same time: each lease once, each lost
// call counted once, and each of them sent again once.
func TestReclaimedByAllAtOnce(t *testing.T) {
	t.Parallel()
	const lost = 400
	s := startSystem(t, options{rules: hangAtFirst, version: patientVersion})
	requests := make([]*ticketv1.CreateTicketRequest, lost)
	for n := range requests {
		requests[n] = &ticketv1.CreateTicketRequest{Subject: "Help", Message: fmt.Sprintf("lost <%d>", n)}
	}
	if _, err := s.api.BatchCreateTickets(s.ctx, &ticketv1.BatchCreateTicketsRequest{Requests: requests}); err != nil {
		t.Fatal(err)
	}
	many := fmt.Sprintf("EVALONCE_CONCURRENCY=%d", lost)
	victim := s.worker(many)
	s.hanging(lost)
	s.kill(victim)
	killed := s.openCalls()
	letGo(s)
	// Half of the leases cannot be taken back by whoever comes first.
	lock := s.hold("SELECT FROM evaluation_outbox WHERE idempotency_key < '8' FOR UPDATE")
	s.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 ms' WHERE idempotency_key >= '8'")
	var all []*stack.Process
	for range 2 {
		sweeper, err := s.stack.StartSweeper(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sweeper, s.worker(many))
	}
	s.until(0, "evaluation_outbox WHERE status = 'processing' AND idempotency_key >= '8' AND locked_until < now()")
	s.letGo(lock)
	s.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 ms' WHERE status = 'processing' AND lease_id IN (SELECT lease_id FROM model_call WHERE id::text = ANY ($1))",
		slices.Collect(maps.Keys(killed)))
	s.until(lost, "evaluation_result")
	s.until(0, "evaluation_outbox")
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != lost {
		t.Errorf("%d calls of unknown outcome, want %d", n, lost)
	}
	told := 0
	for _, p := range all {
		told += unknownCalls(t, p)
	}
	if told != lost {
		t.Errorf("those who reclaimed tell of %d lost calls, want %d", told, lost)
	}
	s.check()
	s.promises(killed)
}

// unknownCalls sums up what a sweeper or a worker has logged of the calls that it took for lost.
func unknownCalls(t *testing.T, p *stack.Process) (sum int) {
	t.Helper()
	log, err := p.Log()
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`"unknown_calls":(\d+)`).FindAllStringSubmatch(log, -1) {
		n, err := strconv.Atoi(match[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
