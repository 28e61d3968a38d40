package compare

import (
	"github.com/google/uuid"

	"github.com/evalonce/evalonce/pkg/comparison"
	"github.com/evalonce/evalonce/pkg/outbox"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// Truth is what a person has decided on one ticket, which is named by one of its ids.
type Truth struct {
	TicketID   uuid.UUID // or
	ExternalID string
	Department string
	Urgent     *bool // nil when nobody has decided that
}

func (t Truth) name() string {
	if t.ExternalID != "" {
		return t.ExternalID
	}
	return t.TicketID.String()
}

// contradicts reports whether both cannot be true of one ticket.
func (t Truth) contradicts(u Truth) bool {
	return fold(t.Department) != fold(u.Department) || t.Urgent != nil && u.Urgent != nil && *t.Urgent != *u.Urgent
}

// index finds the truth of a ticket, and accounts for every row of it.
type index struct {
	rows       []*row // in order, without those that repeat an id
	byTicket   map[uuid.UUID]*row
	byExternal map[string]*row
	account    adminv1.TruthAccount
}

// row is what is said of one id.
type row struct {
	Truth
	contradicted bool
	ticket       comparison.Pair // the first that has the id
	tickets      int             // that have it
}

const maxExamples = 10

func newIndex(truth []Truth) *index {
	x := &index{byTicket: map[uuid.UUID]*row{}, byExternal: map[string]*row{}}
	x.account.Rows = int64(len(truth))
	for _, t := range truth {
		var first *row
		if t.ExternalID != "" {
			first = x.byExternal[t.ExternalID]
		} else {
			first = x.byTicket[t.TicketID]
		}
		switch {
		case first == nil:
			first = &row{Truth: t}
			x.rows = append(x.rows, first)
			if t.ExternalID != "" {
				x.byExternal[t.ExternalID] = first
			} else {
				x.byTicket[t.TicketID] = first
			}
		case first.contradicted || first.contradicts(t):
			x.contradict(first)
			x.account.Contradictions++
		default:
			x.repeat(first, t)
		}
	}
	return x
}

// contradict leaves a row out.
func (x *index) contradict(r *row) {
	if !r.contradicted {
		r.contradicted = true
		x.account.Contradictions++
		example(&x.account.ContradictionExamples, r)
	}
}

// repeat counts a row that says the same again, and keeps what only it has said.
func (x *index) repeat(r *row, again Truth) {
	if r.Urgent == nil {
		r.Urgent = again.Urgent
	}
	x.account.Duplicates++
}

func example(list *[]string, r *row) {
	if len(*list) < maxExamples {
		*list = append(*list, r.name())
	}
}

// names are all ids that something is said of.
func (x *index) names() comparison.Names {
	names := comparison.Names{Tickets: []uuid.UUID{}, Externals: []string{}}
	for id := range x.byTicket {
		names.Tickets = append(names.Tickets, id)
	}
	for id := range x.byExternal {
		names.Externals = append(names.Externals, id)
	}
	return names
}

// match takes a ticket that one of the names is of.
func (x *index) match(p comparison.Pair) {
	for _, r := range []*row{x.byTicket[p.TicketID], x.byExternal[p.ExternalID]} {
		if r != nil {
			if r.tickets == 0 {
				r.ticket = p
			}
			r.tickets++
		}
	}
}

// conclude hands over each ticket that the truth is known of, once, and says what became of every row.
func (x *index) conclude(compare func(comparison.Pair, Truth)) *adminv1.TruthAccount {
	// A ticket may be named by both of its ids.
	named := make(map[uuid.UUID]*row, len(x.rows))
	for i, r := range x.rows {
		if r.contradicted || r.tickets != 1 {
			continue
		}
		first, twice := named[r.ticket.TicketID]
		switch {
		case !twice:
			named[r.ticket.TicketID] = r
		case first.contradicted || first.contradicts(r.Truth):
			x.contradict(first)
			x.contradict(r)
		default:
			x.repeat(first, r.Truth)
			x.rows[i] = nil
		}
	}
	for _, r := range x.rows {
		switch {
		case r == nil, r.contradicted: // counted above
		case r.tickets == 0:
			x.account.Unknown++
			example(&x.account.UnknownExamples, r)
		case r.tickets > 1:
			x.account.Ambiguous++
			example(&x.account.AmbiguousExamples, r)
		case r.ticket.Side.State != outbox.Succeeded:
			x.account.Unanswered++
		default:
			x.account.Used++
			compare(r.ticket, r.Truth)
		}
	}
	return &x.account
}
