package scenario

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/rival"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// callsAtATime is how many calls a worker makes, the queue's as EvalOnce's.
const callsAtATime = 32

// rivals is a design of package rival that runs.
type rivals struct {
	stack  *stack.Stack
	db     *pgxpool.Pool
	url    string
	caller *stack.Process // calls the model
	waits  string         // SQL that counts what waits; "" where nothing can
}

func launchInRequest(ctx context.Context, r *rig) (design, error) {
	d, err := newRivals(ctx, r)
	if err != nil {
		return nil, err
	}
	if d.caller, d.url, err = r.startRival(ctx, rival.InRequest); err != nil {
		return nil, err
	}
	return d, nil
}

func launchQueue(ctx context.Context, r *rig) (design, error) {
	d, err := newRivals(ctx, r)
	if err != nil {
		return nil, err
	}
	d.waits = "SELECT count(*) FROM job WHERE dead_at IS NULL AND created_at <= $1"
	if _, d.url, err = r.startRival(ctx, rival.QueueAPI); err != nil {
		return nil, err
	}
	if d.caller, _, err = r.startRival(ctx, rival.QueueWorker); err != nil {
		return nil, err
	}
	return d, nil
}

func newRivals(ctx context.Context, r *rig) (*rivals, error) {
	db, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, rival.Schema); err != nil {
		return nil, fmt.Errorf("make the tables: %w", err)
	}
	return &rivals{stack: r.Stack, db: db}, nil
}

// open opens a pool on the design's database that is closed with the rig.
func (r *rig) open(ctx context.Context) (*pgxpool.Pool, error) {
	db, err := postgres.Open(ctx, postgres.Config{URL: r.DatabaseURL(), MaxConns: 4, AppName: "scenario"})
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, db.Close)
	return db, nil
}

func (r *rig) startRival(ctx context.Context, name string) (p *stack.Process, url string, err error) {
	address, err := r.FreeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	url = "http://" + address
	p, err = r.Start(ctx, stack.Spec{
		Name: name, Binary: r.self, Args: []string{name}, Ready: url + "/readyz",
		Env: []string{
			"SCENARIO_ADDRESS=" + address, "SCENARIO_DATABASE_URL=" + r.DatabaseURL(),
			"SCENARIO_PROVIDER_URL=" + r.simulator.Endpoint.BaseURL, "SCENARIO_PROVIDER_KEY=" + r.simulator.Endpoint.APIKey,
			"SCENARIO_PACE=" + strconv.FormatFloat(r.schedule.Pace, 'g', -1, 64),
			"SCENARIO_CONCURRENCY=" + strconv.Itoa(callsAtATime), "SCENARIO_VISIBILITY=" + r.lease.String(),
		},
	})
	return p, url, err
}

func (d *rivals) target() target { return target{url: d.url + "/v1/tickets"} }

func (d *rivals) restart(ctx context.Context) (err error) {
	d.caller, err = restart(ctx, d.stack, d.caller)
	return err
}

// restart kills a process and starts it again, as whatever watches over it would.
func restart(ctx context.Context, s *stack.Stack, p *stack.Process) (*stack.Process, error) {
	if err := p.Kill(); err != nil {
		return nil, err
	}
	return s.Start(ctx, p.Spec)
}

func (d *rivals) waiting(ctx context.Context, until time.Time) (n int, err error) {
	if d.waits == "" {
		return 0, nil
	}
	if err := d.db.QueryRow(ctx, d.waits, until).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the jobs that wait: %w", err)
	}
	return n, nil
}

func (d *rivals) account(ctx context.Context, stats providersim.Stats) (account, error) {
	a := account{cut: stats.ByOutcome[providersim.ClientGone]}
	if err := d.db.QueryRow(ctx, "SELECT count(*) FROM evaluation").Scan(&a.evaluated); err != nil {
		return account{}, fmt.Errorf("count the evaluations: %w", err)
	}
	return a, nil
}
