package main

import (
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
)

const grpcurl = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"

// explain says how to talk to what keeps running, in lines to be pasted one by one.
func (d *demo) explain() {
	header := "-H 'Authorization: Bearer " + d.token + "'"
	d.say("\nEverything keeps running until Ctrl-C. Paste, for example:\n")
	d.say("curl -s %s/v1/tickets %s -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first' -d '%s'\n", d.api.HTTP, header,
		`{"subject": "Charged twice", "message": "You have charged me twice this month. Please refund one of them today."}`)
	d.say("curl -s '%s/v1/tickets?page_size=1' %s\n", d.api.HTTP, header)
	d.say("curl -s '%s/v1/tickets?state=SUCCEEDED&min_urgency=0.9&page_size=3' %s\n", d.api.HTTP, header)
	if _, err := exec.LookPath("grpcurl"); err != nil {
		d.say("# grpcurl is not installed; it takes: go install %s\n", grpcurl)
	}
	d.say("grpcurl -plaintext %s %s list\n", header, d.api.GRPC)
	d.say("grpcurl -plaintext %s -d '%s' %s evalonce.ticket.v1.TicketService/CreateTicket\n", header,
		`{"subject": "Cannot sign in", "message": "The code never arrives.", "request_id": "my-second"}`, d.api.GRPC)
	d.say("grpcurl -plaintext %s -d '%s' %s evalonce.ticket.v1.TicketService/ListTickets\n", header, `{"page_size": 1}`, d.api.GRPC)
	d.say("curl -s %s/v1/webhookEndpoints %s   # whose receiver is this demo: what comes is shown here\n", d.api.HTTP, header)
	d.say("curl -s %s/v1/versions -H 'Authorization: Bearer %s'\n", d.admin.HTTP, d.adminToken)
	d.say("EVALONCE_ADMIN_ADDRESS=%s EVALONCE_ADMIN_TOKEN=%s %s version list\n", d.admin.GRPC, d.adminToken, d.short(filepath.Join(d.bin, "evalctl")))
	d.say("psql '%s'\n", withoutPassword(d.stack.DatabaseURL()))
	if d.simulator != nil {
		d.say("curl -s %s/stats\n", d.simulator.ControlURL())
	}
}

// withoutPassword makes an address fit to be shown; psql asks for what is missing.
func withoutPassword(address string) string {
	u, err := url.Parse(address)
	if err == nil && u.User != nil {
		u.User = url.User(u.User.Username())
		query := u.Query()
		query.Del("password")
		u.RawQuery = query.Encode()
		return u.String()
	}
	var parts []string
	for part := range strings.FieldsSeq(address) {
		if !strings.HasPrefix(part, "password=") {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, " ")
}
