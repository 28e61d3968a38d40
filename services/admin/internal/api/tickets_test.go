package api_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

// waits stores a ticket with work that waits under a registered version, and returns the ticket's id.
func (a *adminAPI) waits(version, message string) string {
	a.t.Helper()
	return a.text(`
		WITH t AS (
			INSERT INTO ticket (id, client_id, external_id, subject, message, content_hash)
			VALUES (uuid_v7(), 'shop', 'their own', 'secret subject', $2, sha256(convert_to($2, 'UTF8'))) RETURNING id, content_hash
		), w AS (
			INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
			SELECT evaluation_key(t.content_hash, v.digest), t.content_hash, t.id, v.id, v.route, 'live' FROM t, evaluator_version v WHERE v.id = $1
		)
		SELECT id::text FROM t`, version, message)
}

func (a *adminAPI) hasText(id string) bool {
	a.t.Helper()
	return a.text(`SELECT subject || ', ' || message FROM ticket WHERE id = $1`, id) == "secret subject, secret message"
}

func TestATicketIsErased(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	id := a.waits("v1", "secret message")
	tickets := adminv1.NewTicketAdminServiceClient(a.conn)

	dry, err := tickets.EraseTicket(a.as(a.ana), &adminv1.EraseTicketRequest{Id: id, DryRun: true})
	if err != nil || dry.GetBuriedEvaluations() != 1 || dry.GetEraseTime() == nil || !a.hasText(id) {
		t.Fatalf("a dry run gives %v, %v; the text is there: %t", dry, err, a.hasText(id))
	}
	r := &adminv1.EraseTicketRequest{Id: id, Reason: "request 4711", RequestId: "k"}
	done, err := tickets.EraseTicket(a.as(a.ana), r)
	if err != nil || done.GetClientId() != "shop" || done.GetBuriedEvaluations() != 1 || a.hasText(id) {
		t.Fatalf("got %v, %v", done, err)
	}
	again, err := tickets.EraseTicket(a.as(a.ana), r)
	if err != nil || again.String() != done.String() {
		t.Errorf("repeated: %v, %v; want %v", again, err, done)
	}
	r.RequestId = "k2"
	if once, err := tickets.EraseTicket(a.as(a.bob), r); err != nil || once.GetBuriedEvaluations() != 0 || !once.GetEraseTime().AsTime().Equal(done.GetEraseTime().AsTime()) {
		t.Errorf("once more: %v, %v", once, err)
	}
	record := a.text(`SELECT string_agg(principal || ' ' || target || ' ' || reason || ' ' || after::text, '; ') FROM admin_audit WHERE method = 'TicketAdminService.EraseTicket'`)
	if !strings.HasPrefix(record, "ana tickets/"+id+" request 4711 ") || strings.Contains(record, "secret") || strings.Contains(record, ";") {
		t.Errorf("the record is %s", record)
	}
	if kept := a.text(`SELECT external_id FROM ticket WHERE id = $1`, id); kept != "their own" {
		t.Errorf("the client's id is %q", kept)
	}
	fscktest.Require(t, a.db)
}

func TestATicketIsNotErased(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.mustRegister("v1")
	id := a.waits("v1", "secret message")
	tickets := adminv1.NewTicketAdminServiceClient(a.conn)
	a.exec(`UPDATE evaluation_outbox SET status = 'processing', lease_id = uuid_v7(), locked_by = 'w', locked_until = now() + interval '1 hour', attempts = 1`)
	_, err := tickets.EraseTicket(a.as(a.ana), &adminv1.EraseTicketRequest{Id: id})
	if p := wantProblem(t, err, codes.Unavailable, "TICKET_BUSY"); !a.hasText(id) {
		t.Errorf("the text is gone: %+v", p)
	}
	wantREST(t, a.rest("POST", "/v1/tickets/"+id+":erase", `{}`), 503, "TICKET_BUSY")
	wantREST(t, a.rest("POST", "/v1/tickets/01924f9a-3c4e-7b1d-9d0e-5a8f6f0c2b11:erase", `{}`), 404, "TICKET_NOT_FOUND")
	_, err = tickets.EraseTicket(a.as(a.ana), &adminv1.EraseTicketRequest{Id: "mine", Reason: "\x00"})
	wantProblem(t, err, codes.InvalidArgument, "INVALID_FIELD", "id", "reason")
	if n := a.text(`SELECT count(*)::text FROM admin_audit WHERE method LIKE 'Ticket%'`); n != "0" {
		t.Errorf("%s records of nothing", n)
	}
}
