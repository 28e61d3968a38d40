package webhook

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

// Tell writes the deliveries of evaluations that have ended in this transaction, with a result or as dead letters, for
// all tickets that they serve. It must come after whatever ended them: their rows are locked then, so that a ticket
// whose create is under way is either seen here, or finds the end itself ([TellBorn]). Keys that have not ended are
// passed over. The number of deliveries comes back.
func Tell(ctx context.Context, tx pgx.Tx, keys []content.Key) (int, error) {
	if len(keys) == 0 {
		return 0, nil
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = string(k)
	}
	q := webhooksql.New(tx)
	pairs, err := q.LockTickets(ctx, names)
	if err != nil {
		return 0, fmt.Errorf("lock the tickets of %d evaluations: %w", len(keys), err)
	}
	// Keys of two versions may speak of one ticket. Each hears of them one by one, of the active version's first.
	var rounds []webhooksql.TellParams
	heard := map[uuid.UUID]int{}
	for _, p := range pairs {
		n := heard[p.TicketID]
		heard[p.TicketID]++
		if n == len(rounds) {
			rounds = append(rounds, webhooksql.TellParams{Keys: names})
		}
		rounds[n].TicketIds = append(rounds[n].TicketIds, p.TicketID)
		rounds[n].TicketKeys = append(rounds[n].TicketKeys, p.IdempotencyKey)
	}
	told := 0
	for _, round := range rounds {
		n, err := q.Tell(ctx, round)
		if err != nil {
			return 0, fmt.Errorf("tell of %d tickets: %w", len(round.TicketIds), err)
		}
		told += int(n)
	}
	return told, nil
}

// Born is a ticket that is stored by this transaction.
type Born struct {
	TicketID uuid.UUID
	Key      content.Key
}

// Listening returns those of the clients that have an enabled endpoint.
func Listening(ctx context.Context, db webhooksql.DBTX, clients []string) (map[string]bool, error) {
	names, err := webhooksql.New(db).Listening(ctx, clients)
	if err != nil {
		return nil, fmt.Errorf("look for the webhook endpoints of %d clients: %w", len(clients), err)
	}
	listening := make(map[string]bool, len(names))
	for _, name := range names {
		listening[name] = true
	}
	return listening, nil
}

// TellBorn writes the deliveries of new tickets whose evaluations have ended already. It must come last, after the work of
// the others is locked; tickets that are not stored after all are passed over.
func TellBorn(ctx context.Context, tx pgx.Tx, tickets []Born) (int, error) {
	if len(tickets) == 0 {
		return 0, nil
	}
	p := webhooksql.TellParams{Born: true, Keys: []string{}}
	for _, t := range tickets {
		p.TicketIds = append(p.TicketIds, t.TicketID)
		p.TicketKeys = append(p.TicketKeys, string(t.Key))
	}
	told, err := webhooksql.New(tx).Tell(ctx, p)
	if err != nil {
		return 0, fmt.Errorf("tell of %d new tickets: %w", len(tickets), err)
	}
	return int(told), nil
}
