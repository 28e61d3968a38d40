// Package systemtest runs the product's own binaries, kills them with real signals, and ends every test with fsck.
package systemtest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/deploy/local/internal/stack"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
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

// system is the product around a database and a provider of the test's own. The simulator runs in the test's
// process, which so survives what happens to the product's.
type system struct {
	t     *testing.T
	ctx   context.Context
	stack *stack.Stack
	db    *pgxpool.Pool
	sim   *providersim.Server
	api   ticketv1.TicketServiceClient
}

func newSystem(t *testing.T, rules ...providersim.Rule) *system {
	t.Helper()
	s := &system{t: t}
	url := pgtest.URL(t)
	s.db = pgtest.Pool(t, url)
	s.sim = providersim.New(providersim.Options{Script: rules})
	if err := s.sim.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.sim.Close() })
	var err error
	if s.stack, err = stack.New(t.Context(), stack.Options{Bin: binaries, Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stack.Stop(); err != nil {
			t.Errorf("stop the system: %v", err)
		}
	})
	s.stack.UseDatabase(url)
	version := evaluation.Version{
		ID: "v1", PromptVersion: "p1", Provider: "openai", Model: "gpt-5-mini", Prompt: "Sort the ticket.", AnswerSchema: evaluation.AnswerSchema,
		Departments:     []evaluation.Department{{Name: "billing", Description: "invoices"}, {Name: "general", Description: "anything else"}},
		MaxOutputTokens: 100, Route: "main", MaxUnknownCalls: 2, MaxAttempts: 2,
	}.WithDefaults()
	err = postgres.InTx(t.Context(), s.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, version, "test"); err != nil {
			return err
		}
		return versiondb.Promote(ctx, tx, version.ID, "", "test")
	})
	if err != nil {
		t.Fatal(err)
	}
	token, hash := rpc.MintToken()
	api, err := s.stack.StartTicketAPI(t.Context(), "acme="+hash)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(api.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.api = ticketv1.NewTicketServiceClient(conn)
	s.ctx = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	return s
}

// worker starts an evaluator-worker with short leases.
func (s *system) worker(env ...string) *stack.Process {
	s.t.Helper()
	endpoint := stack.Endpoint{BaseURL: s.sim.URL() + "/v1", APIKey: "sk-test"}
	p, err := s.stack.StartWorker(s.t.Context(), endpoint, append([]string{"EVALONCE_LEASE=2s", "EVALONCE_POLL_INTERVAL=100ms"}, env...)...)
	if err != nil {
		s.t.Fatal(err)
	}
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
	ticket, err := s.api.GetTicket(s.ctx, &ticketv1.GetTicketRequest{Id: id})
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

// check ends a test: the promises hold, and what the provider received is what the ledger has.
func (s *system) check() {
	s.t.Helper()
	fscktest.Require(s.t, s.db)
	if err := s.sim.WaitIdle(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if got, want := s.sim.Stats().Requests, s.count("model_call WHERE outcome <> 'unsent'"); got != want {
		s.t.Errorf("the provider received %d requests, the ledger has %d", got, want)
	}
}
