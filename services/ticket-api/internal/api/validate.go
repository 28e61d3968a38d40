package api

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/rpc"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

const maxExternalID = 256 // characters

// check returns the hash of a ticket's canonical text, or all that is wrong with the ticket, by field.
func (l Limits) check(prefix string, r *ticketv1.CreateTicketRequest) (content.Hash, []rpc.Violation) {
	var violations []rpc.Violation
	add := func(field, reason, format string, args ...any) {
		violations = append(violations, rpc.Violation{Field: prefix + field, Reason: reason, Description: fmt.Sprintf(format, args...)})
	}
	if n := utf8.RuneCountInString(r.GetSubject()); n > l.SubjectCharacters {
		add("subject", rpc.ReasonFieldTooLarge, "must have at most %d characters, not %d", l.SubjectCharacters, n)
	}
	if n := len(r.GetMessage()); n > l.MessageBytes {
		add("message", rpc.ReasonFieldTooLarge, "must have at most %d bytes, not %d", l.MessageBytes, n)
	} else if !content.Visible(r.GetMessage()) {
		add("message", "BLANK", "must hold something visible")
	}
	if id := r.GetExternalId(); utf8.RuneCountInString(id) > maxExternalID {
		add("external_id", rpc.ReasonFieldTooLarge, "must have at most %d characters", maxExternalID)
	} else if !plain(id) {
		add("external_id", "MALFORMED", "must not contain control characters")
	}
	text, err := content.Canonical(r.GetSubject(), r.GetMessage())
	if err != nil {
		// It stops at the first field that is wrong: ask for each.
		for _, pair := range [][2]string{{r.GetSubject(), ""}, {"", r.GetMessage()}} {
			var wrong *content.Error
			if _, err := content.Canonical(pair[0], pair[1]); errors.As(err, &wrong) {
				add(wrong.Field, "MALFORMED", "%s", wrong.Reason)
			}
		}
		return content.Hash{}, violations
	}
	return text.Hash(), violations
}

// plain reports whether s is UTF-8 without control characters.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// ticketID reads a ticket's identifier.
func ticketID(field, s string) (uuid.UUID, error) { return readID(field, "a ticket's id", s) }

// readID reads an identifier in the form in which it is shown, in either case.
func readID(field, what, s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(uuid.Nil.String()) {
		return uuid.Nil, rpc.InvalidFields(rpc.Violation{Field: field, Reason: "MALFORMED", Description: "must be " + what + ", a UUID"})
	}
	return id, nil
}

// admit refuses a client's tickets, all of them, while it creates faster than it may.
func (l Limits) admit(client string, tickets int) error {
	wait, ok := l.Pace.Take(client, tickets, time.Now())
	if ok {
		return nil
	}
	return &rpc.Error{
		Code: codes.ResourceExhausted, Reason: reasonTooManyTickets, RetryAfter: wait,
		Message: "the client creates tickets faster than it may; nothing is stored, and the same request will do later",
	}
}
