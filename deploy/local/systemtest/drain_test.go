package systemtest

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/deploy/local/stack"
)

// drain waits until every evaluation is done and every webhook delivered, and lets no delay be in the way. When nothing goes
// on, the processes are asked why.
func (s *system) drain(processes ...*stack.Process) {
	s.t.Helper()
	s.dwindle("evaluation_outbox WHERE status <> 'dead'", processes, func() {
		s.due()
		s.exec("UPDATE provider_route SET not_before = now() WHERE not_before > now()")
	})
	s.dwindle("webhook_delivery WHERE state <> 'delivered'", processes, func() {
		s.exec("UPDATE webhook_delivery SET available_at = created_at WHERE state = 'pending' AND available_at > now()")
		s.exec("UPDATE webhook_endpoint SET not_before = 'epoch' WHERE not_before > now()")
	})
}

// dwindle waits until a query counts nothing, for as long as it counts less and less.
func (s *system) dwindle(what string, processes []*stack.Process, hurry func()) {
	s.t.Helper()
	for least, since := s.count(what), time.Now(); least != 0; {
		hurry()
		if n := s.count(what); n < least {
			least, since = n, time.Now()
		}
		if time.Since(since) > patience {
			s.report(processes)
			s.t.Fatalf("%s: %d, and no fewer for %s", what, least, patience)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// report tells of a system that does not go on.
func (s *system) report(processes []*stack.Process) {
	s.t.Helper()
	for _, query := range []string{
		"SELECT status, lane, last_class, last_reason, count(*) AS n, min(available_at) - now() AS due, min(locked_until) - now() AS locked FROM evaluation_outbox GROUP BY 1, 2, 3, 4",
		"SELECT * FROM provider_route",
		"SELECT state, wait_event_type, now() - xact_start AS age, pg_blocking_pids(pid) AS behind, application_name, left(query, 60) AS query FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'",
	} {
		rows, err := s.db.Query(s.t.Context(), "SELECT row_to_json(q)::text FROM ("+query+") q")
		if err != nil {
			s.t.Error(err)
			continue
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			s.t.Error(err)
		}
		s.t.Logf("%s:\n%s", query, strings.Join(lines, "\n"))
	}
	for _, p := range processes {
		s.t.Logf("%s:\n%s", p.Name, p.LogTail())
	}
}
