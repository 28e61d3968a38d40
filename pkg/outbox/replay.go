package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// Selection is what a replay is to be made of. It is fixed once, and its rows go as the replay comes to them.
type Selection struct {
	ID     uuid.UUID
	Keys   []content.Key // those alone; nil for all that the filter selects
	Filter DeadFilter
	Most   int64 // the oldest of them; 0 for all
}

// Selected counts a selection under one version.
type Selected struct {
	VersionID    string
	Count        int64
	WithResponse int64 // that can be judged again
}

// SelectDead fixes a selection, as the dead letters are now, and counts it by version.
func SelectDead(ctx context.Context, tx pgx.Tx, s Selection) ([]Selected, error) {
	q := outboxsql.New(tx)
	f := s.Filter
	p := outboxsql.SelectDeadParams{
		Selection: s.ID, Discarded: f.Discarded, Class: string(f.Class), Reason: string(f.Reason), Version: f.VersionID, Route: f.Route,
		Owner: f.Owner, Client: f.ClientID, DeadFrom: instant(f.From), DeadTo: instant(f.To),
	}
	if s.Keys != nil {
		p.Keys = names(s.Keys)
	}
	if s.Most > 0 {
		p.Most = &s.Most
	}
	if _, err := q.SelectDead(ctx, p); err != nil {
		return nil, fmt.Errorf("select dead letters: %w", err)
	}
	rows, err := q.Selected(ctx, s.ID)
	if err != nil {
		return nil, fmt.Errorf("count selection %s: %w", s.ID, err)
	}
	selected := make([]Selected, len(rows))
	for i, r := range rows {
		selected[i] = Selected{VersionID: r.VersionID, Count: r.Selected, WithResponse: r.WithResponse}
	}
	return selected, nil
}

// costSample is how many of a selection are looked at for what they have cost.
const costSample = 1000

// SelectedCosts returns what responses to a selection have cost on average, by version, from a thousand of it. Versions
// of which no cost is known are missing.
func SelectedCosts(ctx context.Context, tx pgx.Tx, selection uuid.UUID) (map[string]decimal.Decimal, error) {
	rows, err := outboxsql.New(tx).SelectedCosts(ctx, outboxsql.SelectedCostsParams{Selection: selection, Most: costSample})
	if err != nil {
		return nil, fmt.Errorf("average the costs of selection %s: %w", selection, err)
	}
	costs := make(map[string]decimal.Decimal, len(rows))
	for _, r := range rows {
		costs[r.VersionID] = r.USD
	}
	return costs, nil
}

// DropSelection forgets what a replay has not come to.
func DropSelection(ctx context.Context, tx pgx.Tx, selection uuid.UUID) error {
	if err := outboxsql.New(tx).DropSelection(ctx, selection); err != nil {
		return fmt.Errorf("drop selection %s: %w", selection, err)
	}
	return nil
}

// Skip says in a word why a selected row is not replayed.
type Skip string

// The words.
const (
	SkipAnswered   Skip = "answered"    // a late response has answered it
	SkipNotDead    Skip = "not_dead"    // a new ticket has made it due again
	SkipDiedAgain  Skip = "died_again"  // it was due again, and is another dead letter now
	SkipDiscarded  Skip = "discarded"   // since the selection
	SkipNoResponse Skip = "no_response" // there is nothing to judge again
	SkipErased     Skip = "erased"      // there is nothing to send: the text is gone
)

// Taken is a part of a selection, taken off it. Its dead letters are locked until the transaction ends.
type Taken struct {
	Count   int
	Last    content.Key   // in key order; where the next part begins
	Dead    []content.Key // those that are what was selected, in key order
	Skipped map[Skip]int64
}

// TakeSelected takes up to most rows off a selection that was made at a time, from behind the last key that was taken.
// None are left when it takes fewer. For the rest of the transaction the planner is held to the indexes: what follows
// looks up a thousand rows among millions.
func TakeSelected(ctx context.Context, tx pgx.Tx, selection uuid.UUID, madeAt time.Time, after content.Key, most int) (Taken, error) {
	q := outboxsql.New(tx)
	if err := q.PlanWalk(ctx); err != nil {
		return Taken{}, fmt.Errorf("plan to take rows off selection %s: %w", selection, err)
	}
	rows, err := q.TakeSelected(ctx, outboxsql.TakeSelectedParams{Selection: selection, After: string(after), Most: int32(most)})
	if err != nil {
		return Taken{}, fmt.Errorf("take %d rows off selection %s: %w", most, selection, err)
	}
	selected := make(map[string]time.Time, len(rows))
	keys := make([]string, len(rows))
	for i, r := range rows {
		keys[i], selected[r.IdempotencyKey] = r.IdempotencyKey, r.DeadAt
	}
	taken := Taken{Count: len(rows), Last: after, Skipped: map[Skip]int64{}}
	for _, k := range keys {
		taken.Last = max(taken.Last, content.Key(k))
	}
	dead, err := q.LockDead(ctx, keys)
	if err != nil {
		return Taken{}, fmt.Errorf("lock %d dead letters: %w", len(keys), err)
	}
	erased, err := q.WithoutText(ctx, keys)
	if err != nil {
		return Taken{}, fmt.Errorf("look for the texts of %d dead letters: %w", len(keys), err)
	}
	for _, d := range dead {
		switch {
		case slices.Contains(erased, d.IdempotencyKey):
			taken.Skipped[SkipErased]++
		case !d.DeadAt.Equal(selected[d.IdempotencyKey]):
			taken.Skipped[SkipDiedAgain]++
		case d.DiscardedAt != nil && d.DiscardedAt.After(madeAt):
			taken.Skipped[SkipDiscarded]++
		default:
			taken.Dead = append(taken.Dead, content.Key(d.IdempotencyKey))
		}
		delete(selected, d.IdempotencyKey)
	}
	if len(selected) == 0 {
		return taken, nil
	}
	keys = slices.DeleteFunc(keys, func(k string) bool { _, gone := selected[k]; return !gone })
	answered, err := q.AnyAnswered(ctx, keys)
	if err != nil {
		return Taken{}, fmt.Errorf("look for the results of %d keys: %w", len(keys), err)
	}
	if n := int64(len(answered)); n > 0 {
		taken.Skipped[SkipAnswered] = n
	}
	if n := int64(len(keys) - len(answered)); n > 0 {
		taken.Skipped[SkipNotDead] = n
	}
	return taken, nil
}

// Revival makes locked dead letters the work of a replay.
type Revival struct {
	Job      uuid.UUID
	Keys     []content.Key // in the order in which they are due
	Recalled bool          // their calls were: they begin anew
	NextAt   time.Time     // when the first is due, unless that is over
	Step     time.Duration // between one and the next
}

// Revive makes dead letters due. It returns when one more would be due, and how long that is from now.
func Revive(ctx context.Context, tx pgx.Tx, r Revival) (nextAt time.Time, wait time.Duration, err error) {
	if len(r.Keys) == 0 {
		return r.NextAt, 0, nil
	}
	row, err := outboxsql.New(tx).Revive(ctx, outboxsql.ReviveParams{
		Job: r.Job, Keys: names(r.Keys), Recalled: r.Recalled, NextAt: r.NextAt, StepSeconds: r.Step.Seconds(),
	})
	if err == nil && row.Revived != int64(len(r.Keys)) {
		err = fmt.Errorf("%d are dead", row.Revived)
	}
	if err != nil {
		return time.Time{}, 0, fmt.Errorf("revive %d dead letters for replay %s: %w", len(r.Keys), r.Job, err)
	}
	return row.NextAt, time.Duration(row.WaitSeconds * float64(time.Second)), nil
}
