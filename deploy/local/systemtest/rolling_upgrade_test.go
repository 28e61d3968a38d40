package systemtest

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/webhook"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// A release is replaced by the next one under load, and put back again. The schema is expanded while the old release runs on
// it; what is started before that is not ready; everything is replaced one by one, and on the way a worker is killed, and on
// the way back a ticket-api; in the end the old release runs on the schema of the next.
//
// No call fails: connections to a replica that ends are refused, those to the killed one break, and both are made again at
// once, to another one. Every ticket has its answer and was told of once. Nothing was paid for twice but calls that the
// killed worker had under way. Nobody has logged an error.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	u := startUpgrade(t)
	stop := u.crowd.start()
	u.startWorker(u.stack)
	u.startWorker(u.stack)
	u.startSweeper(u.stack)
	u.serving()
	early := u.migrate()
	u.serving()
	u.roll(u.next, early, workerKilled)
	if err := u.stack.Migrate(t.Context()); err != nil {
		t.Errorf("migrate up of the old release, on the schema of the next: %v", err)
	}
	u.roll(u.stack, nil, apiKilled)
	stop()
	u.drain(u.everybody...)
	u.judge()
}

// upgradeConcurrency bounds the calls of one worker under way, and so what a kill can cost.
const upgradeConcurrency = 16

// upgrade is a system of two releases: the stack of the old one, and that of the next.
type upgrade struct {
	*system
	next     *stack.Stack
	receiver *receiver // of webhooks
	crowd    *crowd
	tokens   struct{ clients, operators string } // as the services know them

	workers   []upgradeWorker
	names     []string // of all workers that there have been
	sweeper   *stack.Process
	everybody []*stack.Process // who runs, and who has run
	lost      map[string]bool  // calls that were under way when their worker was killed
}

type upgradeWorker struct {
	*stack.Process
	name string // by which its leases are known
}

func startUpgrade(t *testing.T) *upgrade {
	t.Helper()
	old, next := releases(t)
	database := pgtest.EmptyURL(t)
	s := &system{t: t, db: pgtest.Pool(t, database)}
	u := &upgrade{system: s, names: []string{}, lost: map[string]bool{}}
	s.sim = providersim.New(providersim.Options{
		Latency: providersim.Latency{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		Script: []providersim.Rule{
			{Match: providersim.Match{Attempt: 1, Probability: 0.03}, Action: providersim.Action{Error: providersim.ServerError500}},
			{Match: providersim.Match{Attempt: 1, Probability: 0.003}, Action: providersim.Action{Error: providersim.RateLimit, RetryAfter: time.Second}},
			{Match: providersim.Match{Probability: 0.03}, Action: providersim.Action{Latency: time.Second}},
		},
	})
	if err := s.sim.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.sim.Close() })
	s.stack, u.next = u.newStack(old, database), u.newStack(next, database)
	if err := s.stack.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}

	token, hash := rpc.MintToken()
	adminToken, adminHash := rpc.MintToken()
	s.token, s.adminToken, u.tokens.clients, u.tokens.operators = token, adminToken, "acme="+hash, "ops="+adminHash
	s.ctx = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	operating := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+adminToken)
	admins := newBalancer(t, u.startAdmin(s.stack))
	apis := newBalancer(t, u.startAPI(s.stack), u.startAPI(s.stack))
	s.api = ticketv1.NewTicketServiceClient(apis.conn)
	u.crowd = &crowd{
		t: t, balancer: apis, ctx: s.ctx, token: token, failed: make(chan struct{}), tickets: map[string]*ticketv1.Ticket{},
		operator: operator{balancer: admins, ctx: operating, token: adminToken},
	}
	u.promote(operating)
	u.receiver = s.receive(false)
	return u
}

func (u *upgrade) newStack(bin, database string) *stack.Stack {
	u.t.Helper()
	s, err := stack.New(u.t.Context(), stack.Options{Bin: bin, Dir: u.t.TempDir()})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			u.t.Errorf("stop the system: %v", err)
		}
	})
	s.UseDatabase(database)
	return s
}

// promote has admin register a version and make it the active one.
func (u *upgrade) promote(ctx context.Context) {
	u.t.Helper()
	versions := adminv1.NewVersionServiceClient(u.crowd.operator.balancer.conn)
	_, err := versions.RegisterVersion(ctx, &adminv1.RegisterVersionRequest{Version: &adminv1.Version{
		Id: "v1", PromptVersion: "p1", Provider: "openai", Model: "gpt-5-mini", Prompt: "Sort the ticket.", MaxOutputTokens: 100, Route: "main",
		Departments: []*adminv1.Department{{Name: "billing", Description: "invoices"}, {Name: "general", Description: "anything else"}},
	}}, grpc.WaitForReady(true))
	if err != nil {
		u.t.Fatal(err)
	}
	if _, err := versions.PromoteVersion(ctx, &adminv1.PromoteVersionRequest{Id: "v1"}); err != nil {
		u.t.Fatal(err)
	}
}

// migrate brings the schema to the next release, while the old one works on it. A ticket-api of the next release that was
// started too early is not ready until then, and is returned, and what starts before a service waits; there is none where
// nothing is to be migrated.
func (u *upgrade) migrate() (early *replica) {
	u.t.Helper()
	ctx := u.t.Context()
	var waiting *stack.Process
	if pending := u.pending(u.next); len(pending) > 0 {
		early = u.startEarly()
		var err error
		if waiting, err = u.next.Start(ctx, u.migrateSpec("wait")); err != nil {
			u.t.Fatal(err)
		}
		u.untilLogged(waiting, "waiting for "+strings.Join(pending, ", "))
		u.untilReady(early, http.StatusServiceUnavailable)
	}
	for try := 1; ; try++ { // as a Job does
		err := u.next.Migrate(ctx)
		if err == nil {
			break
		}
		if try == 3 {
			u.t.Fatal(err)
		}
		u.t.Logf("try %d: %v", try, err)
	}
	if left := u.pending(u.next); len(left) > 0 {
		u.t.Errorf("%v are pending after migrate up", left)
	}
	// The old release has what it needs, too.
	if out, err := u.stack.Run(ctx, u.migrateSpec("wait")); err != nil {
		u.t.Errorf("migrate wait of the old release, on the schema of the next: %v\n%s", err, out)
	}
	if early != nil {
		u.awaitEnd(waiting)
		u.untilReady(early, http.StatusOK)
	}
	return early
}

func (u *upgrade) migrateSpec(args ...string) stack.Spec {
	return stack.Spec{Name: "migrate", Binary: "migrate", Args: args, Env: []string{"EVALONCE_DATABASE_URL=" + u.stack.DatabaseURL()}}
}

// pending are the migrations that a release has and the database lacks.
func (u *upgrade) pending(release *stack.Stack) (names []string) {
	u.t.Helper()
	out, err := release.Run(u.t.Context(), u.migrateSpec("status"))
	if err != nil {
		u.t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == "pending" {
			names = append(names, fields[0])
		}
	}
	return names
}

func (u *upgrade) startEarly() *replica {
	u.t.Helper()
	var addresses [3]string
	for i := range addresses {
		var err error
		if addresses[i], err = u.next.FreeAddress(u.t.Context()); err != nil {
			u.t.Fatal(err)
		}
	}
	p, err := u.next.Start(u.t.Context(), stack.Spec{Name: "ticket-api-early", Binary: "ticket-api", Env: []string{
		"EVALONCE_DATABASE_URL=" + pgtest.As(u.next.DatabaseURL(), pgtest.TicketAPI), "EVALONCE_PLAINTEXT=true", "EVALONCE_API_TOKENS=" + u.tokens.clients,
		"EVALONCE_GRPC_ADDRESS=" + addresses[0], "EVALONCE_HTTP_ADDRESS=" + addresses[1], "EVALONCE_HEALTH_ADDRESS=" + addresses[2],
	}})
	if err != nil {
		u.t.Fatal(err)
	}
	u.everybody = append(u.everybody, p)
	return &replica{API: &stack.API{Process: p, GRPC: addresses[0], HTTP: "http://" + addresses[1], Health: "http://" + addresses[2]}}
}

// untilReady waits for an answer to "are you ready".
func (u *upgrade) untilReady(r *replica, want int) {
	u.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.HTTP+"/readyz", http.NoBody)
		if err != nil {
			u.t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == want {
				return
			}
		}
		select {
		case <-ctx.Done():
			u.t.Fatalf("%s does not answer with %d: %v\n%s", r.Name, want, err, r.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// serving waits until every replica has served calls from now on, of each kind: those that run do so beside each other.
func (u *upgrade) serving() {
	u.t.Helper()
	u.crowd.await(append(u.crowd.balancer.all(), u.crowd.operator.balancer.all()...)...)
}

// roll replaces everything by processes of a release, one by one, each new one before an old one goes. The early one, if
// there is one, is the first of the new ones. One of the old ones is killed, the others are told to end, and do.
func (u *upgrade) roll(to *stack.Stack, early *replica, dies deed) {
	u.t.Helper()
	apis, admins := u.crowd.balancer, u.crowd.operator.balancer
	oldAPIs, oldAdmins, oldWorkers := apis.all(), admins.all(), slices.Clone(u.workers)
	for i, old := range oldAPIs {
		if early == nil {
			early = u.startAPI(to)
		}
		apis.add(early)
		early = nil
		u.serving()
		if dies == apiKilled && i == 0 {
			u.killAPI(old)
		} else {
			u.retire(apis, old)
		}
		u.serving()

		u.startWorker(to)
		if dies == workerKilled && i == 0 {
			u.killWorker(oldWorkers[i])
		} else {
			u.end(oldWorkers[i].Process)
		}
		u.workers = slices.DeleteFunc(u.workers, func(w upgradeWorker) bool { return w == oldWorkers[i] })
		if i > 0 {
			continue
		}
		admins.add(u.startAdmin(to))
		u.serving()
		u.retire(admins, oldAdmins[0])
		ended := u.sweeper
		u.startSweeper(to)
		u.end(ended)
	}
	u.serving()
}

// retire tells a replica to end, which everybody still connects to.
func (u *upgrade) retire(b *balancer, r *replica) {
	u.t.Helper()
	r.ending.Store(true)
	u.end(r.Process)
	b.remove(r)
}

// end tells a process to end, and waits until it has, in peace.
func (u *upgrade) end(p *stack.Process) {
	u.t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		u.t.Fatal(err)
	}
	u.awaitEnd(p)
}

// awaitEnd waits until a process has ended, in peace.
func (u *upgrade) awaitEnd(p *stack.Process) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	state, err := p.Wait(ctx)
	if err != nil {
		u.t.Fatal(err)
	}
	if !state.Success() {
		u.t.Errorf("%s has ended: %s\n%s", p.Name, state, p.LogTail())
	}
}

func (u *upgrade) killAPI(r *replica) {
	u.t.Helper()
	b := u.crowd.balancer
	b.killing.Store(true)
	u.kill(r.Process)
	b.remove(r)
	u.serving()
	b.killing.Store(false)
}

// killWorker notes what the worker had under way, and has it taken back at once: leases are long, so that nobody loses one
// who is merely slow.
func (u *upgrade) killWorker(w upgradeWorker) {
	u.t.Helper()
	u.kill(w.Process)
	rows, err := u.db.Query(u.t.Context(), `SELECT m.id::text FROM model_call m JOIN evaluation_outbox o USING (idempotency_key, lease_id)
WHERE o.locked_by = $1 AND m.outcome = 'open'`, w.name)
	if err != nil {
		u.t.Fatal(err)
	}
	calls, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		u.t.Fatal(err)
	}
	for _, id := range calls {
		u.lost[id] = true
	}
	u.exec("UPDATE evaluation_outbox SET locked_until = now() - interval '1 ms' WHERE status = 'processing' AND locked_by = $1", w.name)
	u.exec("UPDATE webhook_delivery SET locked_until = now() - interval '1 ms' WHERE state = 'sending' AND locked_by = $1", w.name)
}

func (u *upgrade) startAPI(s *stack.Stack) *replica {
	u.t.Helper()
	api, err := s.StartTicketAPI(u.t.Context(), u.tokens.clients)
	return u.started(api, err)
}

func (u *upgrade) startAdmin(s *stack.Stack) *replica {
	u.t.Helper()
	admin, err := s.StartAdmin(u.t.Context(), u.tokens.operators)
	return u.started(admin, err)
}

func (u *upgrade) started(api *stack.API, err error) *replica {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
	u.everybody = append(u.everybody, api.Process)
	return &replica{API: api}
}

func (u *upgrade) startSweeper(s *stack.Stack) {
	u.t.Helper()
	var err error
	if u.sweeper, err = s.StartSweeper(u.t.Context(), time.Second); err != nil {
		u.t.Fatal(err)
	}
	u.everybody = append(u.everybody, u.sweeper)
}

// startWorker starts a worker, and waits until it has work, which is when its name is known.
func (u *upgrade) startWorker(s *stack.Stack) {
	u.t.Helper()
	p, err := s.StartWorker(u.t.Context(), stack.Endpoint{BaseURL: u.sim.URL() + "/v1", APIKey: "sk-test"},
		webhookEnv("EVALONCE_LEASE=5m", "EVALONCE_CONCURRENCY="+strconv.Itoa(upgradeConcurrency), "EVALONCE_POLL_INTERVAL=100ms", "EVALONCE_SHUTDOWN_GRACE=1m")...)
	if err != nil {
		u.t.Fatal(err)
	}
	u.everybody = append(u.everybody, p)
	const unknown = "SELECT coalesce(min(locked_by), '') FROM evaluation_outbox WHERE status = 'processing' AND locked_by <> ALL ($1)"
	for deadline := time.Now().Add(patience); ; {
		var name string
		if err := u.db.QueryRow(u.t.Context(), unknown, u.names).Scan(&name); err != nil {
			u.t.Fatal(err)
		}
		if name != "" {
			u.names = append(u.names, name)
			u.workers = append(u.workers, upgradeWorker{p, name})
			return
		}
		if time.Now().After(deadline) {
			u.t.Fatalf("%s has no work after %s\n%s", p.Name, patience, p.LogTail())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// judge holds the end against the promises.
func (u *upgrade) judge() {
	u.t.Helper()
	tickets := u.crowd.tickets
	if got := u.count("ticket"); got != len(tickets) {
		u.t.Errorf("%d tickets are stored, %d were accepted", got, len(tickets))
	}
	if n := u.count("ticket t WHERE NOT EXISTS (SELECT FROM ticket_evaluation e WHERE e.ticket_id = t.id AND e.state = 'succeeded')"); n != 0 {
		u.t.Errorf("%d tickets have no answer", n)
	}
	told := map[string]bool{}
	for _, ticket := range tickets {
		told[string(webhook.Succeeded)+" "+ticket.GetId()] = true
	}
	u.receiver.heard(told)
	u.promises(u.lost)
	if out, err := u.next.Sweep(u.t.Context(), "EVALONCE_FSCK=true"); err != nil {
		u.t.Errorf("fsck of the next release: %v\n%s", err, out)
	}
	paid, twice := u.sim.Stats(), len(wasted(u.accounts()))
	if paid.Billed != paid.DistinctContents+twice || twice > upgradeConcurrency {
		u.t.Errorf("%d calls were paid for, for %d contents; %d in vain", paid.Billed, paid.DistinctContents, twice)
	}
	for _, p := range u.everybody {
		log, err := p.Log()
		if err != nil {
			u.t.Fatal(err)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"level":"ERROR"`) || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
				u.t.Errorf("%s has logged %s", p.Name, line)
			}
		}
	}
	apis, admins := u.crowd.balancer, u.crowd.operator.balancer
	u.t.Logf("%d tickets of %d contents; %d calls were paid for, %d of %d under way at the kill in vain; connections refused %d times, broken by the kill %d times",
		len(tickets), paid.DistinctContents, paid.Billed, twice, len(u.lost), apis.refused.Load()+admins.refused.Load(), apis.broken.Load())
}
