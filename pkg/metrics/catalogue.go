package metrics

import (
	"slices"

	"github.com/evalonce/evalonce/pkg/failure"
)

// Values of labels that those who measure give.
const (
	Created  = "created"
	Replayed = "replayed"
	Refused  = "refused"
	Failed   = "failed"

	Answered  = "answered"
	Following = "following"

	KnownCall     = "call"
	KnownAnswered = "answered"
	KnownSaved    = "saved"

	Retried  = "retried"
	Dead     = "dead"
	Released = "released"
	LeftOver = "left"

	Recovered = "recovered"

	FoundByCall  = "call"
	FoundByLease = "lease_expired"

	Pending = "pending"

	None = "none"

	Delivered = "delivered"

	Ready     = "ready"
	Running   = "running"
	Scheduled = "scheduled"
)

// What bounds the labels that have no closed set of values.
const (
	boundRoutes   = "the routes"
	boundVersions = "the registered versions"
	boundModels   = "the models of the registered versions"
	boundScopes   = "the routes, and * for all of them"
)

func label(name string, values ...string) Label { return Label{Name: name, Values: values} }

func bounded(name, bound string) Label { return Label{Name: name, Bound: bound} }

func routeLabel() Label   { return bounded("route", boundRoutes) }
func versionLabel() Label { return bounded("version", boundVersions) }
func modelLabel() Label   { return bounded("model", boundModels) }
func laneLabel() Label    { return label("lane", "live", "bulk") }

// Classes are the classes of failures.
func Classes() []string {
	return []string{string(failure.Transient), string(failure.Throttled), string(failure.Unknown), string(failure.Operator), string(failure.Permanent)}
}

// latencies are the bounds of buckets from an index lookup to a call's longest timeout.
func latencies() []float64 {
	return []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
}

// waits are the bounds of buckets for what may wait for a route or a budget.
func waits() []float64 {
	return []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400}
}

// Catalogue is everything that the services measure. Beside it they expose what libraries say of the process, of Go's
// runtime and of the fetching itself.
func Catalogue() []Metric {
	return slices.Concat(ticketAPI(), worker(), webhooks(), everywhere(), rpc(), snapshot())
}

func rpc() []Metric {
	return []Metric{{
		Name: "rpc.server.call.duration", Unit: "s", Kind: Histogram, Service: RPCServices, Library: true,
		Labels: []Label{
			bounded("rpc_method", "the methods of the service"), label("rpc_system_name", "grpc"),
			bounded("rpc_response_status_code", "the codes of gRPC"), bounded("error_type", "the codes of gRPC"),
		},
		Help: "Time of calls, those over REST too. Methods that there are not are left out.",
	}}
}

func ticketAPI() []Metric {
	outcome := label("outcome", Created, Replayed, Refused, Failed)
	return []Metric{
		{
			Name: "evalonce.tickets", Unit: "{ticket}", Kind: Counter, Service: TicketAPIService, Labels: []Label{outcome},
			Help: "Valid requests to create a ticket, by what came of them: refused are those that use an idempotency key again with another ticket.",
		},
		{
			Name: "evalonce.create.duration", Unit: "s", Kind: Histogram, Service: TicketAPIService, Labels: []Label{outcome}, Buckets: latencies(),
			Help: "From a valid request to its durable answer; a batch is one.",
		},
		{
			Name: "evalonce.create.group.size", Unit: "{ticket}", Kind: Histogram, Service: TicketAPIService,
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
			Help:    "Requests that share one transaction.",
		},
		{
			Name: "evalonce.dedup.hits", Unit: "{ticket}", Kind: Counter, Service: TicketAPIService, Labels: []Label{label("state", Answered, Following)},
			Help: "Tickets created that need no call of their own: answered when they came, or following the work of another.",
		},
	}
}

func worker() []Metric {
	route, version, model, lane := routeLabel(), versionLabel(), modelLabel(), laneLabel()
	class := label("class", append([]string{None}, Classes()...)...)
	provider := label("provider", "openai", "openai_responses", "anthropic")
	call := label("outcome", "answered", "rejected", "failed", "unknown", "saved", Recovered)
	return []Metric{
		{
			Name: "evalonce.claims", Unit: "{evaluation}", Kind: Counter, Service: WorkerService,
			Labels: []Label{route, lane, label("known", KnownCall, KnownAnswered, KnownSaved)},
			Help:   "Evaluations claimed, by what was known of them: nothing, so that a call is made; the answer; or a response that was paid for and not judged.",
		},
		{
			Name: "evalonce.evaluations", Unit: "{evaluation}", Kind: Counter, Service: WorkerService,
			Labels: []Label{route, lane, label("outcome", Answered, Retried, Dead, Released, LeftOver), class},
			Help:   "What became of claimed evaluations, when it was committed: left is what another worker holds by then. The class is that of the failure.",
		},
		{
			Name: "evalonce.model.calls", Unit: "{call}", Kind: Counter, Service: WorkerService, Labels: []Label{provider, model, version, call, class},
			Help: "Calls by what the ledger has of them; recovered is a lost one whose response the provider still had.",
		},
		{
			Name: "evalonce.model.call.duration", Unit: "s", Kind: Histogram, Service: WorkerService, Labels: []Label{provider, model, call}, Buckets: latencies(),
			Help: "Time of one call, with its connection.",
		},
		{
			Name: "evalonce.model.tokens", Unit: "{token}", Kind: Counter, Service: WorkerService,
			Labels: []Label{model, version, label("type", "input", "cached_input", "output", "reasoning")},
			Help:   "Tokens as the provider counts them. Cached ones are input, too, and those of reasoning are output, too.",
		},
		{
			Name: "evalonce.model.cost", Unit: "USD", Kind: Counter, Service: WorkerService, Labels: []Label{model, version},
			Help: "What calls have cost at the prices of their versions.",
		},
		{
			Name: "evalonce.model.substitutions", Unit: "{call}", Kind: Counter, Service: WorkerService, Labels: []Label{model, version},
			Help: "Responses of another model than the one that was asked; a dated snapshot of it is none.",
		},
		{
			Name: "evalonce.unknown.outcomes", Unit: "{call}", Kind: Counter, Service: WorkerService, Labels: []Label{label("found", FoundByCall, FoundByLease)},
			Help: "Calls that may have been paid for without an answer: their connection broke or their time was over, or their worker is gone.",
		},
		{
			Name: "evalonce.leases.lost", Unit: "{lease}", Kind: Counter, Service: WorkerService,
			Help: "Leases that were over before the worker could extend them.",
		},
		{
			Name: "evalonce.leases.reclaimed", Unit: "{lease}", Kind: Counter, Service: WorkerService, Labels: []Label{label("to", Pending, Dead)},
			Help: "Expired leases that the worker has taken back, of whichever worker.",
		},
		{
			Name: "evalonce.pickup.latency", Unit: "s", Kind: Histogram, Service: WorkerService, Labels: []Label{lane}, Buckets: waits(),
			Help: "From the commit that asked for an evaluation to its first call.",
		},
		{
			Name: "evalonce.evaluation.latency", Unit: "s", Kind: Histogram, Service: WorkerService, Labels: []Label{lane}, Buckets: waits(),
			Help: "From the commit that asked for an evaluation to the commit of its answer.",
		},
		{
			Name: "evalonce.calls.running", Unit: "{call}", Kind: Gauge, Service: WorkerService, Labels: []Label{route},
			Help: "Evaluations that the worker is at; there for each route that it serves, and absent without workers.",
		},
	}
}

func webhooks() []Metric {
	reason := label("reason", None, "status", "redirect", "gone", "timeout", "dns", "address_denied", "scheme_denied", "connect", "tls",
		"connection_lost", "stopped")
	return []Metric{
		{
			Name: "evalonce.webhook.attempts", Unit: "{attempt}", Kind: Counter, Service: WorkerService, Labels: []Label{label("outcome", Delivered, Failed), reason},
			Help: "Attempts to deliver a webhook.",
		},
		{
			Name: "evalonce.webhook.attempt.duration", Unit: "s", Kind: Histogram, Service: WorkerService, Labels: []Label{label("outcome", Delivered, Failed)},
			Buckets: latencies(),
			Help:    "Time of one attempt.",
		},
		{
			Name: "evalonce.webhook.endpoints.disabled", Unit: "{endpoint}", Kind: Counter, Service: WorkerService, Labels: []Label{label("reason", "gone", "failing")},
			Help: "Endpoints that were disabled because they are gone, or have failed for days.",
		},
	}
}

func everywhere() []Metric {
	pool := label("pool", "ticket-api", "claims", "settles", "webhooks", "admin", "jobs", "replica", "sweeper")
	return []Metric{
		{
			Name: "evalonce.db.connections", Unit: "{connection}", Kind: Gauge, Service: Every, Labels: []Label{pool, label("state", "idle", "used", "max")},
			Help: "Connections of a pool, and how many it may have.",
		},
		{
			Name: "evalonce.db.waits", Unit: "{wait}", Kind: Counter, Service: Every, Labels: []Label{pool},
			Help: "How often somebody had to wait for a connection of a pool.",
		},
		{
			Name: "evalonce.db.wait.time", Unit: "s", Kind: Counter, Service: Every, Labels: []Label{pool},
			Help: "How long all of them together have waited.",
		},
	}
}

// HotTables are those that change with every evaluation or delivery, whose dead rows cost time.
func HotTables() []string {
	return []string{"evaluation_outbox", "evaluation_claim", "webhook_delivery", "webhook_endpoint", "provider_route", "spend"}
}

// SweepCounts are what a sweep counts.
func SweepCounts() []string {
	return []string{"reclaimed_pending", "reclaimed_dead", "unknown_calls", "pruned_requests", "partitions_made", "reconciled", "erased_tickets", "erased_responses", "erased_deliveries", "violations"}
}

// Names of the metrics of the snapshot.
const (
	QueueDepth        = "evalonce.queue.depth"
	OldestReadyAge    = "evalonce.queue.oldest_ready_age"
	DeadLetters       = "evalonce.dead_letters"
	RouteState        = "evalonce.route.state"
	RouteLimit        = "evalonce.route.limit"
	RoutePermits      = "evalonce.route.permits"
	Spend             = "evalonce.spend"
	SpendLimit        = "evalonce.spend.limit"
	Saved             = "evalonce.saved"
	Jobs              = "evalonce.jobs"
	WebhookEndpoints  = "evalonce.webhook.endpoints"
	WebhookOldestDue  = "evalonce.webhook.oldest_due_age"
	OldestTransaction = "evalonce.db.oldest_snapshot_age"
	TableTuples       = "evalonce.table.tuples"
	TableSize         = "evalonce.table.size"
	SweepAge          = "evalonce.sweep.age"
	SweepOK           = "evalonce.sweep.ok"
	SweepCount        = "evalonce.sweep.count"
	SnapshotAge       = "evalonce.snapshot.age"
)

func snapshot() []Metric {
	route, lane := routeLabel(), laneLabel()
	period := label("period", "day", "month")
	scope := bounded("scope", boundScopes)
	table := label("table", HotTables()...)
	metrics := []Metric{
		{
			Name: QueueDepth, Unit: "{evaluation}", Labels: []Label{route, lane, label("state", Ready, Running, Scheduled, Dead)},
			Help: "Evaluations that are due, being worked on, due later, and dead letters. Exact up to 10,000 (dead: 100,000 of all); beyond that what the planner believes.",
		},
		{
			Name: OldestReadyAge, Unit: "s", Labels: []Label{route, lane},
			Help: "How long the evaluation that is due the longest has been so; 0 when none is. Of a route that is shut or out of budget, too.",
		},
		{
			Name: DeadLetters, Unit: "{evaluation}", Labels: []Label{label("class", Classes()...), label("reason", Reasons()...)},
			Help: "Dead letters that nobody has discarded, up to 10,000 of each reason.",
		},
		{
			Name: RouteState, Unit: "", Labels: []Label{route, label("state", "closed", "open", "half_open", "halted", "paused", "budget_exhausted")},
			Help: "1 for the state of the breaker, for an operator's pause, and while a budget has no room for the next call; else 0.",
		},
		{
			Name: RouteLimit, Unit: "", Labels: []Label{route, label("limit", "requests_per_minute", "tokens_per_minute", "concurrent_calls")},
			Help: "What an operator has set as the limits of a route; absent where there is none.",
		},
		{
			Name: RoutePermits, Unit: "", Labels: []Label{route, label("limit", "requests_per_minute", "tokens_per_minute")},
			Help: "What of the limit may be used at once.",
		},
		{
			Name: Spend, Unit: "USD", Labels: []Label{scope, period},
			Help: "What is spent in the period, or may be by calls under way; of what has a limit, or had one in the period.",
		},
		{Name: SpendLimit, Unit: "USD", Labels: []Label{scope, period}, Help: "What may be spent in the period."},
		{
			Name: Saved, Unit: "USD", Labels: []Label{route},
			Help: "What the newest 10,000 tickets of the last 24 hours would have cost more with a call for each.",
		},
		{
			Name: Jobs, Unit: "{job}", Labels: []Label{label("kind", "evaluate", "replay", "policy"), label("state", "running", "paused", "failed")},
			Help: "Jobs that run or are paused, and those that have failed within 7 days.",
		},
		{
			Name: WebhookEndpoints, Unit: "{endpoint}", Labels: []Label{label("state", "enabled", "disabled"), label("reason", None, "client", "gone", "failing")},
			Help: "Webhook endpoints, up to 10,000, with the reason why they are disabled.",
		},
		{
			Name: WebhookOldestDue, Unit: "s",
			Help: "How long the delivery that is due the longest has been so, of the enabled endpoints that are not left alone; 0 when none is.",
		},
		{
			Name: OldestTransaction, Unit: "s",
			Help: "Age of the oldest transaction of the database that keeps dead rows from being removed, as far as this role may see.",
		},
		{
			Name: TableTuples, Unit: "{row}", Labels: []Label{table, label("state", "live", "dead")},
			Help: "Rows of a hot table, and dead ones that no vacuum has removed, as Postgres estimates them.",
		},
		{Name: TableSize, Unit: "By", Labels: []Label{table}, Help: "Size of a hot table with its indexes."},
		{Name: SweepAge, Unit: "s", Help: "Time since a sweep has ended well; before the first one, since the tables were made."},
		{Name: SweepOK, Unit: "", Help: "1 when the last sweep ended well, 0 when it failed or found a broken promise."},
		{Name: SweepCount, Unit: "", Labels: []Label{label("count", SweepCounts()...)}, Help: "What the last sweep has counted; violations only where it checked."},
		{Name: SnapshotAge, Unit: "s", Help: "Age of all these values. When it grows, no replica of admin can read the tables, and the others are absent."},
	}
	for i := range metrics {
		metrics[i].Kind, metrics[i].Service, metrics[i].Snapshot = Gauge, AdminService, true
	}
	return metrics
}

// Reasons are the reasons of dead letters.
func Reasons() []string {
	var all []string
	for _, r := range failure.Reasons() {
		all = append(all, string(r))
	}
	return all
}
