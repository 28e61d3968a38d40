package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hintChannel carries hints that there is new work. Polling finds all work; a hint finds it sooner.
const hintChannel = "evalonce_work"

// hintInterval debounces the hints of one process: NOTIFY takes a lock of the whole database at commit.
const hintInterval = 5 * time.Millisecond

// Notifier sends hints, never inside the transaction that makes the work.
type Notifier struct {
	db   execer
	rung chan struct{}
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// NewNotifier makes a notifier on a pool.
func NewNotifier(db execer) *Notifier {
	return &Notifier{db: db, rung: make(chan struct{}, 1)}
}

// Ring asks for a hint and does not wait for it.
func (n *Notifier) Ring() {
	select {
	case n.rung <- struct{}{}:
	default:
	}
}

// Run sends hints until ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.rung:
		}
		if _, err := n.db.Exec(ctx, "SELECT pg_notify('"+hintChannel+"', '')"); err != nil && ctx.Err() == nil {
			// Workers poll; work is found a little later.
			slog.WarnContext(ctx, "cannot send a hint of new work", slog.Any("error", err))
		}
		timer.Reset(hintInterval)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}

// Listen calls wake for every hint, until ctx ends or the connection breaks. It needs a connection of its own,
// straight to the server: a pooler in transaction mode passes no notifications.
func Listen(ctx context.Context, conn *pgx.Conn, wake func()) error {
	if _, err := conn.Exec(ctx, "LISTEN "+hintChannel); err != nil {
		return fmt.Errorf("listen for hints of new work: %w", err)
	}
	// What was announced before the LISTEN took effect is found by this.
	wake()
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("wait for hints of new work: %w", err)
		}
		wake()
	}
}
