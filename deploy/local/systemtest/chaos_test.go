package systemtest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/webhook"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const (
	chaosWorkers = 3
	chaosClients = 4
	// Longer than the longest call, and than a restart of the database.
	chaosLease       = "EVALONCE_LEASE=4s"
	chaosCallTimeout = 2 * time.Second
)

// Everything at once, at random: workers, ticket-api and sweeper are killed, stopped, continued and told to end, and die
// at crash points; the database crashes and restarts; the provider fails in every way that it may be paid for; clients
// create, with duplicates, and repeat themselves; and old tickets are evaluated again under another version. In the end
// every ticket has its evaluations, the promises hold, and the provider's ledger is ours.
//
// SEED repeats the schedule and the provider's faults, and CHAOS says how long it lasts.
func TestChaos(t *testing.T) {
	seed, length := rand.Uint64(), 20*time.Second
	if given := os.Getenv("SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if given := os.Getenv("CHAOS"); given != "" {
		var err error
		if length, err = time.ParseDuration(given); err != nil {
			t.Fatal(err)
		}
	}
	bin := crashing(t)
	t.Parallel()
	t.Logf("SEED=%d CHAOS=%s", seed, length)
	c := startChaos(t, bin, seed)
	stopClients := c.startClients(seed)
	c.suffer(schedule(seed, length))
	c.calm()
	accepted := stopClients()
	c.settleDown()
	c.judge(accepted)
}

type deed string

const (
	workerKilled      deed = "kill a worker"
	workerStopped     deed = "stop a worker"
	workerContinued   deed = "continue a worker"
	workerEnded       deed = "tell a worker to end"
	apiKilled         deed = "kill ticket-api"
	apiEnded          deed = "tell ticket-api to end"
	sweeperKilled     deed = "kill the sweeper"
	databaseCrashed   deed = "crash the database"
	databaseRestarted deed = "restart the database"
	reprocessed       deed = "evaluate everything again"
)

// event is something that happens, so long after the one before.
type event struct {
	pause  time.Duration
	deed   deed
	worker int
	fate   int // drawn for whoever is started next
}

// schedule is made from the seed alone.
func schedule(seed uint64, length time.Duration) []event {
	deeds := slices.Concat(
		slices.Repeat([]deed{workerKilled}, 5), slices.Repeat([]deed{workerStopped}, 4), slices.Repeat([]deed{workerEnded}, 2),
		slices.Repeat([]deed{apiKilled}, 2), []deed{apiEnded, sweeperKilled, databaseCrashed, databaseRestarted},
		slices.Repeat([]deed{reprocessed}, 3),
	)
	r := rand.New(rand.NewPCG(seed, 1))
	type timed struct {
		at time.Duration
		event
	}
	var all []timed
	for at := time.Second; at < length; at += 200*time.Millisecond + time.Duration(r.ExpFloat64()*float64(500*time.Millisecond)) {
		e := event{deed: deeds[r.IntN(len(deeds))], worker: r.IntN(chaosWorkers), fate: r.IntN(1 << 20)}
		all = append(all, timed{at, e})
		if e.deed == workerStopped {
			all = append(all, timed{at + time.Duration(r.Int64N(int64(7*time.Second))), event{deed: workerContinued, worker: e.worker}})
		}
	}
	slices.SortStableFunc(all, func(a, b timed) int { return int(a.at - b.at) })
	events := make([]event, len(all))
	var before time.Duration
	for i, e := range all {
		events[i] = e.event
		events[i].pause, before = e.at-before, e.at
	}
	return events
}

// fateOf is the entry of an environment that lets a process die at one of the points of its kind, or live.
func fateOf(draw int, kinds ...string) string {
	if draw%2 == 0 {
		return crashAt
	}
	draw /= 2
	var points []crashpoint.Point
	for _, p := range crashpoint.All() {
		if kind, _, _ := strings.Cut(string(p), "."); slices.Contains(kinds, kind) {
			points = append(points, p)
		}
	}
	const most = 8 // passings
	return fmt.Sprintf("%s%s:%d", crashAt, points[draw%len(points)], 1+draw/len(points)%most)
}

// chaos is a system whose processes come and go.
type chaos struct {
	*system
	postgres *pgtest.Server
	other    evaluation.Version
	receiver *receiver // of webhooks
	workers  [chaosWorkers]*stack.Process
	sweeper  *stack.Process
	fates    []int // of those who are started next
	done     map[deed]int
	deaths   int // at crash points

	mu   sync.Mutex
	lost map[string]bool // calls that were open when somebody was killed or stopped, or the database went down
}

// refusing is the one fault that stays to the end: it decides what becomes of a ticket.
var refusing = refuse("(refuse)")[0]

func startChaos(t *testing.T, bin string, seed uint64) *chaos {
	t.Helper()
	server := pgtest.NewServer(t, pgtest.Options{})
	database, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	endure := func(v *evaluation.Version) { v.MaxAttempts, v.MaxUnknownCalls = 1000, 1000 }
	c := &chaos{postgres: server, lost: map[string]bool{}, done: map[deed]int{}}
	c.system = startSystem(t, options{
		bin: bin, database: database, seed: seed, metered: true, version: endure,
		latency: providersim.Latency{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond},
		rules: []providersim.Rule{
			refusing,
			{Match: providersim.Match{Probability: 0.02}, Action: providersim.Action{Error: providersim.ServerError500}},
			{Match: providersim.Match{Probability: 0.003}, Action: providersim.Action{Error: providersim.RateLimit, RetryAfter: time.Second}},
			{Match: providersim.Match{Probability: 0.01}, Action: providersim.Action{Close: providersim.CloseAfterRequest}},
			{Match: providersim.Match{Probability: 0.01}, Action: providersim.Action{Close: providersim.CloseAfterAnswer}},
			{Match: providersim.Match{Probability: 0.01}, Action: providersim.Action{CutAfterBytes: 40}},
			{Match: providersim.Match{Probability: 0.005}, Action: hang},
			{Match: providersim.Match{Probability: 0.01}, Action: providersim.Action{Latency: time.Second}},
		},
	})
	c.exec("UPDATE provider_route SET call_timeout = make_interval(secs => $1)", chaosCallTimeout.Seconds())
	c.other = c.version
	c.other.ID, c.other.Prompt = "v2", "Sort it again."
	c.register(c.other)
	c.receiver = c.receive(false)
	c.restore()
	return c
}

// restore starts whoever has ended.
func (c *chaos) restore() {
	c.t.Helper()
	for i, p := range c.workers {
		if c.gone(p) {
			c.workers[i] = c.launchWorker(fmt.Sprintf("worker-%d", i), webhookEnv(chaosLease, "EVALONCE_CONCURRENCY=32",
				c.fate("probe", "claim", "known", "call", "settle", "heartbeat", "reclaim", "stop", "deliver"))...)
			c.watch(c.workers[i])
		}
	}
	if c.gone(c.server.Process) {
		spec := c.server.Spec
		spec.Env = append(withoutFate(spec.Env), c.fate("create"))
		spec.Ready = "" // it may be dead before it is seen to be ready
		c.server.Process = c.launch(spec)
	}
	if c.gone(c.sweeper) {
		p, err := c.stack.StartSweeper(c.t.Context(), time.Second, c.fate("sweep"))
		if err != nil {
			c.t.Fatal(err)
		}
		c.sweeper = p
	}
}

// lose notes what is under way: somebody is about to lose it, or just has.
func (c *chaos) lose() {
	c.t.Helper()
	calls := c.openCalls()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.lost, calls)
}

// watch notes what is under way as soon as a process has ended, and for as long as the database cannot say.
func (c *chaos) watch(p *stack.Process) {
	ctx := c.t.Context()
	go func() {
		select {
		case <-p.Ended():
		case <-ctx.Done():
		}
		for ctx.Err() == nil {
			calls, err := c.readOpenCalls(ctx)
			if err != nil {
				<-time.After(10 * time.Millisecond)
				continue
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, id := range calls {
				c.lost[id] = true
			}
			return
		}
	}()
}

func (c *chaos) gone(p *stack.Process) bool {
	if p == nil {
		return true
	}
	select {
	case <-p.Ended():
	default:
		return false
	}
	if log, err := p.Log(); err == nil && strings.Contains(log, "killed at ") {
		c.deaths++
	}
	return true
}

// fate is the fate of a process of those kinds, as the schedule has it.
func (c *chaos) fate(kinds ...string) string {
	if len(c.fates) == 0 {
		return crashAt
	}
	next := c.fates[0]
	c.fates = c.fates[1:]
	return fateOf(next, kinds...)
}

// suffer lets the events happen. Between them, whoever dies is replaced.
func (c *chaos) suffer(events []event) {
	c.t.Helper()
	const watch = 100 * time.Millisecond
	for _, e := range events {
		for over := time.After(e.pause); ; {
			c.restore()
			select {
			case <-over:
			case <-time.After(watch):
				continue
			}
			break
		}
		c.done[e.deed]++
		c.do(e)
		c.fates = append(c.fates, e.fate)
	}
}

func (c *chaos) do(e event) {
	c.t.Helper()
	signal := func(p *stack.Process, signal syscall.Signal) {
		_ = p.Signal(signal) // one that has just died hears nothing
	}
	w := c.workers[e.worker]
	switch e.deed {
	case workerKilled:
		_ = w.Kill()
	case workerStopped:
		signal(w, syscall.SIGSTOP)
		c.lose()
	case workerContinued:
		c.lose()
		signal(w, syscall.SIGCONT)
	case workerEnded:
		signal(w, syscall.SIGTERM)
	case apiKilled:
		_ = c.server.Kill()
	case apiEnded:
		signal(c.server.Process, syscall.SIGTERM)
	case sweeperKilled:
		_ = c.sweeper.Kill()
	case databaseCrashed, databaseRestarted:
		c.lose()
		mode := pgtest.Fast
		if e.deed == databaseCrashed {
			mode = pgtest.Immediate
		}
		if err := c.postgres.Restart(c.t.Context(), mode); err != nil {
			c.t.Fatal(err)
		}
		c.db.Reset()
	case reprocessed:
		if err := c.reprocess(c.t.Context(), c.other); err != nil {
			c.t.Fatal(err)
		}
	}
}

// calm ends what is out of order. Who is to die at a crash point is replaced.
func (c *chaos) calm() {
	c.t.Helper()
	c.fates = nil
	for _, p := range append(c.workers[:], c.server.Process, c.sweeper) {
		_ = p.Kill()
	}
	c.lose()
	c.expire() // whoever held them is dead
	c.restore()
	letGo(c.system)
	if err := c.sim.AddRules(refusing); err != nil {
		c.t.Fatal(err)
	}
}

// settleDown waits until nothing is left to be done, and lets no delay be in the way.
func (c *chaos) settleDown() {
	c.t.Helper()
	if err := c.reprocess(c.t.Context(), c.other); err != nil {
		c.t.Fatal(err)
	}
	c.drain(append(c.workers[:], c.server.Process, c.sweeper)...)
}

// judge holds the end against the promises. Accepted are the tickets that clients were told of, by request.
func (c *chaos) judge(accepted map[string]*ticketv1.Ticket) {
	c.t.Helper()
	c.t.Logf("%d tickets, %d calls, %d billed, %d contents; %d deaths at crash points; %v",
		len(accepted), c.count("model_call"), c.sim.Stats().Billed, c.sim.Stats().DistinctContents, c.deaths, c.done)
	if got := c.count("ticket"); got != len(accepted) || got == 0 {
		c.t.Errorf("%d tickets are stored, %d were accepted", got, len(accepted))
	}
	const refused, versions = "t.message LIKE '%(refuse)%'", 2
	if n := c.count(`ticket t WHERE (SELECT count(*) FROM ticket_evaluation e WHERE e.ticket_id = t.id
AND CASE WHEN ` + refused + ` THEN e.state = 'dead' AND e.dead_reason = 'refusal' ELSE e.state = 'succeeded' END) <> ` + strconv.Itoa(versions)); n != 0 {
		c.t.Errorf("%d tickets do not have the evaluations that they should have", n)
	}
	if n := c.count("ticket t WHERE " + refused); n == 0 {
		c.t.Error("no ticket was refused")
	}
	sample := map[string]string{}
	for request, ticket := range accepted {
		if !strings.Contains(ticket.GetMessage(), "(refuse)") {
			sample[request] = ticket.GetId()
		}
		if len(sample) == 20 {
			break
		}
	}
	c.ended(sample, "")
	told := map[string]bool{}
	for _, ticket := range accepted {
		event := webhook.Succeeded
		if strings.Contains(ticket.GetMessage(), "(refuse)") {
			event = webhook.DeadLetter
		}
		told[string(event)+" "+ticket.GetId()] = true
	}
	c.receiver.heard(told)
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, call := range c.accounts() {
		// What the provider did not deliver whole may be paid for in vain.
		if call.received != nil && call.received.Outcome != providersim.Answered {
			c.lost[id] = true
		}
	}
	c.promises(c.lost)
}

// startClients lets clients create until stop, which returns all that they were told of.
func (c *chaos) startClients(seed uint64) (stop func() map[string]*ticketv1.Ticket) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var clients sync.WaitGroup
	var mu sync.Mutex
	accepted := map[string]*ticketv1.Ticket{}
	var texts atomic.Int64
	for n := range uint64(chaosClients) {
		r := rand.New(rand.NewPCG(seed, 100+n))
		clients.Go(func() {
			var mine []*ticketv1.CreateTicketRequest
			for ctx.Err() == nil {
				var request *ticketv1.CreateTicketRequest
				if len(mine) > 0 && r.IntN(8) == 0 { // once more, as after a lost answer
					request = mine[r.IntN(len(mine))]
				} else {
					content := texts.Load()
					if content < 10 || r.IntN(3) > 0 {
						content = texts.Add(1)
					} else {
						content = r.Int64N(content)
					}
					request = &ticketv1.CreateTicketRequest{Message: text(int(content)), RequestId: fmt.Sprintf("client-%d-%d", n, len(mine))}
					if content%40 == 7 {
						request.Message += " (refuse)"
					}
					mine = append(mine, request)
				}
				ticket, err := c.once(request)
				if err != nil {
					if c.ctx.Err() == nil {
						c.t.Errorf("%s: %v", request.GetRequestId(), err)
					}
					return
				}
				mu.Lock()
				if before, ok := accepted[request.GetRequestId()]; ok && before.GetId() != ticket.GetId() {
					c.t.Errorf("%s made two tickets, %s and %s", request.GetRequestId(), before.GetId(), ticket.GetId())
				}
				accepted[request.GetRequestId()] = ticket
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(r.Int64N(int64(30 * time.Millisecond)))):
				}
			}
		})
	}
	return func() map[string]*ticketv1.Ticket {
		cancel()
		clients.Wait()
		return accepted
	}
}

func (c *chaos) once(request *ticketv1.CreateTicketRequest) (ticket *ticketv1.Ticket, err error) {
	err = c.insist(func(ctx context.Context) error {
		ticket, err = c.api.CreateTicket(ctx, request, grpc.WaitForReady(true))
		return err
	})
	return ticket, err
}
