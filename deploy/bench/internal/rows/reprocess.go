package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/evalonce/evalonce/deploy/bench/internal/bed"
	"github.com/evalonce/evalonce/deploy/bench/internal/harness"
	"github.com/evalonce/evalonce/deploy/bench/internal/peer"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/rpc"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// reprocessed is how many stored tickets a job evaluates anew.
const reprocessed = 200_000

// defaultSpread is the time over which a job's evaluations become due when nobody says otherwise.
const defaultSpread = 30 * time.Minute

// enqueue is how fast a job gives stored tickets their work, from the call that starts it until all have it. The peer is
// timed over fewer tickets: its rate does not depend on how many there are.
func (b *Bench) enqueue() harness.Group {
	n, looped := b.sized(reprocessed, 500), b.sized(10_000, 100)
	ours := &harness.Subject{Name: "a reprocessing job", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (_ harness.Figures, err error) {
		if err := db.Fill(ctx, bed.Backlog{Count: n, Route: bed.Main, Idle: true}); err != nil {
			return nil, err
		}
		a, err := b.startAdmin(ctx, db)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, a.stop()) }()
		began := time.Now()
		id, err := a.reprocess(ctx, defaultSpread)
		if err != nil {
			return nil, err
		}
		p, err := a.until(ctx, id, func(p *adminv1.ReprocessProgress) bool { return p.GetEnqueued() >= int64(n) })
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		return harness.Figures{rate: float64(p.GetEnqueued()) / took.Seconds()}, nil
	})}
	loop := &harness.Subject{Name: "one insert for each, in a loop", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Fill(ctx, bed.Backlog{Count: looped, Route: bed.Main, Idle: true}); err != nil {
			return nil, err
		}
		r, err := peer.EnqueueInLoop(ctx, db, bed.NextVersion)
		return harness.Figures{rate: r}, err
	})}
	return harness.Group{Name: "reprocess", Rounds: b.rounds(3), Rows: []harness.Row{{
		Name: fmt.Sprintf("reprocess, %s enqueued", harness.Thousands(n)), Unit: perSec, Figure: rate, Of: ours, Against: loop, Must: harness.AtLeast(30),
	}}}
}

// beside is how long live tickets wait while a job runs: while it enqueues, and afterwards, while its evaluations become
// due on the same route, one after the other.
func (b *Bench) beside() harness.Group {
	const enqueuing, evaluating = "p95 while it enqueues, ms", "p95 while it evaluates, ms"
	n, tickets := b.sized(reprocessed, 500), b.sized(500, 10)
	pickup := func(ctx context.Context, db *bed.Database) (p95 float64, err error) {
		m, err := b.worker(ctx, db, "pickup", fmt.Sprintf("-n=%d", tickets), "-gap=20ms", "-latency=500ms")
		return m.Pickup.P95, err
	}
	fill := bed.Backlog{Count: n, Route: bed.Main, Idle: true}
	job := &harness.Subject{Name: "beside a job", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (_ harness.Figures, err error) {
		if err := db.Fill(ctx, fill); err != nil {
			return nil, err
		}
		a, err := b.startAdmin(ctx, db)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, a.stop()) }()
		id, err := a.reprocess(ctx, time.Duration(b.Scale*float64(defaultSpread)))
		if err != nil {
			return nil, err
		}
		f := harness.Figures{}
		for _, phase := range []struct {
			figure   string
			enqueued int
		}{{enqueuing, 1}, {evaluating, n}} {
			if _, err := a.until(ctx, id, func(p *adminv1.ReprocessProgress) bool { return p.GetEnqueued() >= int64(phase.enqueued) }); err != nil {
				return nil, err
			}
			if f[phase.figure], err = pickup(ctx, db); err != nil {
				return nil, err
			}
		}
		return f, nil
	})}
	alone := &harness.Subject{Name: "without a job", Run: b.onFresh(func(ctx context.Context, db *bed.Database) (harness.Figures, error) {
		if err := db.Fill(ctx, fill); err != nil {
			return nil, err
		}
		p95, err := pickup(ctx, db)
		return harness.Figures{enqueuing: p95, evaluating: p95}, err
	})}
	row := func(what, figure string) harness.Row {
		return harness.Row{
			Name: fmt.Sprintf("pickup p95 while %s are %s", harness.Thousands(n), what), Unit: "ms", Figure: figure,
			Of: job, Against: alone, Must: harness.AtMost(1.5),
		}
	}
	return harness.Group{Name: "beside", Rounds: b.rounds(3), Rows: []harness.Row{row("enqueued", enqueuing), row("evaluated anew", evaluating)}}
}

// admin is a running admin on a database.
type admin struct {
	*stack.API
	conn   *grpc.ClientConn
	client adminv1.ReprocessServiceClient
	token  string
}

func (b *Bench) startAdmin(ctx context.Context, db *bed.Database) (*admin, error) {
	db.Use()
	token, hash := rpc.MintToken()
	a, err := b.Bed.StartAdmin(ctx, "bench="+hash)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(a.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to admin: %w", err), a.Stop())
	}
	return &admin{API: a, conn: conn, client: adminv1.NewReprocessServiceClient(conn), token: token}, nil
}

func (a *admin) stop() error { return errors.Join(a.conn.Close(), a.Stop()) }

func (a *admin) authorized(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+a.token)
}

// reprocess starts a job for all tickets that there are.
func (a *admin) reprocess(ctx context.Context, spread time.Duration) (id string, err error) {
	job, err := a.client.StartReprocess(a.authorized(ctx), &adminv1.StartReprocessRequest{
		Selection: &adminv1.ReprocessSelection{CreatedFrom: timestamppb.New(time.Now().Add(-time.Hour)), Version: bed.NextVersion},
		Spread:    durationpb.New(spread),
	})
	if err != nil {
		return "", fmt.Errorf("start a job: %w", err)
	}
	return job.GetId(), nil
}

const jobPoll = 10 * time.Millisecond

// until waits for a job to have come so far.
func (a *admin) until(ctx context.Context, id string, far func(*adminv1.ReprocessProgress) bool) (*adminv1.ReprocessProgress, error) {
	ticker := time.NewTicker(jobPoll)
	defer ticker.Stop()
	for {
		job, err := a.client.GetReprocess(a.authorized(ctx), &adminv1.GetReprocessRequest{Id: id})
		switch {
		case err != nil:
			return nil, fmt.Errorf("ask for job %s: %w", id, err)
		case far(job.GetProgress()):
			return job.GetProgress(), nil
		case job.GetState() != "running":
			return nil, fmt.Errorf("job %s is %s %s, with %d enqueued", id, job.GetState(), job.GetStateReason(), job.GetProgress().GetEnqueued())
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
