package systemtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/providersim"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// scenariosAtOnce is for two cores: most of a scenario's time is spent in waiting for leases.
const scenariosAtOnce = 4

// scenario is one death. Everything but the point may stay empty.
type scenario struct {
	name  string           // beside the point's, where a point has several
	at    crashpoint.Point // empty for a kill from outside
	nth   int              // passing; 1 when 0
	rules []providersim.Rule
	// prepare makes what the victim needs to come to the point. Half of the tickets are stored by then, and nothing of
	// them is done. It returns the calls that it has killed.
	prepare func(s *system) (killed map[string]bool)
	// drive leads the victim to its point; work alone does where it is nil.
	drive func(s *system, victim *stack.Process)
	// heal takes away what would keep the survivors from finishing.
	heal    func(s *system)
	metered bool   // on a route with limits and a budget
	dead    string // the message whose tickets end as a dead letter, of a refusal
}

const (
	leaseInMatrix = "EVALONCE_LEASE=3s"
	fewAtOnce     = "EVALONCE_CONCURRENCY=8"
)

// The crash matrix: for every crash point, the process that comes there dies by SIGKILL, a healthy one takes its
// place, and in the end every ticket has its one evaluation. What was paid for without a result are calls that were
// under way at the death, and none beside: no call that had not begun, and none whose response was saved.
func TestCrashMatrix(t *testing.T) {
	crashing(t) // built before anybody's clock runs
	t.Parallel()
	scenarios := map[string]func(t *testing.T){}
	covered := map[crashpoint.Point]bool{}
	add := func(run func(*testing.T, scenario), list []scenario) {
		for _, c := range list {
			covered[c.at] = true
			scenarios[strings.TrimSpace(string(c.at)+" "+c.name)] = func(t *testing.T) { run(t, c) }
		}
	}
	add(killTicketAPI, creating())
	add(killWorker, slices.Concat(claiming(), calling(), settling(), upkeeping(), stopping()))
	add(killSweeper, sweeping())
	add(killDelivery, delivering())
	for _, p := range crashpoint.All() {
		if !covered[p] {
			t.Errorf("no scenario kills at %s", p)
		}
	}
	var g errgroup.Group
	g.SetLimit(scenariosAtOnce)
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		g.Go(func() error {
			t.Run(name, scenarios[name]) // not parallel: the group says how many run
			return nil
		})
	}
	_ = g.Wait()
}

func creating() []scenario {
	return []scenario{
		{at: crashpoint.CreateBegun, nth: 3},
		{at: crashpoint.CreateReserved, nth: 3},
		{at: crashpoint.CreateInserted, nth: 3},
		{at: crashpoint.CreateEnqueued, nth: 3},
		{at: crashpoint.CreateCommitted, nth: 3},
	}
}

// killTicketAPI kills the ticket-api while a worker works and clients insist.
func killTicketAPI(t *testing.T, c scenario) {
	s := startSystem(t, options{
		bin: crashing(t), rules: c.rules, latency: someLatency, version: patientVersion,
		api: []string{fmt.Sprintf("%s%s:%d", crashAt, c.at, max(c.nth, 1))},
	})
	s.worker(leaseInMatrix, fewAtOnce)
	ids := make(chan map[string]string, 1)
	go func() { ids <- s.submit(someOrders()) }()
	s.died(s.server.Process, c.at)
	s.restartAPI()
	s.conclude(<-ids, c, nil)
}

func claiming() []scenario {
	return []scenario{
		{at: crashpoint.ClaimLeased},
		{at: crashpoint.ClaimLeased, name: "later", nth: 3},
		{at: crashpoint.ClaimLeased, name: "metered", nth: 3, metered: true},
		{at: crashpoint.ClaimCharged, nth: 3, metered: true},
		{at: crashpoint.ClaimCommitted},
		{at: crashpoint.ClaimCommitted, name: "later", nth: 3},
		{at: crashpoint.ClaimCommitted, name: "metered", nth: 3, metered: true},
		{at: crashpoint.ClaimBegun},
		{at: crashpoint.ClaimBegun, name: "later", nth: 3},
		{at: crashpoint.ProbeBegun, prepare: openRoute},
		{at: crashpoint.KnownAnswered, prepare: workBesideResults},
		{at: crashpoint.KnownSaved, nth: 3, prepare: savedResponses},
		{at: crashpoint.KnownJudged, nth: 3, prepare: savedResponses, metered: true},
	}
}

func calling() []scenario {
	return []scenario{
		{at: crashpoint.CallSending, nth: 12},
		{
			name: "call under way", rules: hangAtFirst,
			drive: func(s *system, victim *stack.Process) {
				s.hanging(8)
				s.kill(victim)
			},
			heal: letGo,
		},
		{at: crashpoint.CallReturned, nth: 12},
	}
}

func settling() []scenario {
	return []scenario{
		{at: crashpoint.SettleTripped, rules: failAtFirst, heal: letGo},
		{at: crashpoint.SettleReported, nth: 2},
		{at: crashpoint.SettleReported, name: "of a probe", prepare: openRoute},
		{at: crashpoint.SettleBegun, nth: 2},
		{at: crashpoint.SettleFinished, nth: 2},
		{at: crashpoint.SettlePutBack, rules: failOnce(text(3))},
		{at: crashpoint.SettleBuried, rules: refuse(text(3)), dead: text(3), metered: true},
		{at: crashpoint.SettleClosed, nth: 2},
		{at: crashpoint.SettleSaved, nth: 2},
		{at: crashpoint.SettleSaved, name: "metered", nth: 2, metered: true},
		{at: crashpoint.SettleCharged, nth: 2, metered: true},
		{at: crashpoint.SettleCommitted, nth: 2},
		{at: crashpoint.KeepBegun, nth: 3, prepare: refuseResults, heal: acceptResults},
		{at: crashpoint.KeepCommitted, nth: 3, prepare: refuseResults, heal: acceptResults, metered: true},
	}
}

func upkeeping() []scenario {
	slow := []providersim.Rule{{Match: providersim.Match{Attempt: 1}, Action: providersim.Action{Latency: 2 * time.Second}}}
	return []scenario{
		{at: crashpoint.HeartbeatBegun, rules: slow, heal: letGo},
		{at: crashpoint.HeartbeatExtended, rules: slow, heal: letGo},
		{at: crashpoint.ReclaimBegun, rules: hangAtFirst, prepare: killAnother},
		{at: crashpoint.ReclaimCommitted, rules: hangAtFirst, prepare: killAnother, metered: true},
	}
}

func stopping() []scenario {
	return []scenario{
		stoppedInClaim(crashpoint.StopGivingBack),
		stoppedInClaim(crashpoint.SettleReleased),
		{
			at: crashpoint.StopDrained, rules: hangAtFirst,
			drive: func(s *system, victim *stack.Process) {
				s.hanging(8)
				s.terminate(victim)
				s.sim.Release()
			},
			heal: letGo,
		},
	}
}

// killWorker kills a worker, starts another, and lets clients go on all the while.
func killWorker(t *testing.T, c scenario) {
	s := startSystem(t, options{bin: crashing(t), rules: c.rules, latency: someLatency, version: patientVersion, metered: c.metered})
	orders := someOrders()
	ids := s.submit(orders[:len(orders)/2])
	killed := map[string]bool{}
	if c.prepare != nil {
		killed = c.prepare(s)
	}
	env := []string{leaseInMatrix, fewAtOnce}
	if c.at != "" {
		env = append(env, fmt.Sprintf("%s%s:%d", crashAt, c.at, max(c.nth, 1)))
	}
	victim := s.launchWorker("victim", env...)
	rest := make(chan map[string]string, 1)
	go func() { rest <- s.submit(orders[len(orders)/2:]) }()
	if c.drive != nil {
		c.drive(s, victim)
	}
	if c.at != "" {
		s.died(victim, c.at)
	}
	open := s.openCalls()
	if c.heal != nil {
		c.heal(s)
	}
	s.expire()
	s.worker(leaseInMatrix, fewAtOnce)
	maps.Copy(ids, <-rest)
	maps.Copy(open, killed)
	s.conclude(ids, c, open)
}

func sweeping() []scenario {
	var list []scenario
	for _, p := range crashpoint.All() {
		if strings.HasPrefix(string(p), "sweep.") {
			list = append(list, scenario{at: p, rules: hangAtFirst, prepare: disorder, metered: true})
		}
	}
	return list
}

// killSweeper kills the sweeper amid everything that it may find, and lets another sweep.
func killSweeper(t *testing.T, c scenario) {
	s := startSystem(t, options{bin: crashing(t), rules: c.rules, latency: someLatency, version: patientVersion, metered: c.metered})
	ids := s.submit(someOrders())
	killed := c.prepare(s)
	victim, err := s.stack.StartSweeper(t.Context(), time.Minute, fmt.Sprintf("%s%s:%d", crashAt, c.at, max(c.nth, 1)))
	if err != nil {
		t.Fatal(err)
	}
	s.died(victim, c.at)
	s.until(0, "pg_stat_activity WHERE datname = current_database() AND application_name = 'sweeper'") // a sweep waits for no lock
	if _, err := s.stack.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count("evaluation_outbox WHERE status = 'processing'"); n != 0 {
		t.Errorf("%d leases of nobody are left", n)
	}
	if n := s.count("client_request WHERE expires_at <= now()"); n != 0 {
		t.Errorf("%d expired requests are left", n)
	}
	if n := s.count("pg_class WHERE relname = " + nextPartition); n != 1 {
		t.Error("the ledger has no partition for the next month")
	}
	s.worker(leaseInMatrix, fewAtOnce)
	s.conclude(ids, c, killed)
}

// conclude waits for the end of all work, and holds it against what was promised. Killed are the calls that were
// under way when a process died.
func (s *system) conclude(ids map[string]string, c scenario, killed map[string]bool) {
	s.t.Helper()
	s.until(0, "evaluation_outbox WHERE status <> 'dead'")
	if got := s.count("ticket"); got != ordersPerTest || len(ids) != ordersPerTest {
		s.t.Errorf("%d tickets and %d accepted requests, want %d", got, len(ids), ordersPerTest)
	}
	want := contents
	if c.dead != "" {
		want--
	}
	if got := s.count("evaluation_result"); got != want {
		s.t.Errorf("%d results, want %d", got, want)
	}
	s.ended(ids, c.dead)
	s.promises(killed)
}

// ended wants an answer for each ticket, but for those of a message that the model refuses.
func (s *system) ended(ids map[string]string, refused string) {
	s.t.Helper()
	for request, id := range ids {
		ticket := s.get(id)
		e := ticket.GetEvaluation()
		switch {
		case refused != "" && ticket.GetMessage() == refused:
			if e.GetState() != ticketv1.Evaluation_DEAD_LETTER || e.GetDeadLetter().GetReason() != "refusal" {
				s.t.Errorf("the ticket of %s is %s", request, e)
			}
		case e.GetState() != ticketv1.Evaluation_SUCCEEDED || e.GetAnswer().GetDepartment() == "":
			s.t.Errorf("the ticket of %s is %s", request, e)
		}
	}
}

// promises wants every promise kept, both ledgers to tell of the same calls, and nothing to be paid for in vain but
// calls that were under way when a process was killed.
func (s *system) promises(killed map[string]bool) {
	s.t.Helper()
	fscktest.Require(s.t, s.db)
	for _, id := range wasted(s.accounts()) {
		if !killed[id] {
			s.t.Errorf("call %s was paid for in vain, and was not under way when a process was killed", id)
		}
	}
}

var someLatency = providersim.Latency{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}

// patientVersion is not what a scenario is about: it ends nothing early.
func patientVersion(v *evaluation.Version) { v.MaxAttempts = 8 }

var failAtFirst = []providersim.Rule{{Match: providersim.Match{Attempt: 1}, Action: providersim.Action{Error: providersim.ServerError500}}}

var hangAtFirst = []providersim.Rule{{Match: providersim.Match{Attempt: 1}, Action: hang}}

func failOnce(message string) []providersim.Rule {
	return []providersim.Rule{{Match: providersim.Match{Text: message, Attempt: 1}, Action: providersim.Action{Error: providersim.ServerError500}}}
}

func refuse(message string) []providersim.Rule {
	return []providersim.Rule{{Match: providersim.Match{Text: message}, Action: providersim.Action{Answer: providersim.AnswerRefusal}}}
}

func letGo(s *system) {
	s.sim.ClearRules()
	s.sim.Release()
}

// openRoute makes the next call the route's probe. A probe that is lost is up for another after two deadlines.
func openRoute(s *system) map[string]bool {
	s.exec("UPDATE provider_route SET state = 'open', reason = 'server_error', not_before = now(), call_timeout = interval '1 s'")
	return nil
}

// workBesideResults makes work of what is answered already, as a follower at the moment of the answer does.
func workBesideResults(s *system) map[string]bool {
	first := s.worker(leaseInMatrix, fewAtOnce)
	s.until(0, "evaluation_outbox")
	s.stop(first)
	s.exec(`INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
SELECT idempotency_key, content_hash, ticket_id, version_id, 'main', 'live' FROM evaluation_result`)
	return nil
}

func refuseResults(s *system) map[string]bool {
	s.exec("ALTER TABLE evaluation_result ADD CONSTRAINT not_now CHECK (version_id <> 'v1')")
	return nil
}

func acceptResults(s *system) {
	s.exec("ALTER TABLE evaluation_result DROP CONSTRAINT not_now")
	s.due()
}

// savedResponses makes work whose responses are saved and not judged.
func savedResponses(s *system) map[string]bool {
	refuseResults(s)
	first := s.worker(leaseInMatrix, fewAtOnce)
	s.until(0, "evaluation_outbox o WHERE NOT EXISTS (SELECT FROM model_call m WHERE m.idempotency_key = o.idempotency_key AND m.outcome = 'saved')")
	s.stop(first)
	acceptResults(s)
	return nil
}

// killAnother leaves expired leases behind, with calls that had left.
func killAnother(s *system) map[string]bool {
	first := s.worker(leaseInMatrix, fewAtOnce)
	s.hanging(8)
	s.kill(first)
	open := s.openCalls()
	letGo(s)
	s.expire()
	return open
}

// stoppedInClaim tells the worker to stop while the database holds its claim up.
func stoppedInClaim(at crashpoint.Point) scenario {
	var lock pgx.Tx
	return scenario{
		at: at, metered: true,
		prepare: func(s *system) map[string]bool {
			lock = s.hold("LOCK TABLE model_call IN SHARE MODE")
			return nil
		},
		drive: func(s *system, victim *stack.Process) {
			s.until(1, waitingFor("ClaimWithin"))
			s.terminate(victim)
			s.letGo(lock)
		},
	}
}

const nextPartition = "'model_call_' || to_char(date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY_MM')"

// disorder makes work for each step of a sweep.
func disorder(s *system) map[string]bool {
	killed := killAnother(s)
	s.exec("DELETE FROM evaluation_outbox WHERE status = 'pending' AND idempotency_key IN (SELECT idempotency_key FROM evaluation_outbox WHERE status = 'pending' LIMIT 5)")
	s.exec("UPDATE client_request SET created_at = now() - interval '2 h', expires_at = now() - interval '1 h'")
	var partition string
	if err := s.db.QueryRow(s.t.Context(), "SELECT "+nextPartition).Scan(&partition); err != nil {
		s.t.Fatal(err)
	}
	s.exec("DROP TABLE " + partition)
	return killed
}

// hold opens a transaction that has locked something.
func (s *system) hold(statement string, args ...any) pgx.Tx {
	s.t.Helper()
	tx, err := s.db.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(s.ctx)) })
	if _, err := tx.Exec(s.t.Context(), statement, args...); err != nil {
		s.t.Fatal(err)
	}
	return tx
}

func (s *system) letGo(tx pgx.Tx) {
	s.t.Helper()
	if err := tx.Rollback(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// waitingFor are the sessions whose statement of that name waits for a lock.
func waitingFor(statement string) string {
	return "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- name: " + statement + " %'"
}

// terminate asks a worker to stop and returns once it has heard: it listens for work no longer.
func (s *system) terminate(p *stack.Process) {
	s.t.Helper()
	listening := "pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN evalonce_work'"
	s.until(1, listening)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	s.until(0, listening)
}

func (s *system) stop(p *stack.Process) {
	s.t.Helper()
	if err := p.Stop(); err != nil {
		s.t.Fatal(err)
	}
}
