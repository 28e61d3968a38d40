package submit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/outbox"
	"github.com/evalonce/evalonce/pkg/ticketdb"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// seen is what a transaction sees before it writes: the active version, and where the requests' evaluations under it
// stand. No locks are taken.
type seen struct {
	active    versiondb.Active
	keys      []content.Key // of each request
	standings map[content.Key]outbox.Standing
	listening map[string]bool // clients that are told by webhook
}

// look takes one round trip while the active version is the one that was seen last, although the keys follow from it:
// whether it still is, is read beside them.
func (s *Submitter) look(ctx context.Context, tx pgx.Tx, requests []Request) (seen, error) {
	guess := s.active.Load()
	for {
		var now seen
		steps := []step{ticketdb.PlanLookups, func(ctx context.Context, tx pgx.Tx) (err error) {
			now.active, err = versiondb.GetActive(ctx, tx)
			return err
		}, func(ctx context.Context, tx pgx.Tx) (err error) {
			now.listening, err = webhook.Listening(ctx, tx, clientsOf(requests))
			return err
		}}
		if guess != nil {
			now.keys = keysOf(requests, guess.Digest)
			steps = append(steps, func(ctx context.Context, tx pgx.Tx) (err error) {
				now.standings, err = outbox.StateOf(ctx, tx, distinct(now.keys))
				return err
			})
		}
		if err := pipelined(ctx, tx, steps...); err != nil {
			return seen{}, err
		}
		if guess != nil && *guess == now.active {
			return now, nil
		}
		guess = &now.active
		s.active.Store(guess)
	}
}

func keysOf(requests []Request, digest [32]byte) []content.Key {
	keys := make([]content.Key, len(requests))
	for i, r := range requests {
		keys[i] = content.KeyOf(r.ContentHash, digest)
	}
	return keys
}

func clientsOf(requests []Request) []string {
	clients := make([]string, len(requests))
	for i, r := range requests {
		clients[i] = r.ClientID
	}
	slices.Sort(clients)
	return slices.Compact(clients)
}

func distinct(keys []content.Key) []content.Key {
	once := make([]content.Key, 0, len(keys))
	met := make(map[content.Key]bool, len(keys))
	for _, k := range keys {
		if !met[k] {
			met[k] = true
			once = append(once, k)
		}
	}
	return once
}

// group is what one transaction writes.
type group struct {
	requests []Request
	seen     seen
	demand   outbox.Demand
	reserved []ticketdb.Request
	tickets  []ticketdb.NewTicket // of each request
	births   []ticketdb.Evaluation

	offered  []outbox.Job
	followed []content.Key
	answered []content.Key
	heard    []webhook.Born // tickets whose clients are told by webhook, and whose evaluations may have ended

	// What came of it.
	first   map[uuid.UUID]bool // tickets whose request had no effect before
	at      time.Time
	working map[content.Key]bool // keys that have work, which nobody finishes before the commit
	answers map[content.Key]*ticketdb.Answer
}

func compose(requests []Request, s seen) (*group, error) {
	g := &group{
		requests: requests, seen: s, demand: outbox.Demand{VersionID: s.active.ID, Route: s.active.Route, Lane: outbox.Live},
		reserved: make([]ticketdb.Request, 0, len(requests)), tickets: make([]ticketdb.NewTicket, len(requests)),
		births: make([]ticketdb.Evaluation, len(requests)), working: make(map[content.Key]bool, len(requests)),
	}
	met := make(map[content.Key]bool, len(requests))
	for i, r := range requests {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("make a ticket id: %w", err)
		}
		key := s.keys[i]
		standing := s.standings[key]
		birth := evaluationAtBirth(s.active.ID, key, standing)
		g.births[i] = birth
		g.tickets[i] = ticketdb.NewTicket{
			ID: id, ClientID: r.ClientID, ExternalID: r.ExternalID, Subject: r.Subject, Message: r.Message,
			ContentHash: r.ContentHash, TraceContext: r.TraceContext,
		}
		if r.RequestID != "" {
			g.tickets[i].Request = r.id()
			g.reserved = append(g.reserved, ticketdb.Request{
				RequestID: r.id(), Fingerprint: r.Fingerprint,
				Response: ticketdb.Response{TicketID: id, VersionID: s.active.ID, Key: key, State: birth.State, Dead: birth.Dead},
			})
		}
		if s.listening[r.ClientID] && standing.State != outbox.Absent && !standing.Rearmable() {
			g.heard = append(g.heard, webhook.Born{TicketID: id, Key: key})
		}
		if met[key] {
			continue
		}
		met[key] = true
		switch {
		case standing.State == outbox.Absent:
			g.offered = append(g.offered, g.job(i))
		case standing.State == outbox.Succeeded:
			g.answered = append(g.answered, key)
		case standing.Rearmable():
			// Only for a ticket that is really stored: see withoutWork.
		default:
			g.followed = append(g.followed, key)
		}
	}
	return g, nil
}

func (g *group) job(i int) outbox.Job {
	t := g.tickets[i]
	return outbox.Job{Key: g.seen.keys[i], ContentHash: t.ContentHash, TicketID: t.ID, TraceContext: t.TraceContext}
}

// evaluationAtBirth is what a ticket is told of its evaluation when it is stored.
func evaluationAtBirth(versionID string, key content.Key, standing outbox.Standing) ticketdb.Evaluation {
	e := ticketdb.Evaluation{State: standing.State, Key: key, VersionID: versionID, AnsweredWithoutCall: standing.State == outbox.Succeeded}
	switch {
	case standing.State == outbox.Absent, standing.Rearmable():
		e.State = outbox.Pending
	case standing.State == outbox.Dead:
		e.Dead = &ticketdb.Dead{Class: string(standing.Class), Reason: string(standing.Reason), At: standing.DeadAt}
	}
	return e
}

// write sends everything at once. Each statement looks by itself what the one before it has done.
func (g *group) write(ctx context.Context, tx pgx.Tx, retention time.Duration) error {
	var steps []step
	if len(g.reserved) > 0 {
		steps = append(steps, func(ctx context.Context, tx pgx.Tx) (err error) {
			g.first, err = ticketdb.Reserve(ctx, tx, g.reserved, retention)
			crashpoint.Pass(crashpoint.CreateReserved)
			return err
		})
	}
	steps = append(steps, func(ctx context.Context, tx pgx.Tx) (err error) {
		g.at, err = ticketdb.Insert(ctx, tx, g.tickets)
		crashpoint.Pass(crashpoint.CreateInserted)
		return err
	})
	if len(g.offered) > 0 {
		steps = append(steps, func(ctx context.Context, tx pgx.Tx) error {
			inserted, err := outbox.Offer(ctx, tx, g.demand, g.offered)
			maps.Copy(g.working, inserted)
			return err
		})
	}
	if len(g.followed) > 0 {
		steps = append(steps, func(ctx context.Context, tx pgx.Tx) error {
			followed, err := outbox.Follow(ctx, tx, g.followed)
			maps.Copy(g.working, followed)
			return err
		})
	}
	if len(g.answered) > 0 {
		steps = append(steps, func(ctx context.Context, tx pgx.Tx) (err error) {
			g.answers, err = ticketdb.Answers(ctx, tx, g.answered)
			return err
		})
	}
	if len(g.heard) > 0 {
		steps = append(steps, func(ctx context.Context, tx pgx.Tx) error {
			_, err := webhook.TellBorn(ctx, tx, g.heard)
			return err
		})
	}
	return pipelined(ctx, tx, steps...)
}

// enqueue gives work to what came to be without it only since the first look.
func (g *group) enqueue(ctx context.Context, tx pgx.Tx, jobs []outbox.Job) error {
	if len(g.followed) > 0 {
		return outbox.EnqueueMore(ctx, tx, g.demand, jobs)
	}
	return outbox.Enqueue(ctx, tx, g.demand, jobs)
}

// tellOf writes what has come to be known of evaluations only since the first look.
func (g *group) tellOf(ctx context.Context, tx pgx.Tx, jobs []outbox.Job) error {
	late := make(map[content.Key]bool, len(jobs))
	for _, j := range jobs {
		late[j.Key] = true
	}
	var heard []webhook.Born
	for i, t := range g.tickets {
		if key := g.seen.keys[i]; late[key] && g.seen.listening[t.ClientID] {
			heard = append(heard, webhook.Born{TicketID: t.ID, Key: key})
		}
	}
	_, err := webhook.TellBorn(ctx, tx, heard)
	return err
}

// stored reports whether a request was the first of its id, and so has its ticket.
func (g *group) stored(i int) bool {
	return g.requests[i].RequestID == "" || g.first[g.tickets[i].ID]
}

// withoutWork are the jobs of stored tickets whose keys were not seen to have work in the end.
func (g *group) withoutWork() []outbox.Job {
	var jobs []outbox.Job
	for i, key := range g.seen.keys {
		if g.stored(i) && !g.working[key] && g.births[i].State != outbox.Succeeded {
			g.working[key] = true
			jobs = append(jobs, g.job(i))
		}
	}
	return jobs
}

// receipts are empty for the requests that are not stored.
func (g *group) receipts() []Receipt {
	receipts := make([]Receipt, len(g.requests))
	for i, t := range g.tickets {
		if !g.stored(i) {
			continue
		}
		evaluation := g.births[i]
		evaluation.Answer = g.answers[evaluation.Key]
		receipts[i].Ticket = ticketdb.Ticket{
			ID: t.ID, ClientID: t.ClientID, ExternalID: t.ExternalID, Subject: t.Subject, Message: t.Message,
			CreatedAt: g.at, TraceContext: t.TraceContext, Evaluation: evaluation,
		}
	}
	return receipts
}
