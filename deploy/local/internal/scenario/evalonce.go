package scenario

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/triage"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/fsck"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/versiondb"
)

// Settings of the product that are in real seconds.
const (
	sweepInterval = 30 * time.Second
	// A sweep looks at two days of tickets by default, which here would be the whole month.
	reconcileWindow = time.Minute
)

// callTimeout is as in package rival.
func (e *evalOnce) callTimeout() time.Duration { return e.lease * 2 / 3 }

// evalOnce is the product that runs.
type evalOnce struct {
	*rig
	db     *pgxpool.Pool
	api    *stack.API
	token  string
	worker *stack.Process
}

func launchEvalOnce(ctx context.Context, r *rig) (design, error) {
	e := &evalOnce{rig: r}
	if err := r.Migrate(ctx); err != nil {
		return nil, err
	}
	var err error
	if e.db, err = r.open(ctx); err != nil {
		return nil, err
	}
	if err := e.activate(ctx); err != nil {
		return nil, err
	}
	token, hash := rpc.MintToken()
	e.token = token
	if e.api, err = r.StartTicketAPI(ctx, "scenario="+hash); err != nil {
		return nil, err
	}
	e.worker, err = r.StartWorker(ctx, r.simulator.Endpoint, "EVALONCE_LEASE="+r.lease.String(), "EVALONCE_CONCURRENCY="+strconv.Itoa(callsAtATime))
	if err != nil {
		return nil, err
	}
	if _, err := r.StartSweeper(ctx, sweepInterval, "EVALONCE_RECONCILE_WINDOW="+reconcileWindow.String()); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *evalOnce) activate(ctx context.Context) error {
	const by = "scenario"
	v := triage.Version(e.prices)
	return postgres.InTx(ctx, e.db, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := versiondb.Register(ctx, tx, v, by); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE provider_route SET call_timeout = make_interval(secs => $2) WHERE name = $1", v.Route, e.callTimeout().Seconds())
		if err != nil {
			return fmt.Errorf("set the call timeout of route %s: %w", v.Route, err)
		}
		return versiondb.Promote(ctx, tx, v.ID, "", by)
	})
}

func (e *evalOnce) target() target { return target{url: e.api.HTTP + "/v1/tickets", token: e.token} }

func (e *evalOnce) restart(ctx context.Context) (err error) {
	e.worker, err = restart(ctx, e.Stack, e.worker)
	return err
}

func (e *evalOnce) waiting(ctx context.Context, until time.Time) (n int, err error) {
	const work = "SELECT count(*) FROM evaluation_outbox WHERE status <> 'dead' AND created_at <= $1"
	if err := e.db.QueryRow(ctx, work, until).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the work that waits: %w", err)
	}
	return n, nil
}

// account holds what the product did against what it promises.
func (e *evalOnce) account(ctx context.Context, stats providersim.Stats) (account, error) {
	var a account
	var requests, dead int
	err := e.db.QueryRow(ctx, `
		SELECT (SELECT count(DISTINCT t.external_id) FROM ticket t
		        WHERE EXISTS (SELECT FROM evaluation_result r WHERE r.content_hash = t.content_hash)),
		       (SELECT count(*) FROM model_call WHERE outcome = 'unknown' AND reason = 'lease_expired'),
		       (SELECT count(*) FROM model_call WHERE outcome <> 'unsent'),
		       (SELECT count(*) FROM evaluation_outbox WHERE status = 'dead')`).Scan(&a.evaluated, &a.cut, &requests, &dead)
	if err != nil {
		return account{}, fmt.Errorf("read the accounts: %w", err)
	}
	verdict, err := fsck.Run(ctx, e.db, fsck.Options{StatementTimeout: patience})
	if err != nil {
		return account{}, err
	}
	for _, f := range verdict.Violations {
		a.broken = append(a.broken, "fsck: "+f.String())
	}
	a.broken = append(a.broken, breaches(len(e.schedule.Tickets), e.schedule.Distinct, requests, dead, a, stats)...)
	return a, nil
}

// breaches says what the sums contradict.
func breaches(tickets, distinct, requests, dead int, a account, stats providersim.Stats) []string {
	var found []string
	add := func(broken bool, format string, args ...any) {
		if broken {
			found = append(found, fmt.Sprintf(format, args...))
		}
	}
	add(a.evaluated != tickets, "%d of %d tickets are without evaluation, %d contents among the dead letters", tickets-a.evaluated, tickets, dead)
	add(stats.Billed-stats.BilledContents > a.cut, "%d calls billed for %d contents, with %d in flight at kills", stats.Billed, stats.BilledContents, a.cut)
	add(stats.BilledContents != distinct, "%d contents were billed, of %d", stats.BilledContents, distinct)
	add(stats.Requests > requests, "the provider received %d requests, the ledger has %d", stats.Requests, requests)
	return found
}
