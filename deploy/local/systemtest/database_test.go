package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

// The database crashes, as after a power failure of its own, in the middle of each transaction and of a call. The
// processes live through it: nothing is stored twice, and nothing is paid twice.
func TestDatabaseCrashes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// hold makes the database stop in the middle; what it holds back ends with the crash.
		hold func(s *system)
		// there waits until it has.
		there func(s *system)
	}{
		"create": {
			hold:  func(s *system) { s.holdCommitsOf("ticket") },
			there: func(s *system) { s.untilSome(waitingAtCommit) },
		},
		"claim": {
			hold:  func(s *system) { s.hold("LOCK TABLE model_call IN SHARE MODE") },
			there: func(s *system) { s.untilSome(waitingFor("Claim")) },
		},
		"commit of a claim": {
			hold:  func(s *system) { s.holdCommitsOf("model_call") },
			there: func(s *system) { s.untilSome(waitingAtCommit) },
		},
		"call": {
			hold: func(s *system) {
				if err := s.sim.AddRules(hangAtFirst...); err != nil {
					s.t.Fatal(err)
				}
			},
			there: func(s *system) { s.hanging(8) },
		},
		"settle": {
			hold:  func(s *system) { s.hold("LOCK TABLE evaluation_result IN SHARE MODE") },
			there: func(s *system) { s.untilSome(waitingFor("SaveResults")) },
		},
		"commit of a settlement": {
			hold:  func(s *system) { s.holdCommitsOf("evaluation_result") },
			there: func(s *system) { s.untilSome(waitingAtCommit) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.NewServer(t, pgtest.Options{})
			database, err := server.NewDatabase(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s := startSystem(t, options{database: database, latency: someLatency, version: patientVersion})
			orders := someOrders()
			ids := s.submit(orders[:len(orders)/2])
			test.hold(s)
			s.worker("EVALONCE_LEASE=2m", fewAtOnce)
			rest := make(chan map[string]string, 1)
			go func() { rest <- s.submit(orders[len(orders)/2:]) }()
			test.there(s)
			if err := server.Restart(t.Context(), pgtest.Immediate); err != nil {
				t.Fatal(err)
			}
			s.db.Reset()
			letGo(s)
			for request, id := range <-rest {
				ids[request] = id
			}
			s.conclude(ids, scenario{}, nil)
			if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
				t.Errorf("%d calls of unknown outcome, though their worker lives", n)
			}
		})
	}
}

// Deadlocks and serialization failures, of every statement that writes.
func TestInjectedRollbacks(t *testing.T) {
	t.Parallel()
	s := startSystem(t, options{latency: someLatency, version: patientVersion, metered: true})
	const each = 3
	for _, where := range []string{
		"INSERT ON client_request", "INSERT ON ticket", "INSERT ON evaluation_outbox", "UPDATE ON evaluation_outbox", "DELETE ON evaluation_outbox",
		"INSERT ON model_call", "UPDATE ON model_call", "INSERT ON evaluation_result", "UPDATE ON provider_route", "UPDATE ON spend",
	} {
		name := strings.ToLower(strings.NewReplacer(" ON ", "_", " ", "_").Replace(where))
		s.exec("CREATE SEQUENCE rollback_" + name) // which counts on when a transaction is rolled back
		s.exec(fmt.Sprintf(`
CREATE FUNCTION rollback_%[1]s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE n bigint := nextval('rollback_%[1]s');
BEGIN
  IF n <= %[2]d THEN
    RAISE EXCEPTION 'injected' USING ERRCODE = CASE n %% 2 WHEN 0 THEN '40P01' ELSE '40001' END;
  END IF;
  RETURN NULL;
END
$$`, name, each))
		s.exec(fmt.Sprintf("CREATE TRIGGER rollback_%[2]s AFTER %[1]s FOR EACH STATEMENT EXECUTE FUNCTION rollback_%[2]s()", where, name))
	}
	s.worker("EVALONCE_LEASE=2m", fewAtOnce)
	s.conclude(s.submit(someOrders()), scenario{}, nil)
	if n := s.count("pg_sequences WHERE sequencename LIKE 'rollback_%' AND coalesce(last_value, 0) <= $1", each); n != 0 {
		t.Errorf("%d kinds of statement were not rolled back as often as they were to be", n)
	}
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
		t.Errorf("%d calls of unknown outcome", n)
	}
}

// One result among a hundred that the database does not take: the others are written, its response is saved, and it
// is judged again without a call once the database takes it.
func TestOneResultIsRefused(t *testing.T) {
	t.Parallel()
	const all = 100
	s := startSystem(t, options{latency: someLatency, version: patientVersion})
	refused := s.create("refused").GetEvaluation().GetEvaluationKey()
	for n := range all - 1 {
		s.create(text(n))
	}
	s.exec("ALTER TABLE evaluation_result ADD CONSTRAINT not_this CHECK (idempotency_key <> '" + refused + "')")
	s.worker("EVALONCE_LEASE=2m")
	s.until(all-1, "evaluation_result")
	s.until(1, "evaluation_outbox WHERE idempotency_key = $1 AND status = 'pending' AND last_reason = 'result_unsaved'", refused)
	s.exec("ALTER TABLE evaluation_result DROP CONSTRAINT not_this")
	s.due()
	s.until(0, "evaluation_outbox")
	s.check()
	if got := s.sim.Stats().Requests; got != all {
		t.Errorf("%d requests, want %d", got, all)
	}
}

// Somebody takes every connection that the server has, those of the product too. When they are free again everything
// goes on; a response that was in hand is not asked for again.
func TestConnectionsExhausted(t *testing.T) {
	t.Parallel()
	const most = 60
	server := pgtest.NewServer(t, pgtest.Options{Settings: map[string]string{"max_connections": fmt.Sprint(most)}})
	database, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := startSystem(t, options{database: database, latency: someLatency, version: patientVersion, rules: hangAtFirst})
	orders := someOrders()
	ids := s.submit(orders[:len(orders)/2])
	s.worker("EVALONCE_LEASE=2m", fewAtOnce)
	s.hanging(8)

	var taken []*pgx.Conn
	free := func() {
		for _, conn := range taken {
			_ = conn.Close(s.ctx)
		}
		taken = nil
	}
	t.Cleanup(free)
	take := func() error {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err == nil {
			taken = append(taken, conn)
		}
		return err
	}
	for take() == nil { // what is free
	}
	if len(taken) == 0 {
		t.Fatal("no connection was free")
	}
	// The product's own, one by one as it loses them: it tries to come back at the same time.
	product := "FROM pg_stat_activity WHERE datname <> 'postgres' AND application_name <> 'pgtest'"
	deadline := time.Now().Add(patience)
	for left := 1; left > 0; {
		if _, err := taken[0].Exec(t.Context(), "SELECT pg_terminate_backend(pid) "+product); err != nil {
			t.Fatal(err)
		}
		for take() == nil {
		}
		if err := taken[0].QueryRow(t.Context(), "SELECT count(*) "+product).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the product still has %d connections", left)
		}
	}
	rest := make(chan map[string]string, 1)
	go func() { rest <- s.submit(orders[len(orders)/2:]) }()
	letGo(s) // the responses arrive, and cannot be saved
	if err := s.sim.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count("model_call WHERE outcome <> 'open'"); n != 0 {
		t.Errorf("%d calls were closed without a connection", n)
	}
	free()
	for request, id := range <-rest {
		ids[request] = id
	}
	s.conclude(ids, scenario{}, nil)
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
		t.Errorf("%d calls of unknown outcome, though their worker lives", n)
	}
}

// holdCommitsOf makes every COMMIT wait that has written to the table, until the database goes down.
func (s *system) holdCommitsOf(table string) {
	s.t.Helper()
	const lock = 1
	s.exec(fmt.Sprintf(`
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(%d);
  RETURN NULL;
END
$$`, lock))
	s.exec("CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON " + table +
		" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit()")
	s.hold("SELECT pg_advisory_xact_lock($1)", lock)
}

const waitingAtCommit = "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query = 'commit'"

// untilSome waits for a query that counts to find something.
func (s *system) untilSome(what string, args ...any) {
	s.t.Helper()
	s.until(1, "(SELECT FROM "+what+" LIMIT 1) found", args...)
}
