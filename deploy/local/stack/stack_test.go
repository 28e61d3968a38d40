package stack_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// The whole product, for once: what the demo and the tests of the system build on.
func TestWholeStack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	bin, err := stack.Build(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(ctx, stack.Options{Bin: bin, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer stopped(t, s)
	ctx, cancelWatch := s.Watch(ctx)
	defer cancelWatch()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.StartPostgres(ctx)
	must(err)
	must(s.Migrate(ctx))
	db := pgtest.Pool(t, s.DatabaseURL())
	token, hash := rpc.MintToken()
	authorized := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	admin, err := s.StartAdmin(ctx, "test="+hash)
	must(err)
	adminConn, err := grpc.NewClient(admin.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	defer adminConn.Close()
	versions := adminv1.NewVersionServiceClient(adminConn)
	_, err = versions.RegisterVersion(authorized, &adminv1.RegisterVersionRequest{Version: &adminv1.Version{
		Id: "test-1", PromptVersion: "1", Provider: "openai", Model: "m", Prompt: "Sort the ticket.", MaxOutputTokens: 100, Route: "main",
		Departments: []*adminv1.Department{{Name: "billing", Description: "invoices, refunds"}, {Name: "shipping", Description: "parcels, delivery"}},
	}})
	must(err)
	_, err = versions.PromoteVersion(authorized, &adminv1.PromoteVersionRequest{Id: "test-1"})
	must(err)
	simulator, err := s.StartSimulator(ctx)
	must(err)
	api, err := s.StartTicketAPI(ctx, "test="+hash)
	must(err)
	first, err := s.StartWorker(ctx, simulator.Endpoint)
	must(err)
	second, err := s.StartWorker(ctx, simulator.Endpoint, "EVALONCE_CONCURRENCY=1")
	must(err)
	sweeper, err := s.StartSweeper(ctx, time.Second)
	must(err)
	if first.Name != "evaluator-worker" || second.Name != "evaluator-worker-2" {
		t.Errorf("workers are named %s and %s", first.Name, second.Name)
	}

	conn, err := grpc.NewClient(api.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	defer conn.Close()
	client := ticketv1.NewTicketServiceClient(conn)
	evaluated := func(subjects ...string) (tickets []*ticketv1.Ticket) {
		t.Helper()
		for _, subject := range subjects {
			ticket, err := client.CreateTicket(authorized, &ticketv1.CreateTicketRequest{Subject: subject, Message: "Please see to it."})
			must(err)
			tickets = append(tickets, ticket)
		}
		for i := range tickets {
			eventually(t, "ticket "+subjects[i]+" is evaluated", func() bool {
				tickets[i], err = client.GetTicket(authorized, &ticketv1.GetTicketRequest{Id: tickets[i].GetId()})
				must(err)
				return tickets[i].GetEvaluation().GetState() == ticketv1.Evaluation_SUCCEEDED
			})
		}
		return tickets
	}
	tickets := evaluated("my invoice is wrong", "where is my parcel", "my invoice is wrong", "a refund, please")
	for i, want := range []string{"billing", "shipping", "billing", "billing"} {
		if got := tickets[i].GetEvaluation().GetAnswer().GetDepartment(); got != want {
			t.Errorf("ticket %d is for %s, want %s", i, got, want)
		}
	}
	if tickets[0].GetEvaluation().GetAnsweredWithoutCall() == tickets[2].GetEvaluation().GetAnsweredWithoutCall() {
		t.Error("of two tickets of equal content exactly one is answered by a call of its own")
	}
	stats, err := simulator.Stats(ctx)
	must(err)
	if stats.Billed != 3 {
		t.Errorf("%d calls were billed for 3 contents", stats.Billed)
	}

	// A worker that is stopped, and one that is killed: the other one goes on, and nobody takes it for a failure.
	must(first.Signal(syscall.SIGSTOP))
	evaluated("delivery to another address")
	must(first.Signal(syscall.SIGCONT))
	must(second.Kill())
	evaluated("delivery to the old address")

	waitForLog(t, sweeper, `"reclaimed_pending"`)
	out, err := s.Sweep(ctx)
	must(err)
	var swept map[string]any
	must(json.Unmarshal(out, &swept))
	waitForLog(t, api.Process, `"level":"INFO"`)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api.HTTP+"/v1/tickets", http.NoBody)
	must(err)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	must(err)
	must(resp.Body.Close())
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("REST without a token: status %d", resp.StatusCode)
	}
	verdict, err := fsck.Run(ctx, db, fsck.Options{})
	must(err)
	if !verdict.Healthy() {
		t.Errorf("broken promises: %v", verdict.Violations)
	}
	if ctx.Err() != nil {
		t.Errorf("ended early: %v", context.Cause(ctx))
	}
}

func TestMakeDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.EmptyURL(t)
	s := newStack(t, nil)
	name, err := s.MakeDatabase(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.DatabaseURL(), name) {
		t.Errorf("the database is %s", s.DatabaseURL())
	}
	db := pgtest.Pool(t, s.DatabaseURL()) // still connected when it is dropped
	count := func() (n int) {
		t.Helper()
		of := pgtest.Pool(t, server)
		if err := of.QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname = $1`, name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := db.Ping(t.Context()); err != nil || count() != 1 {
		t.Fatalf("no database %s: %v", name, err)
	}
	stopped(t, s)
	if count() != 0 {
		t.Errorf("database %s is still there", name)
	}
}
