package systemtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// Everything that the product does goes through PgBouncer in transaction mode, with far fewer sessions than connections,
// and without a word about it in the settings of the services but of where LISTEN finds the server itself.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for name, listens := range map[string]bool{"LISTEN at the server": true, "polling alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBouncer(t)
			s := b.system()
			r := s.receive(false)
			var workers [2][]string
			for i := range workers {
				workers[i] = webhookEnv(b.as(pgtest.EvaluatorWorker))
				switch {
				case listens:
					workers[i] = append(workers[i], "EVALONCE_DIRECT_DATABASE_URL="+b.direct(pgtest.EvaluatorWorker))
				case i == 0:
					workers[i] = append(workers[i], "EVALONCE_LISTEN=false")
				}
			}
			s.worker(workers[0]...)
			last := s.worker(workers[1]...)
			if !listens {
				s.untilLogged(last, "EVALONCE_DIRECT_DATABASE_URL is not set")
			}

			ids := s.submit(someOrders())
			s.conclude(ids, scenario{}, nil)
			r.told(ids, webhook.Succeeded)

			second := s.version
			second.ID, second.Prompt = "v2", "Sort it again."
			s.register(second)
			s.reprocessUnder(second.ID)
			s.until(2*contents, "evaluation_result")
			s.until(0, "evaluation_outbox")

			s.exec("UPDATE client_request SET created_at = now() - interval '2 h', expires_at = now() - interval '1 h'")
			if out, err := s.stack.Sweep(t.Context(), b.as(pgtest.Sweeper)); err != nil {
				t.Errorf("sweep: %v: %s", err, out)
			}
			if n := s.count("client_request"); n != 0 {
				t.Errorf("the sweep has left %d expired requests", n)
			}
			if out := string(s.evalctlPrints("fsck")); !strings.Contains(out, ": 0 broken, ") {
				t.Errorf("evalctl fsck says %s", out)
			}
			s.promises(nil)

			listening := 0
			if listens {
				listening = len(workers)
			}
			b.shared(listening)
			b.leftNothing()
		})
	}
}

// PgBouncer dies under load, with its connections on both sides, in the middle of claims and settlements and calls.
func TestPgBouncerIsKilled(t *testing.T) {
	t.Parallel()
	b := startBouncer(t)
	s := b.system()
	orders := someOrders()
	ids := s.submit(orders[:len(orders)/2])
	s.worker(b.as(pgtest.EvaluatorWorker), "EVALONCE_LEASE=2m", fewAtOnce)
	rest := make(chan map[string]string, 1)
	go func() { rest <- s.submit(orders[len(orders)/2:]) }()
	for range 3 {
		answered := s.count("evaluation_result")
		s.untilSome("evaluation_result OFFSET $1", min(answered+2, contents-1))
		if err := b.process.Kill(); err != nil {
			t.Fatal(err)
		}
		b.start()
	}
	for request, id := range <-rest {
		ids[request] = id
	}
	s.conclude(ids, scenario{}, nil)
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != 0 {
		t.Errorf("%d calls of unknown outcome, though their worker lives", n)
	}
}

func TestPgBouncerIsRefusedForMigrations(t *testing.T) {
	t.Parallel()
	b := startBouncer(t)
	for command, refused := range map[string]bool{"up": true, "status": true, "wait": false} {
		for range 2 { // whatever the first leaves behind in a session
			out, err := exec.CommandContext(t.Context(), filepath.Join(binaries, "migrate"), "--database-url", b.through(pgtest.Admin), command).CombinedOutput()
			if (err != nil) != refused || refused != strings.Contains(string(out), "a pooler in transaction mode answers") {
				t.Errorf("migrate %s: %v: %s", command, err, out)
			}
		}
	}
}

// A process that is frozen in a transaction holds its locks for no longer than it may, and takes nothing with it.
func TestPgBouncerFreesTheLocksOfTheFrozen(t *testing.T) {
	t.Parallel()
	b := startBouncer(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{
		URL: b.through(pgtest.Sweeper), StatementTimeout: time.Minute, LockTimeout: 50 * time.Millisecond, IdleInTransactionTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const lock = "SELECT pg_advisory_xact_lock(1)"
	err = postgres.InTx(t.Context(), pool, func(ctx context.Context, frozen pgx.Tx) error {
		if _, err := frozen.Exec(ctx, lock); err != nil {
			return err
		}
		deadline := time.Now().Add(patience)
		for {
			err := postgres.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, lock)
				return err
			})
			if err == nil {
				break
			}
			const lockNotAvailable = "55P03"
			if !strings.Contains(err.Error(), lockNotAvailable) {
				t.Errorf("while another holds the lock: %v", err)
			}
			if time.Now().After(deadline) {
				t.Fatal("the lock is still held")
			}
		}
		_, err := frozen.Exec(ctx, "SELECT 1")
		return err
	})
	if err == nil || !postgres.ConnectionLost(err) {
		t.Errorf("the frozen transaction goes on: %v", err)
	}
}

// bouncer is a PgBouncer in transaction mode before a server of the test's own, on which each service logs in as somebody
// who has its role and nothing else.
type bouncer struct {
	t        *testing.T
	stack    *stack.Stack
	spec     stack.Spec
	process  *stack.Process
	database string // address, without PgBouncer
	address  string // host and port
}

const (
	sessionsInAll  = 6
	sessionsByUser = 3
	bouncerAdmin   = "watch"
)

var serviceRoles = []pgtest.Role{pgtest.TicketAPI, pgtest.EvaluatorWorker, pgtest.Admin, pgtest.Sweeper}

func login(role pgtest.Role) string { return string(role) + "_1" }

func startBouncer(t *testing.T) *bouncer {
	t.Helper()
	binary := findBouncer(t)
	server := pgtest.NewServer(t, pgtest.Options{})
	b := &bouncer{t: t}
	var err error
	if b.database, err = server.NewDatabase(t.Context()); err != nil {
		t.Fatal(err)
	}
	upstream, err := url.Parse(b.database)
	if err != nil {
		t.Fatal(err)
	}
	b.asSuperuser(func(conn *pgx.Conn) {
		for _, role := range serviceRoles {
			if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN IN ROLE %s", login(role), role)); err != nil {
				t.Fatal(err)
			}
		}
	})
	if b.stack, err = stack.New(t.Context(), stack.Options{Bin: filepath.Dir(binary), Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stack.Stop(); err != nil {
			t.Errorf("stop PgBouncer: %v", err)
		}
	})
	if b.address, err = b.stack.FreeAddress(t.Context()); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(b.address)
	if err != nil {
		t.Fatal(err)
	}
	// Not the testing package's: PgBouncer refuses root, and runs as somebody who may not enter that.
	dir, err := os.MkdirTemp("", "evalonce-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	users := fmt.Sprintf("%q \"\"\n", bouncerAdmin)
	for _, role := range serviceRoles {
		users += fmt.Sprintf("%q \"\"\n", login(role))
	}
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = trust
auth_file = %s/users
admin_users = %s
pool_mode = transaction
default_pool_size = %d
max_db_connections = %d
max_client_conn = 300
`, upstream.Hostname(), upstream.Port(), host, port, dir, bouncerAdmin, sessionsByUser, sessionsInAll)
	for name, content := range map[string]string{"users": users, "pgbouncer.ini": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.spec = stack.Spec{Name: "pgbouncer", Binary: filepath.Base(binary), Args: []string{filepath.Join(dir, "pgbouncer.ini")}}
	if os.Geteuid() == 0 {
		b.spec.Args = append([]string{"--user", "nobody"}, b.spec.Args...)
	}
	b.start()
	return b
}

func findBouncer(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} { // which need not be in PATH
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "there is no PgBouncer here; install it: apt-get install pgbouncer"
	if os.Getenv("CI") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// start returns once PgBouncer answers.
func (b *bouncer) start() {
	b.t.Helper()
	var err error
	if b.process, err = b.stack.Start(b.t.Context(), b.spec); err != nil {
		b.t.Fatal(err)
	}
	deadline := time.After(patience)
	for {
		conn, err := net.Dial("tcp", b.address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-deadline:
			b.t.Fatalf("PgBouncer does not answer: %v\n%s", err, b.process.LogTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (b *bouncer) through(role pgtest.Role) string {
	b.t.Helper()
	return b.addressOf(role, b.address)
}

func (b *bouncer) direct(role pgtest.Role) string {
	b.t.Helper()
	return b.addressOf(role, "")
}

func (b *bouncer) addressOf(role pgtest.Role, host string) string {
	b.t.Helper()
	u, err := url.Parse(b.database)
	if err != nil {
		b.t.Fatal(err)
	}
	u.User = url.User(login(role))
	if host != "" {
		u.Host = host
	}
	return u.String()
}

// as is what tells a service where its database is.
func (b *bouncer) as(role pgtest.Role) string {
	b.t.Helper()
	return "EVALONCE_DATABASE_URL=" + b.through(role)
}

// system is the product with PgBouncer before its database.
func (b *bouncer) system() *system {
	b.t.Helper()
	s := startSystem(b.t, options{database: b.database, latency: someLatency, version: patientVersion, api: []string{b.as(pgtest.TicketAPI)}})
	token, hash := rpc.MintToken()
	admin, err := s.stack.StartAdmin(b.t.Context(), "ops="+hash, b.as(pgtest.Admin))
	if err != nil {
		b.t.Fatal(err)
	}
	s.admin, s.adminToken = admin, token
	return s
}

func (b *bouncer) asSuperuser(do func(*pgx.Conn)) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.database)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(b.t.Context())) }()
	do(conn)
}

// show asks PgBouncer for its own state.
func (b *bouncer) show(what string) []map[string]string {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), fmt.Sprintf("postgres://%s@%s/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol", bouncerAdmin, b.address))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(b.t.Context())) }()
	rows, err := conn.Query(b.t.Context(), "SHOW "+what)
	if err != nil {
		b.t.Fatal(err)
	}
	shown, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (map[string]string, error) {
		values := map[string]string{}
		for i, value := range row.RawValues() { // as text, in this protocol
			values[row.FieldDescriptions()[i].Name] = string(value)
		}
		return values, nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(shown, func(row map[string]string) bool { return row["database"] == "pgbouncer" })
}

// shared wants many connections to have had few sessions among them, and nobody to have had one of their own but those who
// listen.
func (b *bouncer) shared(listening int) {
	b.t.Helper()
	connections, sessions := len(b.show("CLIENTS")), len(b.show("SERVERS"))
	if sessions > sessionsInAll || connections <= 2*sessionsInAll {
		b.t.Errorf("%d connections shared %d sessions; want more than %d, and %d at most", connections, sessions, 2*sessionsInAll, sessionsInAll)
	}
	transactions := 0
	for _, row := range b.show("STATS_TOTALS") {
		n, err := strconv.Atoi(row["xact_count"])
		if err != nil {
			b.t.Fatalf("SHOW STATS_TOTALS has %v", row)
		}
		transactions += n
	}
	if transactions <= 2*connections {
		b.t.Errorf("%d transactions of %d connections", transactions, connections)
	}
	b.asSuperuser(func(conn *pgx.Conn) {
		deadline := time.After(patience)
		for {
			known := []string{}
			for _, row := range b.show("SERVERS") {
				known = append(known, row["remote_pid"])
			}
			rows, err := conn.Query(b.t.Context(), "SELECT query FROM pg_stat_activity WHERE usename LIKE 'evalonce\\_%' AND pid::text <> ALL ($1)", known)
			if err != nil {
				b.t.Fatal(err)
			}
			direct, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				b.t.Fatal(err)
			}
			if len(direct) == listening && !slices.ContainsFunc(direct, func(query string) bool { return !strings.HasPrefix(query, "LISTEN ") }) {
				return
			}
			// A session may have begun between the two looks.
			select {
			case <-deadline:
				b.t.Errorf("these sessions are not PgBouncer's, want %d that listen: %q", listening, direct)
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

// leftNothing visits each session that the services have used, and wants it as it was when it began.
func (b *bouncer) leftNothing() {
	b.t.Helper()
	for _, role := range serviceRoles {
		func() {
			for range sessionsByUser { // all held at the same time
				conn, err := pgx.Connect(b.t.Context(), b.through(role)+"&default_query_exec_mode=exec")
				if err != nil {
					b.t.Fatal(err)
				}
				defer func() { _ = conn.Close(context.WithoutCancel(b.t.Context())) }()
				if _, err := conn.Exec(b.t.Context(), "BEGIN"); err != nil {
					b.t.Fatal(err)
				}
				var left []string
				if err := conn.QueryRow(b.t.Context(), `
SELECT array_agg(what) FROM (
  SELECT 'prepared ' || statement FROM pg_prepared_statements UNION ALL
  SELECT 'listens to ' || c FROM pg_listening_channels() c UNION ALL
  SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable UNION ALL
  SELECT 'temporary table ' || relname FROM pg_class WHERE relpersistence = 't' UNION ALL
  SELECT 'advisory lock of process ' || pid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() UNION ALL
  SELECT name || ' is ' || setting FROM pg_settings
  WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')
) AS left_behind (what)`).Scan(&left); err != nil {
					b.t.Fatal(err)
				}
				if left != nil {
					b.t.Errorf("a session of %s: %q", login(role), left)
				}
			}
		}()
	}
}
