package evaluate

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/metrics"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/route"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/inference"
)

// written are the keys whose work a settlement has changed: those whose lease held.
type written struct {
	finished, putBack, buried, released map[content.Key]bool
}

func (w written) outcome(k content.Key) string {
	switch {
	case w.finished[k]:
		return metrics.Answered
	case w.putBack[k]:
		return metrics.Retried
	case w.buried[k]:
		return metrics.Dead
	case w.released[k]:
		return metrics.Released
	}
	return metrics.LeftOver
}

// measure counts and logs what a group has come to that is committed: all that is alike at once.
func (w *Worker) measure(ctx context.Context, group []settlement, done written) {
	warn(ctx, group, done)
	debug := slog.Default().Enabled(ctx, slog.LevelDebug)
	if w.Metrics == nil && !debug {
		return
	}
	now := time.Now()
	all := map[metrics.Alike]*metrics.Settled{}
	substituted := map[[2]string]bool{}
	for _, s := range group {
		if s.item.claimedAt.IsZero() {
			continue // a stray lease, which was not counted when it was claimed either
		}
		outcome := done.outcome(s.item.Key)
		alike := metrics.Alike{Route: s.item.route, Lane: string(s.item.Lane), Outcome: outcome, Class: s.class(), Call: s.call()}
		sum, ok := all[alike]
		if !ok {
			sum = &metrics.Settled{}
			all[alike] = sum
		}
		sum.Evaluations++
		if outcome == metrics.Answered {
			sum.Seconds = append(sum.Seconds, (s.item.Age + now.Sub(s.item.claimedAt)).Seconds())
		}
		s.addCall(alike.Call, sum, substituted)
		if debug {
			slog.DebugContext(ctx, "an evaluation has changed its state", slog.Any("key", s.item.Key), slog.String("outcome", outcome),
				slog.String("class", alike.Class), slog.Int("attempt", s.item.Attempts))
		}
	}
	w.Metrics.Settled(ctx, all)
}

// warn tells of each failure.
func warn(ctx context.Context, group []settlement, done written) {
	for _, s := range group {
		if s.failure == nil {
			continue
		}
		slog.WarnContext(ctx, "an evaluation failed", slog.Any("key", s.item.Key), slog.String("outcome", done.outcome(s.item.Key)),
			slog.Any("class", s.failure.Class), slog.Any("reason", s.failure.Reason), slog.Int("attempt", s.item.Attempts), slog.String("route", s.item.route))
	}
}

func (s settlement) class() string {
	if s.failure == nil {
		return metrics.None
	}
	return string(s.failure.Class)
}

// call is what the settlement tells of a call; empty where it tells of none that has not been counted before. A response
// that was saved was counted with its tokens when it came.
func (s settlement) call() metrics.Call {
	if s.closure == nil {
		return metrics.Call{}
	}
	v := s.item.version
	c := metrics.Call{Provider: v.Provider, Model: v.Model, Version: v.ID, Outcome: string(s.closure.Outcome), Class: metrics.None}
	if s.closure.Failure != nil {
		c.Class = string(s.closure.Failure.Class)
	}
	switch {
	case s.closure.CallID != s.item.CallID && s.unsent:
		c.Outcome = metrics.Recovered
	case s.closure.CallID != s.item.CallID, s.item.CallID == uuid.Nil, s.closure.Outcome == ledger.Unsent:
		return metrics.Call{}
	}
	return c
}

func (s settlement) addCall(c metrics.Call, sum *metrics.Settled, substituted map[[2]string]bool) {
	if c.Outcome == "" {
		return
	}
	it := s.item
	sum.Calls++
	if u := s.closure.Usage; u != nil {
		sum.Input, sum.CachedInput = sum.Input+u.InputTokens, sum.CachedInput+u.CachedInputTokens
		sum.Output, sum.Reasoning = sum.Output+u.OutputTokens, sum.Reasoning+u.ReasoningTokens
		sum.CostUSD += s.closure.CostUSD.InexactFloat64()
	}
	pair := [2]string{it.version.Model, s.closure.ServedModel}
	other, known := substituted[pair]
	if !known {
		other = inference.Substituted(pair[0], pair[1])
		substituted[pair] = other
	}
	if other {
		sum.Substituted++
	}
	if it.calledAt.IsZero() {
		return
	}
	sum.CallSeconds = append(sum.CallSeconds, it.returnedAt.Sub(it.calledAt).Seconds())
	if it.Attempts == 1 {
		sum.PickupSeconds = append(sum.PickupSeconds, (it.Age + it.calledAt.Sub(it.claimedAt)).Seconds())
	}
}

// measureClaim counts what was claimed, by what is known of it.
func (w *Worker) measureClaim(ctx context.Context, l *line, rows []outbox.Claimed) {
	var known [2][3]int // of the live and of the bulk lane
	for _, r := range rows {
		lane := 0
		if r.Lane == outbox.Bulk {
			lane = 1
		}
		switch {
		case r.Answered:
			known[lane][1]++
		case r.SavedCallID != uuid.Nil:
			known[lane][2]++
		default:
			known[lane][0]++
		}
	}
	for i, lane := range []outbox.Lane{outbox.Live, outbox.Bulk} {
		w.Metrics.Claimed(ctx, l.name, string(lane), known[i][0], known[i][1], known[i][2])
	}
}

// running tells of the evaluations under way by route.
func (w *Worker) running(observe func(route string, n int)) {
	for _, l := range w.allLines() {
		observe(l.name, int(l.under.Load()))
	}
}

// Remarks tell of the routes whose work waits until an operator does something; the worker is ready all the same.
func (w *Worker) Remarks() []string {
	var remarks []string
	for _, l := range w.allLines() {
		switch state := l.state.Load(); {
		case state.Paused:
			remarks = append(remarks, "route "+l.name+" is paused")
		case state.State == route.Halted:
			remarks = append(remarks, "route "+l.name+" is halted: "+state.Reason)
		case state.Parked() != "":
			remarks = append(remarks, "route "+l.name+": "+state.Parked())
		}
	}
	slices.Sort(remarks)
	return remarks
}
