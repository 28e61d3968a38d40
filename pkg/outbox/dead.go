package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/outbox/internal/outboxsql"
)

// ErrNotDead is returned when there is no dead letter of a key.
var ErrNotDead = errors.New("there is no such dead letter")

// DeadFilter selects dead letters; what is zero selects all.
type DeadFilter struct {
	Class     failure.Class
	Reason    failure.Reason
	VersionID string
	Route     string
	Owner     string
	ClientID  string // who has a ticket of the content
	From, To  time.Time
	Discarded bool // discarded ones as well
}

// DeadGroup counts dead letters that are alike.
type DeadGroup struct {
	Class                   failure.Class
	Reason                  failure.Reason
	VersionID               string
	Count                   int64
	FirstDeadAt, LastDeadAt time.Time
}

// GroupDead counts dead letters by class, reason and version, the largest group first.
func GroupDead(ctx context.Context, db outboxsql.DBTX, f DeadFilter) ([]DeadGroup, error) {
	rows, err := outboxsql.New(db).GroupDead(ctx, outboxsql.GroupDeadParams{
		Discarded: f.Discarded, Class: string(f.Class), Reason: string(f.Reason), Version: f.VersionID, Route: f.Route, Owner: f.Owner,
		Client: f.ClientID, DeadFrom: instant(f.From), DeadTo: instant(f.To),
	})
	if err != nil {
		return nil, fmt.Errorf("group the dead letters: %w", err)
	}
	groups := make([]DeadGroup, len(rows))
	for i, r := range rows {
		groups[i] = DeadGroup{
			Class: failure.Class(r.Class), Reason: failure.Reason(r.Reason), VersionID: r.VersionID, Count: r.Count,
			FirstDeadAt: r.FirstDeadAt, LastDeadAt: r.LastDeadAt,
		}
	}
	return groups, nil
}

// instant is a bound of time for a statement: none for the zero time.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// DeadLetter is a dead letter as its row stands.
type DeadLetter struct {
	Key          content.Key
	TicketID     uuid.UUID // of the ticket that asked first
	VersionID    string
	Route        string
	Lane         Lane
	Class        failure.Class
	Reason       failure.Reason
	Detail       string // in the provider's words, cleaned
	Attempts     int
	UnknownCalls int
	CreatedAt    time.Time
	DeadAt       time.Time
	DiscardedAt  time.Time // zero unless discarded
	Owner        string
	Note         string
	HasResponse  bool // one that was no answer is stored, and can be judged again
}

// DeadPosition is a place in the list of dead letters.
type DeadPosition struct {
	DeadAt time.Time
	Key    content.Key
}

// ListDead returns up to most dead letters, those that died last first, from behind a position; the zero position is
// before all.
func ListDead(ctx context.Context, db outboxsql.DBTX, f DeadFilter, after DeadPosition, most int) ([]DeadLetter, error) {
	before := after
	if before == (DeadPosition{}) {
		before.DeadAt = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	}
	rows, err := outboxsql.New(db).ListDead(ctx, outboxsql.ListDeadParams{
		Discarded: f.Discarded, Class: string(f.Class), Reason: string(f.Reason), Version: f.VersionID, Route: f.Route, Owner: f.Owner,
		Client: f.ClientID, DeadFrom: instant(f.From), DeadTo: instant(f.To),
		BeforeDeadAt: before.DeadAt, BeforeKey: string(before.Key), Most: int32(most),
	})
	if err != nil {
		return nil, fmt.Errorf("list the dead letters: %w", err)
	}
	letters := make([]DeadLetter, len(rows))
	for i, r := range rows {
		letters[i] = deadLetterOf(outboxsql.GetDeadRow(r))
	}
	return letters, nil
}

// GetDead returns the dead letter of a key, or ErrNotDead.
func GetDead(ctx context.Context, db outboxsql.DBTX, key content.Key) (DeadLetter, error) {
	rows, err := outboxsql.New(db).GetDead(ctx, string(key))
	if err == nil && len(rows) == 0 {
		err = ErrNotDead
	}
	if err != nil {
		return DeadLetter{}, fmt.Errorf("get the dead letter %s: %w", key, err)
	}
	return deadLetterOf(rows[0]), nil
}

// DeadKeyOf returns the key of the dead letter that a ticket waits for, the last one under whatever version, or
// ErrNotDead.
func DeadKeyOf(ctx context.Context, db outboxsql.DBTX, ticket uuid.UUID) (content.Key, error) {
	keys, err := outboxsql.New(db).DeadKeyOf(ctx, ticket)
	if err == nil && len(keys) == 0 {
		err = ErrNotDead
	}
	if err != nil {
		return "", fmt.Errorf("get the dead letter of ticket %s: %w", ticket, err)
	}
	return content.Key(keys[0]), nil
}

func deadLetterOf(r outboxsql.GetDeadRow) DeadLetter {
	d := DeadLetter{
		Key: content.Key(r.IdempotencyKey), TicketID: r.TicketID, VersionID: r.VersionID, Route: r.Route, Lane: Lane(r.Lane),
		Class: failure.Class(r.Class), Reason: failure.Reason(r.Reason), Detail: r.Detail, Attempts: int(r.Attempts),
		UnknownCalls: int(r.UnknownCalls), CreatedAt: r.CreatedAt, DeadAt: r.DeadAt, Owner: r.Owner, Note: r.Note, HasResponse: r.HasResponse,
	}
	if r.DiscardedAt != nil {
		d.DiscardedAt = *r.DiscardedAt
	}
	return d
}

// servedMost is how many tickets of a content are counted.
const servedMost = 100_000

// ServedTickets returns up to most tickets that have the content of a key's work, the newest first, and how many have
// it, counted up to a hundred thousand.
func ServedTickets(ctx context.Context, db outboxsql.DBTX, key content.Key, most int) (tickets []uuid.UUID, all int64, err error) {
	rows, err := outboxsql.New(db).ServedTickets(ctx, outboxsql.ServedTicketsParams{Key: string(key), CountMost: servedMost, Most: int32(most)})
	if err != nil {
		return nil, 0, fmt.Errorf("list the tickets of %s: %w", key, err)
	}
	for _, r := range rows {
		tickets, all = append(tickets, r.ID), r.Count
	}
	return tickets, all, nil
}

// AssignDead replaces the owner and the note of a dead letter, and returns what they were; ErrNotDead when it is none.
func AssignDead(ctx context.Context, tx pgx.Tx, key content.Key, owner, note string) (oldOwner, oldNote string, err error) {
	q := outboxsql.New(tx)
	rows, err := q.LockDead(ctx, []string{string(key)})
	if err == nil && len(rows) == 0 {
		err = ErrNotDead
	}
	if err == nil {
		err = q.AssignDead(ctx, outboxsql.AssignDeadParams{Key: string(key), Owner: owner, Note: note})
	}
	if err != nil {
		return "", "", fmt.Errorf("assign the dead letter %s: %w", key, err)
	}
	return rows[0].Owner, rows[0].Note, nil
}

// DiscardDead marks dead letters as wanted by nobody, and returns how many were not marked already.
func DiscardDead(ctx context.Context, tx pgx.Tx, keys []content.Key) (int64, error) {
	q := outboxsql.New(tx)
	if _, err := q.LockDead(ctx, names(keys)); err != nil {
		return 0, fmt.Errorf("lock %d dead letters: %w", len(keys), err)
	}
	n, err := q.DiscardDead(ctx, names(keys))
	if err != nil {
		return 0, fmt.Errorf("discard %d dead letters: %w", len(keys), err)
	}
	return n, nil
}

// DiscardFiltered is [DiscardDead] of what a filter selects.
func DiscardFiltered(ctx context.Context, tx pgx.Tx, f DeadFilter) (int64, error) {
	n, err := outboxsql.New(tx).DiscardFiltered(ctx, outboxsql.DiscardFilteredParams{
		Class: string(f.Class), Reason: string(f.Reason), Version: f.VersionID, Route: f.Route, Owner: f.Owner,
		Client: f.ClientID, DeadFrom: instant(f.From), DeadTo: instant(f.To),
	})
	if err != nil {
		return 0, fmt.Errorf("discard dead letters: %w", err)
	}
	return n, nil
}
