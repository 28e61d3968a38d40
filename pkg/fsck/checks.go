package fsck

import (
	"context"

	"github.com/evalonce/evalonce/pkg/fsck/internal/fscksql"
)

// Check is one promise as a statement: its SQL, in query.sql, finds what contradicts it.
type Check struct {
	Name    string
	Promise string
	Note    bool // what it finds is worth a look, and contradicts nothing
}

// Checks returns all checks, in the order they are made in.
func Checks() []Check {
	var list []Check
	for _, c := range checks() {
		list = append(list, c.Check)
	}
	return list
}

type check struct {
	Check
	run func(ctx context.Context, q *fscksql.Queries, examples int32) (Finding, error)
}

func checks() []check {
	return []check{
		promise("ticket_without_work", "every ticket has, under some version, work or a result",
			(*fscksql.Queries).TicketWithoutWork),
		promise("request_without_ticket", "a client's request names a ticket of that client",
			(*fscksql.Queries).RequestWithoutTicket),

		promise("response_bought_again", "once a response has arrived, its key is never asked for again, unless it was no answer and an operator recalls it",
			(*fscksql.Queries).ResponseBoughtAgain),
		promise("paid_twice", "of the responses of a key between two recalls, all but one came late, when their calls had been taken for lost",
			(*fscksql.Queries).PaidTwice),
		promise("paid_too_often", "the calls of a key that are paid, or may be, between two recalls, are at most one more than its version allows unknown ones",
			(*fscksql.Queries).PaidTooOften),
		promise("unknown_calls_differ", "work counts the calls of unknown outcome that the ledger has of it",
			(*fscksql.Queries).UnknownCallsDiffer),
		promise("open_call_without_lease", "an open call belongs to the lease that its work is held by",
			(*fscksql.Queries).OpenCallWithoutLease),
		promise("lease_without_call", "leased work has its open call in the ledger, or a response already",
			(*fscksql.Queries).LeaseWithoutCall),
		promise("lease_with_two_calls", "a lease is good for one call",
			(*fscksql.Queries).LeaseWithTwoCalls),
		promise("attempt_out_of_bounds", "a call is one of the attempts that its version allows",
			(*fscksql.Queries).AttemptOutOfBounds),
		promise("recall_without_replay", "a call is recalled when it is over, by a replay in mode recall that was made since",
			(*fscksql.Queries).RecallWithoutReplay),
		promise("call_without_evaluation", "a call belongs to work or a result of its key and version",
			(*fscksql.Queries).CallWithoutEvaluation),

		promise("response_lost", "a saved response is whole, and its key has work that will judge it or a result",
			(*fscksql.Queries).ResponseLost),
		promise("answer_without_result", "an answered call has made a result",
			(*fscksql.Queries).AnswerWithoutResult),
		promise("dead_beside_result", "an answered key is in no dead letter",
			(*fscksql.Queries).DeadBesideResult),
		promise("dead_without_cause", "a dead letter has class, reason and time, and in the ledger a call that ended",
			(*fscksql.Queries).DeadWithoutCause),
		promise("work_without_text", "work that is due or under way names a ticket that has its text",
			(*fscksql.Queries).WorkWithoutText),
		promise("dead_by_outage", "no rate limit, wrong credentials or exhausted quota makes a dead letter",
			(*fscksql.Queries).DeadByOutage),
		promise("unroutable_work", "work waits on the route of its version",
			(*fscksql.Queries).UnroutableWork),

		promise("key_differs", "the key of work and results is that of their content under their version",
			(*fscksql.Queries).KeyDiffers),
		promise("content_differs", "work and results have the content of the ticket they name",
			(*fscksql.Queries).ContentDiffers),
		promise("result_without_answer", "a result names the answered call, of its key and version, that it came from",
			(*fscksql.Queries).ResultWithoutAnswer),
		promise("answer_off_contract", "a result has a department and the prompt version of its version, and a policy",
			(*fscksql.Queries).AnswerOffContract),
		promise("active_version_differs", "the active version is the one promoted last",
			(*fscksql.Queries).ActiveVersionDiffers),
		promise("active_policy_differs", "the active policy is the one activated last",
			(*fscksql.Queries).ActivePolicyDiffers),
		promise("held_for_nobody", "work is held back by a job that may let it go",
			(*fscksql.Queries).HeldForNobody),

		promise("charge_differs", "a call that is over is charged what it cost, and one that may be paid the worst case",
			(*fscksql.Queries).ChargeDiffers),
		promise("spend_differs", "what is spent in a period is the sum of what its calls are charged",
			(*fscksql.Queries).SpendDiffers),

		promise("webhook_forgotten", "an endpoint that listens is told of each ticket's first answer",
			(*fscksql.Queries).WebhookForgotten),
		promise("webhook_dead_letter_forgotten", "an endpoint that listens is told of each ticket in the dead letters of the active version",
			(*fscksql.Queries).WebhookDeadLetterForgotten),
		promise("webhook_outdated", "the answer that an endpoint was told of last is the active version's, where that has one",
			(*fscksql.Queries).WebhookOutdated),
		promise("webhook_told_twice", "an endpoint is told of one event of a ticket once, and of one first answer",
			(*fscksql.Queries).WebhookToldTwice),
		promise("webhook_misnumbered", "the events of a ticket for an endpoint are numbered from 1, without gaps",
			(*fscksql.Queries).WebhookMisnumbered),
		promise("webhook_of_no_ticket", "an endpoint is told of tickets of its client, and of no other's",
			(*fscksql.Queries).WebhookOfNoTicket),

		// A late answer may come while another worker holds the key, and an identical ticket at the moment of the
		// answer may make work anew: the next claim finds the result, and deletes the work without a call.
		note("work_beside_result", "an answered key has no work, once its next claim has cleared it away",
			(*fscksql.Queries).WorkBesideResult),
		// A lease expires with its worker, and is reclaimed within seconds where another lives, else by the sweeper.
		note("lease_expired", "leases are extended by their worker or reclaimed",
			(*fscksql.Queries).LeaseExpired),
		note("webhook_lease_expired", "leases of deliveries are extended by their worker or reclaimed",
			(*fscksql.Queries).WebhookLeaseExpired),
		// More calls than the limit are those that were claimed before it was set, or lowered.
		note("calls_over_limit", "a route has no more calls under way than it allows",
			(*fscksql.Queries).CallsOverLimit),
		// A late response that could not be made a result at once, of a key that got another answer or a verdict.
		note("response_unused", "a saved response is judged, unless its key is answered or dead",
			(*fscksql.Queries).ResponseUnused),
		note("text_left", "of a content whose tickets are all erased no response is left",
			(*fscksql.Queries).TextLeft),
		note("call_in_default_partition", "the ledger has a partition for every month that it has calls of",
			(*fscksql.Queries).CallInDefaultPartition),
		note("model_substituted", "the model that was asked for is the one that answered",
			(*fscksql.Queries).ModelSubstituted),
	}
}

// row is what each query returns, under a name of its own.
type row interface {
	~struct {
		ID    string
		Count int64
	}
}

func promise[R row](name, text string, query func(*fscksql.Queries, context.Context, int32) ([]R, error)) check {
	return check{
		Check: Check{Name: name, Promise: text},
		run: func(ctx context.Context, q *fscksql.Queries, examples int32) (Finding, error) {
			rows, err := query(q, ctx, examples)
			if err != nil {
				return Finding{}, err
			}
			var f Finding
			for _, r := range rows {
				found := struct {
					ID    string
					Count int64
				}(r)
				f.Count = int(found.Count)
				f.Examples = append(f.Examples, found.ID)
			}
			return f, nil
		},
	}
}

func note[R row](name, text string, query func(*fscksql.Queries, context.Context, int32) ([]R, error)) check {
	c := promise(name, text, query)
	c.Note = true
	return c
}
