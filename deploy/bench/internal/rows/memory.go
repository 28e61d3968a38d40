package rows

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
)

// memory is what a process takes at its busiest, and whether it takes more the next time.
func (b *Bench) memory() harness.Group {
	const (
		resident, heap, after, first, last = "resident, MiB", "heap, MiB", "heap after, MiB", "first time, MiB", "last time, MiB"
		mib                                = 1 << 20
	)
	n := b.sized(1_000, 20)
	worker := &harness.Subject{Name: "evaluator-worker", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Fill(ctx, bed.Backlog{Count: n, Route: bed.Main}); err != nil {
			return nil, err
		}
		m, err := b.worker(ctx, db, "hold", fmt.Sprintf("-n=%d", n), fmt.Sprintf("-concurrency=%d", n))
		return harness.Figures{resident: m.Held.ResidentBytes / mib, heap: m.Held.HeapBytes / mib, after: m.After.HeapBytes / mib}, err
	})}
	crowds := &harness.Subject{Name: "the first time", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (_ harness.Figures, err error) {
		if err := db.Settle(ctx); err != nil {
			return nil, err
		}
		a, err := b.startAPI(ctx, db)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, a.Stop()) }()
		f := harness.Figures{}
		const times = 5
		for i := range times {
			bytes, err := a.crowd(ctx, n, i)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				f[first] = bytes / mib
			}
			f[last] = bytes / mib
		}
		return f, nil
	})}
	name := func(what string) string { return fmt.Sprintf(what, harness.Thousands(n)) }
	return harness.Group{Name: "memory", Rounds: b.rounds(1), Rows: []harness.Row{
		{Name: name("worker, memory at %s calls in flight"), Unit: "MiB", Figure: resident, Of: worker},
		{Name: name("worker, heap at %s calls in flight"), Unit: "MiB", Figure: heap, Of: worker},
		{Name: "worker, heap after them", Unit: "MiB", Figure: after, Of: worker},
		{Name: name("ticket-api, memory at %s connections"), Unit: "MiB", Figure: first, Of: crowds},
		{Name: "ticket-api, the fifth time as many connect", Unit: "MiB", Figure: last, Of: crowds, Against: crowds, AgainstFigure: first, Must: harness.AtMost(1.5)},
	}}
}

// crowd connects n clients, each of which creates a ticket, and returns the memory of the ticket-api while all are there.
// They are gone when it returns.
func (a *api) crowd(ctx context.Context, n, nth int) (bytes float64, err error) {
	conns := make([]*grpc.ClientConn, n)
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				err = errors.Join(err, conn.Close())
			}
		}
	}()
	g, calls := errgroup.WithContext(a.authorized(ctx))
	g.SetLimit(inFlight)
	for i := range conns {
		conn, err := a.dial()
		if err != nil {
			return 0, err
		}
		conns[i] = conn
		g.Go(func() error { return createOver(calls, conn, distinct(nth*n+i)) })
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("create tickets over %d connections: %w", n, err)
	}
	return residentBytes(a.PID())
}

// residentBytes is the memory of a process, as Linux has it.
func residentBytes(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kib float64
			if _, err := fmt.Sscanf(value, "%f kB", &kib); err != nil {
				return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
			}
			return kib * 1024, nil
		}
	}
	return 0, fmt.Errorf("read the memory of process %d: the kernel does not tell it", pid)
}
