// Package replay makes dead letters due again, as a job.
//
// What a replay is made of is fixed when it is made. A chunk takes rows off that selection, and replays each or skips it
// with a word why, in one transaction with the counts; so at any time
//
//	replayed + skipped + not come to yet = selected
//
// whatever happened to the replicas, and however often the chunk was tried. A row is skipped when it is no longer the
// dead letter that was selected: an operator's decision about one is not one about another.
package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/jobdb"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// Mode says how dead letters are replayed.
type Mode string

// The modes. fsck knows recall by this name.
const (
	Revalidate Mode = "revalidate" // the stored response is judged again
	Recall     Mode = "recall"     // the model is called again
)

// CanaryPause is the reason of the pause behind a canary.
const CanaryPause = "canary"

const (
	// chunk is how many rows a transaction takes.
	chunk = 1000
	// ahead is how far into the future a chunk makes work due, so that a pause is in force soon.
	ahead = 10 * time.Second
	// recentCalls is how many calls an estimate looks at.
	recentCalls = 100_000
)

// Request is what an operator asks for.
type Request struct {
	Mode          Mode
	Keys          []content.Key // or what the filter selects
	Filter        outbox.DeadFilter
	Limit         int64   // the oldest of them; 0 for all
	Canary        int64   // replayed before it pauses; 0 for none
	RatePerSecond float64 // 0 for all at once
	By            string
}

// Spec is what a replay was made of.
type Spec struct {
	Mode          Mode             `json:"mode"`
	Selection     uuid.UUID        `json:"selection"`
	Limit         int64            `json:"limit,omitempty"`
	Canary        int64            `json:"canary,omitempty"`
	RatePerSecond float64          `json:"rate_per_second,omitempty"`
	Selected      int64            `json:"selected"`
	WithResponse  int64            `json:"with_response"`
	Calls         int64            `json:"calls"`
	EstimateUSD   *decimal.Decimal `json:"estimate_usd,omitempty"` // nil when it is not known
}

// Start selects dead letters and makes the job that replays them.
func Start(ctx context.Context, tx pgx.Tx, r Request) (jobdb.Job, error) {
	spec := Spec{Mode: r.Mode, Selection: uuid.New(), Limit: r.Limit, Canary: r.Canary, RatePerSecond: r.RatePerSecond}
	selected, err := outbox.SelectDead(ctx, tx, outbox.Selection{ID: spec.Selection, Keys: r.Keys, Filter: r.Filter, Most: r.Limit})
	if err != nil {
		return jobdb.Job{}, err
	}
	for _, s := range selected {
		spec.Selected += s.Count
		spec.WithResponse += s.WithResponse
	}
	if r.Mode == Recall {
		spec.Calls = spec.Selected
		if spec.EstimateUSD, err = estimate(ctx, tx, spec.Selection, selected); err != nil {
			return jobdb.Job{}, err
		}
	} else {
		spec.EstimateUSD = &decimal.Decimal{}
	}
	return jobdb.Insert(ctx, tx, jobdb.New{Kind: jobdb.Replay, Spec: spec, CreatedBy: r.By})
}

// estimate is what calls for a selection cost if they cost what calls of their versions did lately, or else what their
// own former calls did; nil when neither is known of one of the versions.
func estimate(ctx context.Context, tx pgx.Tx, selection uuid.UUID, selected []outbox.Selected) (*decimal.Decimal, error) {
	recent, err := ledger.RecentUse(ctx, tx, recentCalls)
	if err != nil {
		return nil, err
	}
	former, err := outbox.SelectedCosts(ctx, tx, selection)
	if err != nil {
		return nil, err
	}
	sum := decimal.Zero
	for _, s := range selected {
		cost, known := former[s.VersionID]
		if use, ok := recent[s.VersionID]; ok {
			cost, known = use.CostUSD, true
		}
		if !known {
			return nil, nil //nolint:nilnil // no estimate is a result
		}
		sum = sum.Add(cost.Mul(decimal.NewFromInt(s.Count)))
	}
	sum = sum.Round(estimateDecimals)
	return &sum, nil
}

// estimateDecimals of a dollar are more than an average is worth.
const estimateDecimals = 6

// cursor is where the next chunk begins.
type cursor struct {
	After  content.Key `json:"after,omitempty"`  // the last key that was taken off the selection
	NextAt time.Time   `json:"next_at,omitzero"` // when the next row is due
	Canary bool        `json:"canary,omitempty"` // the pause behind the canary was made
}

const (
	replayedCount = "replayed"
	skippedPrefix = "skipped_"
)

// Step replays the next rows of a selection.
func Step(ctx context.Context, tx pgx.Tx, j jobdb.Job) (jobdb.Progress, error) {
	var spec Spec
	var at cursor
	if err := decode(j, &spec, &at); err != nil {
		return jobdb.Progress{}, err
	}
	most, step := int64(chunk), time.Duration(0)
	if spec.RatePerSecond > 0 {
		most = min(most, max(1, int64(spec.RatePerSecond*ahead.Seconds())))
		step = time.Duration(float64(time.Second) / spec.RatePerSecond)
	}
	canary := spec.Canary > 0 && !at.Canary
	if canary {
		most = max(1, min(most, spec.Canary-j.Counts[replayedCount]))
	}
	taken, err := outbox.TakeSelected(ctx, tx, spec.Selection, j.CreatedAt, at.After, int(most))
	if err != nil {
		return jobdb.Progress{}, err
	}
	keys, add, err := free(ctx, tx, spec.Mode, j.ID, taken)
	if err != nil {
		return jobdb.Progress{}, err
	}
	next, wait, err := outbox.Revive(ctx, tx, outbox.Revival{
		Job: j.ID, Keys: keys, Recalled: spec.Mode == Recall, NextAt: at.NextAt, Step: step,
	})
	if err != nil {
		return jobdb.Progress{}, err
	}
	at.After, at.NextAt = taken.Last, next
	progress := jobdb.Progress{Add: add, Wait: max(0, wait-ahead)}
	switch left := spec.Selected - handled(j.Counts) - handled(add); {
	case left <= 0 || taken.Count == 0:
		progress.Done = true
	case canary && j.Counts[replayedCount]+add[replayedCount] >= spec.Canary:
		at.Canary = true
		progress.Pause = CanaryPause
	}
	if progress.Cursor, err = json.Marshal(at); err != nil {
		return jobdb.Progress{}, fmt.Errorf("encode the cursor of replay %s: %w", j.ID, err)
	}
	return progress, nil
}

// free does what lets dead letters be claimed again to some end, and returns those that are to be revived, with what the
// rows taken come to.
func free(ctx context.Context, tx pgx.Tx, mode Mode, job uuid.UUID, taken outbox.Taken) (keys []content.Key, add map[string]int64, err error) {
	add = map[string]int64{}
	for word, n := range taken.Skipped {
		add[skippedPrefix+string(word)] += n
	}
	keys = taken.Dead
	if mode == Recall {
		err = ledger.Recall(ctx, tx, job, keys)
	} else {
		var reopened map[content.Key]bool
		reopened, err = ledger.Reopen(ctx, tx, keys)
		if none := int64(len(keys) - len(reopened)); none > 0 {
			add[skippedPrefix+string(outbox.SkipNoResponse)] = none
		}
		keys = slices.DeleteFunc(slices.Clone(keys), func(k content.Key) bool { return !reopened[k] })
	}
	add[replayedCount] = int64(len(keys))
	return keys, add, err
}

// handled is how many rows counts are of.
func handled(counts map[string]int64) (n int64) {
	for name, count := range counts {
		if name == replayedCount || strings.HasPrefix(name, skippedPrefix) {
			n += count
		}
	}
	return n
}

// Cancel ends a replay. What it has not come to stays dead.
func Cancel(ctx context.Context, tx pgx.Tx, id uuid.UUID) (j jobdb.Job, changed bool, err error) {
	if j, changed, err = jobdb.Cancel(ctx, tx, jobdb.Replay, id, false); err != nil || !changed {
		return j, changed, err
	}
	var spec Spec
	if err := decode(j, &spec, &cursor{}); err != nil {
		return jobdb.Job{}, false, err
	}
	return j, true, outbox.DropSelection(ctx, tx, spec.Selection)
}

// Standing is what a replay has come to: Replayed + Skipped + Failed + Remaining = Selected.
type Standing struct {
	Spec
	Replayed, Skipped int64
	Failed            int64            // not come to because it has failed
	Remaining         int64            // not come to yet
	SkippedFor        map[string]int64 // by the word why
}

// skippedCanceled is the word for what a canceled replay has not come to.
const skippedCanceled = "canceled"

// StandingOf reads what a job has come to.
func StandingOf(j jobdb.Job) (Standing, error) {
	s := Standing{Replayed: j.Counts[replayedCount], SkippedFor: map[string]int64{}}
	if err := decode(j, &s.Spec, &cursor{}); err != nil {
		return Standing{}, err
	}
	for name, n := range j.Counts {
		if word, ok := strings.CutPrefix(name, skippedPrefix); ok && n > 0 {
			s.SkippedFor[word] = n
		}
	}
	left := s.Selected - handled(j.Counts)
	switch {
	case left == 0:
	case j.State == jobdb.Canceled:
		s.SkippedFor[skippedCanceled] = left
	case j.State == jobdb.Failed:
		s.Failed = left
	default:
		s.Remaining = left
	}
	for _, n := range s.SkippedFor {
		s.Skipped += n
	}
	return s, nil
}

func decode(j jobdb.Job, spec *Spec, at *cursor) error {
	if err := json.Unmarshal(j.Spec, spec); err != nil {
		return fmt.Errorf("decode the spec of replay %s: %w", j.ID, err)
	}
	if err := json.Unmarshal(j.Cursor, at); err != nil {
		return fmt.Errorf("decode the cursor of replay %s: %w", j.ID, err)
	}
	return nil
}
