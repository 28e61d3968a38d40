// Package systemtest runs the product's own binaries, kills them with real signals, and ends every test with fsck.
//
// TestCrashMatrix kills them at every crash point, and TestChaos at random: SEED=N repeats its schedule, CHAOS=5m makes
// it longer.
package systemtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const patience = time.Minute

var binaries string

func TestMain(m *testing.M) {
	var err error
	if binaries, err = stack.Build(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// options of a system; the zero value is a healthy one.
type options struct {
	bin      string // directory of the binaries; the product's own when empty
	database string // address; a database of the test's own when empty
	through  string // address of the database as the product is told it; the database's when empty
	seed     uint64 // of the provider
	rules    []providersim.Rule
	latency  providersim.Latency
	version  func(*evaluation.Version)
	metered  bool     // the route has limits and a budget, which are wide
	api      []string // more of ticket-api's environment
}

// system is the product around a database and a provider of the test's own. The simulator runs in the test's
// process, which so survives what happens to the product's.
type system struct {
	t       *testing.T
	ctx     context.Context // with the client's token
	stack   *stack.Stack
	db      *pgxpool.Pool
	sim     *providersim.Server
	server  *stack.API // ticket-api
	api     ticketv1.TicketServiceClient
	token   string // the client's
	version evaluation.Version

	workers    []string   // base URLs of their health and metrics
	admin      *stack.API // nil until somebody operates it
	adminToken string
}

func newSystem(t *testing.T, rules ...providersim.Rule) *system {
	t.Helper()
	return startSystem(t, options{rules: rules})
}

func startSystem(t *testing.T, o options) *system {
	t.Helper()
	s := &system{t: t}
	if o.bin == "" {
		o.bin = binaries
	}
	if o.database == "" {
		o.database = pgtest.URL(t)
	}
	if o.through == "" {
		o.through = o.database
	}
	s.db = pgtest.Pool(t, o.database)
	s.sim = providersim.New(providersim.Options{Seed: o.seed, Script: o.rules, Latency: o.latency})
	if err := s.sim.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.sim.Close() })
	var err error
	if s.stack, err = stack.New(t.Context(), stack.Options{Bin: o.bin, Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stack.Stop(); err != nil {
			t.Errorf("stop the system: %v", err)
		}
	})
	s.stack.UseDatabase(o.through)
	s.version = evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "gpt-5-mini", Prompt: "Sort the ticket.", AnswerSchema: evaluation.AnswerSchema,
		Departments:     []evaluation.Department{{Name: "billing", Description: "invoices"}, {Name: "general", Description: "anything else"}},
		MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2, MaxAttempts: 2,
		Prices: evaluation.Prices{InputUSDPerMTok: decimal.NewFromInt(2), OutputUSDPerMTok: decimal.NewFromInt(8)},
	}.WithDefaults()
	if o.version != nil {
		o.version(&s.version)
	}
	s.register(s.version)
	err = postgres.InTx(t.Context(), s.db, func(ctx context.Context, tx pgx.Tx) error {
		return versiondb.Promote(ctx, tx, s.version.ID, "", "test")
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.metered {
		limits := route.Limits{RequestsPerMinute: 1_000_000, TokensPerMinute: 1_000_000_000, ConcurrentCalls: 1000}
		if err := route.SetLimits(t.Context(), s.db, s.version.Route, limits); err != nil {
			t.Fatal(err)
		}
		budget := decimal.NewFromInt(1000)
		if err := route.SetSpendLimit(t.Context(), s.db, route.Budget{Scope: route.AllRoutes, Period: route.Day}, &budget); err != nil {
			t.Fatal(err)
		}
	}
	token, hash := rpc.MintToken()
	if s.server, err = s.stack.StartTicketAPI(t.Context(), "acme="+hash, o.api...); err != nil {
		t.Fatal(err)
	}
	// A client that finds nobody tries again soon: in these tests the server is back within moments.
	again := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond}
	conn, err := grpc.NewClient(s.server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.api = ticketv1.NewTicketServiceClient(conn)
	s.token = token
	s.ctx = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	return s
}

func (s *system) register(v evaluation.Version) {
	s.t.Helper()
	err := postgres.InTx(s.t.Context(), s.db, func(ctx context.Context, tx pgx.Tx) error {
		_, err := versiondb.Register(ctx, tx, v, "test")
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// reprocess makes work of all tickets under another version, on the lane for that. What has its result stays.
func (s *system) reprocess(ctx context.Context, v evaluation.Version) error {
	return postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT DISTINCT ON (content_hash) content_hash, id FROM ticket ORDER BY content_hash, id")
		if err != nil {
			return err
		}
		jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j outbox.Job, err error) {
			var hash []byte
			if err = row.Scan(&hash, &j.TicketID); err == nil {
				j.ContentHash = content.Hash(hash)
				j.Key = content.KeyOf(j.ContentHash, v.Digest())
			}
			return j, err
		})
		if err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Demand{VersionID: v.ID, Route: v.Route, Lane: outbox.Bulk}, jobs)
	})
}

// restartAPI starts ticket-api again where it was, without what it was told of its death.
func (s *system) restartAPI() {
	s.t.Helper()
	spec := s.server.Spec
	spec.Env = withoutFate(spec.Env)
	s.server.Process = s.launch(spec)
}

// worker starts an evaluator-worker with short leases.
func (s *system) worker(env ...string) *stack.Process {
	s.t.Helper()
	endpoint := stack.Endpoint{BaseURL: s.sim.URL() + "/v1", APIKey: "sk-test"}
	p, err := s.stack.StartWorker(s.t.Context(), endpoint, append([]string{"EVALONCE_LEASE=2s", "EVALONCE_POLL_INTERVAL=100ms"}, env...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.workers = append(s.workers, strings.TrimSuffix(p.Ready, "/readyz"))
	return p
}

func (s *system) kill(p *stack.Process) {
	s.t.Helper()
	if err := p.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) create(message string) *ticketv1.Ticket {
	s.t.Helper()
	ticket, err := s.api.CreateTicket(s.ctx, &ticketv1.CreateTicketRequest{Subject: "Help", Message: message})
	if err != nil {
		s.t.Fatal(err)
	}
	return ticket
}

func (s *system) get(id string) *ticketv1.Ticket {
	s.t.Helper()
	var ticket *ticketv1.Ticket
	err := s.insist(func(ctx context.Context) (err error) {
		ticket, err = s.api.GetTicket(ctx, &ticketv1.GetTicketRequest{Id: id}, grpc.WaitForReady(true))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return ticket
}

func (s *system) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) count(what string, args ...any) int {
	s.t.Helper()
	var n int
	if err := s.db.QueryRow(s.t.Context(), "SELECT count(*) FROM "+what, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
	return n
}

// until waits for a query that counts to count n.
func (s *system) until(n int, what string, args ...any) {
	s.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.count(what, args...) != n {
		select {
		case <-deadline:
			s.t.Fatalf("%s: %d after %s, want %d", what, s.count(what, args...), patience, n)
		case <-tick.C:
		}
	}
}

// untilLogged waits for a process to log a text.
func (s *system) untilLogged(p *stack.Process, text string) {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		log, err := p.Log()
		if err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(log, text) {
			return
		}
		select {
		case <-deadline:
			s.t.Fatalf("%s has not logged %q\n%s", p.Name, text, p.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// due lets every delay be over.
func (s *system) due() {
	s.exec("UPDATE evaluation_outbox SET available_at = now() WHERE status = 'pending' AND available_at > now()")
}

func (s *system) hanging(n int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.sim.WaitHanging(ctx, n); err != nil {
		s.t.Fatalf("%d calls hang, want %d: %v", s.sim.Stats().Hanging, n, err)
	}
}

// check ends a test: the promises hold, the provider's ledger and ours tell of the same calls, and what is measured has
// its place in the catalogue.
func (s *system) check() {
	s.t.Helper()
	s.measured()
	fscktest.Require(s.t, s.db)
	s.accounts()
	if got, want := s.sim.Stats().Requests, s.count("model_call WHERE outcome <> 'unsent'"); got != want {
		s.t.Errorf("the provider received %d requests, the ledger has %d", got, want)
	}
}
