// Package auditdb owns admin_audit and admin_request: what operators changed, and the idempotency keys under which they
// asked for it.
//
// A record is written in the transaction of the change that it tells of, so there is none without the other, and it never
// changes. A key is reserved first in that transaction: of two requests with one key the second waits for the first, and is
// then told what the first was told, or that it is another one.
package auditdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/auditdb/internal/auditdbsql"
)

// Change is what an operator did to one thing.
type Change struct {
	Principal string
	Method    string // such as VersionService.PromoteVersion
	Target    string // such as versions/triage-2
	// Before and After describe the thing; nil where there was nothing, or is nothing any more.
	Before, After json.RawMessage
	Reason        string // in the operator's words
	RequestID     string // the idempotency key, if there was one
	TraceID       string
}

// Entry is a change as it was recorded.
type Entry struct {
	ID int64 // later ones have higher ones
	At time.Time
	Change
}

// Record writes a change down, in its transaction.
func Record(ctx context.Context, tx pgx.Tx, c Change) error {
	err := auditdbsql.New(tx).Record(ctx, auditdbsql.RecordParams{
		Principal: c.Principal, Method: c.Method, Target: c.Target, Before: c.Before, After: c.After,
		Reason: c.Reason, RequestID: c.RequestID, TraceID: c.TraceID,
	})
	if err != nil {
		return fmt.Errorf("record %s of %s: %w", c.Method, c.Target, err)
	}
	return nil
}

// Filter selects entries; its zero value selects all.
type Filter struct {
	TargetPrefix string
	Principal    string
	Method       string
	From, To     time.Time // half-open; zero for no bound
}

// List returns up to most entries, the newest first, with ids below a given one unless that is 0.
func List(ctx context.Context, db auditdbsql.DBTX, f Filter, below int64, most int) ([]Entry, error) {
	bound := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	rows, err := auditdbsql.New(db).List(ctx, auditdbsql.ListParams{
		Below: below, TargetPrefix: f.TargetPrefix, Principal: f.Principal, Method: f.Method,
		FromTime: bound(f.From), ToTime: bound(f.To), Most: int32(most),
	})
	if err != nil {
		return nil, fmt.Errorf("list what was changed: %w", err)
	}
	entries := make([]Entry, len(rows))
	for i, row := range rows {
		entries[i] = Entry{ID: row.ID, At: row.At, Change: Change{
			Principal: row.Principal, Method: row.Method, Target: row.Target, Before: row.Before, After: row.After,
			Reason: row.Reason, RequestID: row.RequestID, TraceID: row.TraceID,
		}}
	}
	return entries, nil
}

// Request names what was asked for under an idempotency key.
type Request struct {
	Scope, Key  string
	Fingerprint [32]byte // of what was asked for
}

// ErrKeyReused is returned for a key under which something else was asked for.
var ErrKeyReused = errors.New("the idempotency key was used with another request")

// reserveTries is how often a key may be found taken, and expired a moment later.
const reserveTries = 3

// Reserve takes a request's key before its effect. When the request has had its effect already, the response to it comes
// back instead.
func Reserve(ctx context.Context, tx pgx.Tx, r Request, retention time.Duration) (response []byte, replayed bool, err error) {
	q := auditdbsql.New(tx)
	for range reserveTries {
		n, err := q.Reserve(ctx, auditdbsql.ReserveParams{
			Scope: r.Scope, Key: r.Key, Fingerprint: r.Fingerprint[:], RetentionSeconds: retention.Seconds(),
		})
		if err != nil {
			return nil, false, fmt.Errorf("reserve a key of %s: %w", r.Scope, err)
		}
		if n == 1 {
			return nil, false, nil
		}
		first, err := q.GetRequest(ctx, auditdbsql.GetRequestParams{Scope: r.Scope, Key: r.Key})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue
		case err != nil:
			return nil, false, fmt.Errorf("get the response to a request of %s: %w", r.Scope, err)
		case [32]byte(first.Fingerprint) != r.Fingerprint:
			return nil, false, ErrKeyReused
		default:
			return first.Response, true, nil
		}
	}
	return nil, false, fmt.Errorf("reserve a key of %s: found taken and free again %d times", r.Scope, reserveTries)
}

// Respond stores the response to a request whose key was reserved in the same transaction.
func Respond(ctx context.Context, tx pgx.Tx, r Request, response []byte) error {
	n, err := auditdbsql.New(tx).Respond(ctx, auditdbsql.RespondParams{Scope: r.Scope, Key: r.Key, Response: response})
	if err != nil {
		return fmt.Errorf("store the response to a request of %s: %w", r.Scope, err)
	}
	if n != 1 {
		return fmt.Errorf("store the response to a request of %s: its key is not reserved", r.Scope)
	}
	return nil
}

// PruneRequests deletes up to most requests whose retention is over, and returns their number.
func PruneRequests(ctx context.Context, db auditdbsql.DBTX, most int) (int, error) {
	n, err := auditdbsql.New(db).PruneRequests(ctx, int32(most))
	if err != nil {
		return 0, fmt.Errorf("prune expired requests of operators: %w", err)
	}
	return int(n), nil
}
