package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// Options of a run.
type Options struct {
	schedule.Options
	Bin    string        // directory of the product's binaries
	Self   string        // path of the binary that is the rivals' processes when its first argument names one
	Dir    string        // for logs and data; emptied first
	Lease  time.Duration // EvalOnce's, and the queue's visibility timeout; a call may take two thirds of it
	Server string        // address of a Postgres to make databases on; "" starts one for each design
}

// What the model takes, in virtual time.
const (
	modelLeast = 800 * time.Millisecond
	modelMost  = 4 * time.Second
)

// ErrBroken is that EvalOnce has not kept what it promises.
var ErrBroken = errors.New("EvalOnce broke a promise")

// Run plays the month against every design and returns a result for each. What goes on is told to out. When EvalOnce
// breaks a promise, the error matches ErrBroken, and the results are there.
func Run(ctx context.Context, opts Options, out io.Writer) ([]Result, error) {
	s, err := schedule.New(opts.Options)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(opts.Dir); err != nil {
		return nil, fmt.Errorf("empty the directory of the scenario: %w", err)
	}
	prices, err := derivePrices(ctx, s)
	if err != nil {
		return nil, err
	}
	announce(out, s, prices)
	var results []Result
	var broken []error
	for _, c := range contenders() {
		r, err := playAgainst(ctx, opts, s, prices, c, out)
		if err != nil {
			return results, fmt.Errorf("%s: %w", c.title, err)
		}
		results = append(results, r)
		for _, b := range r.Broken {
			broken = append(broken, fmt.Errorf("%w: %s", ErrBroken, b))
		}
	}
	return results, errors.Join(broken...)
}

// contender is a design before it runs.
type contender struct {
	name   string // in reports
	title  string
	waits  bool // whether a ticket can wait for its evaluation
	launch func(context.Context, *rig) (design, error)
}

func contenders() []contender {
	return []contender{
		{name: "in_request", title: "call in the request", launch: launchInRequest},
		{name: "queue", title: "plain queue", waits: true, launch: launchQueue},
		{name: "evalonce", title: "EvalOnce", waits: true, launch: launchEvalOnce},
	}
}

// design is one that runs.
type design interface {
	// target is where tickets are sent to.
	target() target
	// restart kills the process that calls the model, and starts it again.
	restart(context.Context) error
	// waiting counts the tickets created until then whose evaluation is still to come.
	waiting(ctx context.Context, until time.Time) (int, error)
	// account is taken at the end.
	account(context.Context, providersim.Stats) (account, error)
}

// account is what became of the tickets.
type account struct {
	evaluated int      // tickets
	cut       int      // calls in flight at kills
	broken    []string // promises
}

// rig is what every design gets.
type rig struct {
	*stack.Stack
	schedule  schedule.Schedule
	prices    evaluation.Prices
	lease     time.Duration
	self      string // name of the own binary among the stack's
	simulator *stack.Simulator
	postgres  string // directory of its own one
	closers   []func()
}

func (r *rig) stop() error {
	for _, shut := range r.closers {
		shut()
	}
	err := r.Stop()
	// The logs stay; the data are of no use, and large.
	if r.postgres != "" {
		err = errors.Join(err, os.RemoveAll(r.postgres))
	}
	return err
}

func playAgainst(ctx context.Context, opts Options, s schedule.Schedule, prices evaluation.Prices, c contender, out io.Writer) (_ Result, err error) {
	r, err := newRig(ctx, opts, s, prices, c.name)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	// Whatever ends unasked ends the run, which says so.
	ctx, cancel := r.Watch(ctx)
	defer cancel()
	result, err := r.play(ctx, c, out)
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	return result, err
}

func newRig(ctx context.Context, opts Options, s schedule.Schedule, prices evaluation.Prices, name string) (_ *rig, err error) {
	bin, err := filepath.Abs(opts.Bin)
	if err != nil {
		return nil, fmt.Errorf("find the binaries: %w", err)
	}
	self, err := filepath.Rel(bin, opts.Self)
	if err != nil {
		return nil, fmt.Errorf("find the own binary: %w", err)
	}
	st, err := stack.New(ctx, stack.Options{Bin: bin, Dir: filepath.Join(opts.Dir, name)})
	if err != nil {
		return nil, err
	}
	r := &rig{Stack: st, schedule: s, prices: prices, lease: opts.Lease, self: self}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	server := opts.Server
	if server == "" {
		if r.postgres, err = st.StartPostgres(ctx); err != nil {
			return nil, err
		}
		server = st.DatabaseURL()
	}
	if _, err := st.MakeDatabase(ctx, server); err != nil {
		return nil, err
	}
	r.simulator, err = st.StartSimulator(ctx,
		fmt.Sprintf("EVALONCE_PROVIDERSIM_SEED=%d", s.Seed),
		"EVALONCE_PROVIDERSIM_LATENCY_MIN="+s.Scaled(modelLeast).String(),
		"EVALONCE_PROVIDERSIM_LATENCY_MAX="+s.Scaled(modelMost).String(),
		"EVALONCE_PROVIDERSIM_INPUT_USD_PER_MTOK="+prices.InputUSDPerMTok.String(),
		"EVALONCE_PROVIDERSIM_CACHED_INPUT_USD_PER_MTOK="+prices.CachedInputUSDPerMTok.String(),
		"EVALONCE_PROVIDERSIM_OUTPUT_USD_PER_MTOK="+prices.OutputUSDPerMTok.String(),
	)
	return r, err
}

func (r *rig) play(ctx context.Context, c contender, out io.Writer) (Result, error) {
	d, err := c.launch(ctx, r)
	if err != nil {
		return Result{}, err
	}
	progress := report.StartProgress(out, c.title+": sent", len(r.schedule.Tickets))
	p := newPlayer(r, d, progress)
	err = p.play(ctx)
	progress.Stop()
	if err != nil {
		return Result{}, err
	}
	stats, err := r.settled(ctx)
	if err != nil {
		return Result{}, err
	}
	a, err := d.account(ctx, stats)
	if err != nil {
		return Result{}, err
	}
	return r.result(c, p, stats, a), nil
}
