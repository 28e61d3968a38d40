package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

const watchPoll = time.Second

// watchReprocess shows a job's progress until it is done, and then the job. That it ends otherwise, or is paused, is an
// error. Whoever interrupts it leaves the job as it is.
func (c *cli) watchReprocess(ctx context.Context, jobs adminv1.ReprocessServiceClient, id string) (err error) {
	var enqueuing, evaluating *gauge
	defer func() {
		enqueuing.stop(err)
		evaluating.stop(err)
	}()
	poll := time.NewTicker(watchPoll)
	defer poll.Stop()
	for {
		r, err := jobs.GetReprocess(ctx, &adminv1.GetReprocessRequest{Id: id})
		if err != nil {
			return fmt.Errorf("get job %s: %w", id, err)
		}
		p := r.GetProgress()
		if r.GetPhase() == "evaluating" {
			enqueuing.stop(nil)
			if enqueuing = nil; evaluating == nil {
				evaluating = &gauge{bar: c.startBar("evaluating", p.GetEnqueued(), progress.UnitsDefault)}
			}
			evaluating.to(p.GetEnqueued() - p.GetWaiting() - p.GetProcessing())
		} else if enqueuing == nil && r.GetPhase() != "" && p.GetTotal() > 0 {
			enqueuing = &gauge{bar: c.startBar("enqueuing", p.GetTotal(), progress.UnitsDefault)}
		}
		enqueuing.to(p.GetSeen())
		if r.GetPhase() == "" {
			enqueuing.stop(nil)
			evaluating.stop(nil)
			enqueuing, evaluating = nil, nil
			if r.GetState() != "done" {
				return fmt.Errorf("job %s is %s%s", id, r.GetState(), because(r.GetStateReason()))
			}
			return c.print(r, func(w io.Writer) { describeReprocess(w, r) })
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("job %s goes on: %w", id, context.Cause(ctx))
		}
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// gauge is a bar that is told where it stands. There may be none.
type gauge struct {
	bar *bar
	at  int64
}

func (g *gauge) to(n int64) {
	if g != nil {
		g.bar.add(n - g.at)
		g.at = n
	}
}

func (g *gauge) stop(err error) {
	if g != nil {
		g.bar.stop(err)
	}
}
