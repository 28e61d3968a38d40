package systemtest

import (
	"context"

	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// unsent is the outcome of a call that no worker reports: giving work back closes it so.
const unsent ledger.Outcome = "unsent"

// call is one row of our ledger, with the provider's entry of the same call.
type call struct {
	key      string
	outcome  ledger.Outcome
	status   int   // of the response, as we have it
	input    int64 // tokens; -1 when not known
	output   int64
	isResult bool // its answer is the result of its key
	received *providersim.Entry
}

// accounts compares the two ledgers call by call and returns ours. A request that was received has one row, which it
// names; a response that we have is one that the provider has sent; a call that never left is unknown to the provider.
// Only what became of a call of unknown outcome cannot be told from our side alone.
func (s *system) accounts() map[string]*call {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.sim.WaitIdle(ctx); err != nil {
		s.t.Fatal(err)
	}
	rows, err := s.db.Query(ctx, `
SELECT m.id::text, m.idempotency_key, m.outcome, coalesce(m.http_status, 0), coalesce(m.input_tokens, -1), coalesce(m.output_tokens, -1),
       EXISTS (SELECT FROM evaluation_result r WHERE r.model_call_id = m.id)
FROM model_call m`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	calls := map[string]*call{}
	for rows.Next() {
		var id string
		var c call
		if err := rows.Scan(&id, &c.key, &c.outcome, &c.status, &c.input, &c.output, &c.isResult); err != nil {
			s.t.Fatal(err)
		}
		calls[id] = &c
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	contents := map[string]providersim.Fingerprint{}
	for _, entry := range s.sim.Ledger(0) {
		id := entry.Headers["x-client-request-id"]
		c, ok := calls[id]
		switch {
		case !ok:
			s.t.Errorf("the provider received request %d as call %q, which the ledger does not have", entry.Seq, id)
			continue
		case c.received != nil:
			s.t.Errorf("call %s was sent twice, as requests %d and %d", id, c.received.Seq, entry.Seq)
		}
		c.received = &entry
		if entry.Attempt == 0 {
			continue // its sender was killed while it wrote
		}
		if content, seen := contents[c.key]; seen && content != entry.Content {
			s.t.Errorf("call %s asks for another content than an earlier call of key %s", id, c.key)
		}
		contents[c.key] = entry.Content
	}
	if distinct := s.sim.Stats().DistinctContents; distinct > len(contents) {
		s.t.Errorf("%d keys for %d contents", len(contents), distinct)
	}
	for id, c := range calls {
		answer := c.outcome == ledger.Answered || c.outcome == ledger.Rejected || c.outcome == ledger.Saved
		switch {
		case c.outcome == unsent && c.received != nil:
			s.t.Errorf("call %s is on record as never sent, and was received", id)
		case (answer || c.status != 0) && (c.received == nil || c.received.Status != c.status):
			s.t.Errorf("call %s is %s with status %d; of the provider's it is %+v", id, c.outcome, c.status, c.received)
		case answer && !c.received.Billed:
			s.t.Errorf("call %s is %s, and not billed", id, c.outcome)
		case c.outcome == ledger.Answered && (c.input != c.received.InputTokens || c.output != c.received.OutputTokens):
			s.t.Errorf("call %s is on record with %d and %d tokens, and billed with %d and %d", id, c.input, c.output, c.received.InputTokens, c.received.OutputTokens)
		}
	}
	return calls
}

// wasted are the calls that were paid for and brought nothing: neither the result of their key, nor a verdict on it.
func wasted(calls map[string]*call) []string {
	var ids []string
	for id, c := range calls {
		if c.received != nil && c.received.Billed && !c.isResult && c.outcome != ledger.Rejected {
			ids = append(ids, id)
		}
	}
	return ids
}
