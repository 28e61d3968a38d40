package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/rpc"
)

const (
	clientID      = "demo"
	concurrency   = 64 // creates at a time
	sweepInterval = 5 * time.Second
	// A simulator has no limits; an account has, and rate limits are no sight for a demo.
	callsElsewhere = "16"
)

// demo is one run.
type demo struct {
	config
	job
	stack *stack.Stack
	out   io.Writer

	db         *pgxpool.Pool
	token      string
	api        *stack.API
	adminToken string
	admin      *stack.API
	simulator  *stack.Simulator // nil when the calls go elsewhere
}

func (d *demo) run(ctx context.Context) error {
	d.say("EvalOnce, the whole of it on this machine\n")
	if err := d.start(ctx); err != nil {
		return err
	}
	defer d.db.Close()
	d.announce()
	client, err := connect(ctx, d.api.GRPC, d.token)
	if err != nil {
		return err
	}
	defer client.close()
	began := time.Now()
	created, err := d.create(ctx, client)
	if err != nil {
		return err
	}
	tickets, err := d.await(ctx, client, created.ids)
	if err != nil {
		return err
	}
	if err := d.conclude(ctx, outcome{created: created, tickets: tickets, took: time.Since(began)}); err != nil {
		return err
	}
	if !d.keep {
		return nil
	}
	webhooks, err := d.receive(ctx, client)
	if err != nil {
		return err
	}
	defer webhooks.close()
	if err := d.showWebhook(ctx, client, webhooks); err != nil {
		return err
	}
	d.explain()
	d.sayDeliveries(ctx, webhooks)
	return context.Cause(ctx)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// start starts everything, in the order in which one needs the other.
func (d *demo) start(ctx context.Context) (err error) {
	if d.server == "" {
		dir, err := d.stack.StartPostgres(ctx)
		if err != nil {
			return err
		}
		d.say("Postgres         a new one, commits are durable (fsync), data in %s", d.short(dir))
	} else {
		name, err := d.stack.MakeDatabase(ctx, d.server)
		if err != nil {
			return err
		}
		d.say("Postgres         yours, in a database for this demo alone: %s", name)
	}
	if err := d.stack.Migrate(ctx); err != nil {
		return err
	}
	if d.db, err = postgres.Open(ctx, postgres.Config{URL: d.stack.DatabaseURL(), AppName: "demo"}); err != nil {
		return err
	}
	if err := d.startServices(ctx); err != nil {
		d.db.Close()
		return err
	}
	return nil
}

func (d *demo) startServices(ctx context.Context) (err error) {
	adminToken, adminHash := rpc.MintToken()
	if d.admin, err = d.stack.StartAdmin(ctx, clientID+"="+adminHash); err != nil {
		return err
	}
	d.adminToken = adminToken
	if err := activate(ctx, d.admin.GRPC, adminToken, d.version); err != nil {
		return err
	}
	endpoint, env := d.provider, []string{"EVALONCE_CONCURRENCY=" + callsElsewhere}
	if endpoint == nil {
		if d.simulator, err = d.stack.StartSimulator(ctx, simulatedPrices(d.prices)...); err != nil {
			return err
		}
		endpoint, env = &d.simulator.Endpoint, nil
	}
	webhooks, err := webhookEnv()
	if err != nil {
		return err
	}
	env = append(env, webhooks...)
	token, hash := rpc.MintToken()
	d.token = token
	if d.api, err = d.stack.StartTicketAPI(ctx, clientID+"="+hash, webhooks...); err != nil {
		return err
	}
	if _, err = d.stack.StartWorker(ctx, *endpoint, env...); err != nil {
		return err
	}
	_, err = d.stack.StartSweeper(ctx, sweepInterval)
	return err
}

// simulatedPrices makes the simulator bill what the version expects, so that the two can be held against each other.
func simulatedPrices(p evaluation.Prices) []string {
	return []string{
		"EVALONCE_PROVIDERSIM_INPUT_USD_PER_MTOK=" + p.InputUSDPerMTok.String(),
		"EVALONCE_PROVIDERSIM_CACHED_INPUT_USD_PER_MTOK=" + p.CachedInputUSDPerMTok.String(),
		"EVALONCE_PROVIDERSIM_OUTPUT_USD_PER_MTOK=" + p.OutputUSDPerMTok.String(),
	}
}

// announce says what runs, what is going to happen, and what leaves this machine.
func (d *demo) announce() {
	d.say("ticket-api       gRPC %s, REST %s", d.api.GRPC, d.api.HTTP)
	d.say("admin            gRPC %s, REST %s", d.admin.GRPC, d.admin.HTTP)
	d.say("                 evaluator-worker, sweeper; logs of all in %s", d.short(filepath.Join(d.dir, "logs")))
	if d.simulator != nil {
		d.say("answers          by the provider simulator at %s, over the wire protocol of OpenAI:", d.simulator.Endpoint.BaseURL)
		d.say("                 an offline lexical classifier, not a language model")
		if d.keyWithout {
			d.say("                 (OPENAI_API_KEY or OPENAI_BASE_URL is set, and not used: MODEL=... names the model to ask)")
		}
	} else {
		d.say("answers          by model %s at %s:", d.model, d.provider.BaseURL)
		d.say("                 subjects and messages are sent there, in about %d calls, %s at a time; somebody pays for them", d.distinct, callsElsewhere)
	}
	source := d.short(d.ticketFile)
	if d.ownTickets {
		source += ", written for this demo"
	}
	d.say("tickets          %d in %s", len(d.tickets), source)
	switch {
	case d.judged > 0:
		d.say("departments      %d, those in column %q", len(d.version.GetDepartments()), d.truth)
	default:
		d.say("departments      %d of the demo's own: there is no column %q", len(d.version.GetDepartments()), d.truth)
		if len(d.ignored) > 0 {
			d.say("                 (columns not used: %s; TRUTH=... names the one that holds the departments)", strings.Join(d.ignored, ", "))
		}
	}
	d.say("")
}

// short is a path as seen from the checkout, where it lies within.
func (d *demo) short(path string) string {
	root := filepath.Dir(filepath.Dir(d.dir))
	if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

func (d *demo) progress(what string) *report.Progress {
	return report.StartProgress(d.out, what, len(d.tickets))
}
