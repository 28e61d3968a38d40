package systemtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/fsck/fscktest"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/providersim"
	"github.com/evalonce/evalonce/pkg/versiondb"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// A restore to a point in time, in the order that deploy/OPERATIONS.md says. What was paid for after the point is paid for
// again, once, and nothing else is; every row of the table there is looked at.
func TestRestoreToAPointInTime(t *testing.T) {
	t.Parallel()
	const answered, inFlight, waiting, later = 4, 2, 3, 2 // tickets, by what they were at the point
	place := newServers(t)
	archive := place.path("archive")
	primary, database := place.primary("primary", map[string]string{"archive_mode": "on", "archive_command": "cp %p " + archive + "/%f"})
	if err := os.Mkdir(archive, 0o700); err != nil {
		t.Fatal(err)
	}
	place.give(archive, "primary")
	s := startSystem(t, options{
		database: database, metered: true, api: []string{"EVALONCE_WEBHOOK_KEYS=" + webhookKeys},
		rules:   []providersim.Rule{{Match: providersim.Match{Text: "in-flight"}, Action: hang}},
		version: func(v *evaluation.Version) { v.UnknownPolicy, v.MaxAttempts = evaluation.Resend, 8 },
	})
	place.backUp(s.db, "primary", "restored")

	told := s.receive(false)
	worker := s.worker(webhookEnv()...)
	had := s.order("answered", answered)
	s.until(answered, "webhook_delivery WHERE state = 'delivered'")
	called := s.order("in-flight", inFlight)
	s.hanging(inFlight)
	s.evalctlPrints("route", "pause", s.version.Route, "--yes", "--reason", "drill")
	stored := s.order("waiting", waiting)
	var credential struct {
		Token      string `json:"token"`
		Credential struct {
			ID string `json:"id"`
		} `json:"credential"`
	}
	s.evalctl(&credential, "credential", "create-token", "--client", "acme", "--name", "shop", "--role", "tickets:read", "-o", "json")
	if n := s.count("evaluation_outbox WHERE status = 'pending'"); n != waiting {
		t.Fatalf("%d evaluations wait at the point, want %d", n, waiting) // a route with limits is paused at once
	}
	books := s.books()
	s.exec("SELECT pg_create_restore_point('point')")

	s.evalctlPrints("route", "resume", s.version.Route)
	s.sim.Release()
	s.sim.ClearRules()
	forgotten := s.order("later", later)
	s.until(answered+inFlight+waiting+later, "webhook_delivery WHERE state = 'delivered'")
	s.evalctlPrints("credential", "revoke", credential.Credential.ID, "--yes")
	s.evalctlPrints("ticket", "erase", had[0], "--yes", "--reason", "drill")
	s.evalctlPrints("route", "budget", "set", "all", "day", "5")
	s.promote("v2")
	paid := s.sim.Stats().Billed

	s.archived()
	for _, p := range []*stack.Process{worker, s.server.Process, s.admin.Process} {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	s.db.Close()
	if err := primary.Stop(); err != nil {
		t.Fatal(err)
	}
	place.put("restored", "recovery.signal", "")
	_, database = place.start("restored", map[string]string{
		"archive_mode": "off", "restore_command": "cp " + archive + "/%f %p", "recovery_target_name": "point", "recovery_target_action": "promote",
	}, database)
	s.stack.UseDatabase(database)
	s.db = pgtest.Pool(t, database)
	s.until(1, "pg_is_in_recovery() AS recovering WHERE NOT recovering")

	s.admin = nil // another one is started
	s.evalctlPrints("fsck")
	if got := s.books(); got != books {
		t.Errorf("after the restore it is\n%s\nand was\n%s", got, books)
	}
	if n := s.count("provider_route WHERE paused_at IS NOT NULL"); n != 1 {
		t.Error("the pause of before the point is gone")
	}
	s.evalctlPrints("route", "pause", s.version.Route, "--yes", "--reason", "restored")
	if n := s.count("active_version WHERE version_id = $1", s.version.ID); n != 1 {
		t.Error("the promotion of after the point is there")
	}

	s.serveAgain("EVALONCE_WEBHOOK_KEYS=" + webhookKeys)
	if got := s.statusFor(credential.Token); got != http.StatusOK {
		t.Errorf("a credential that was revoked after the point gives %d", got)
	}
	s.evalctlPrints("credential", "revoke", credential.Credential.ID, "--yes")
	if s.get(had[0]).GetMessage() == "" {
		t.Error("what was erased after the point has no text")
	}
	s.evalctlPrints("ticket", "erase", had[0], "--yes", "--reason", "restored")
	for _, id := range forgotten {
		if _, err := s.api.GetTicket(s.ctx, &ticketv1.GetTicketRequest{Id: id}); status.Code(err) != codes.NotFound {
			t.Errorf("a ticket of after the point gives %v", err)
		}
	}
	if got := s.sim.Stats().Billed; got != paid {
		t.Errorf("%d calls are paid before anything is let go, %d before the restore", got, paid)
	}

	s.worker(webhookEnv()...)
	s.evalctlPrints("route", "resume", s.version.Route)
	again := s.order("later", later)
	for n, id := range again {
		if id == forgotten[n] {
			t.Errorf("ticket %s has the id of the one that was forgotten", id)
		}
	}
	s.until(answered+inFlight+waiting+later, "webhook_delivery WHERE state = 'delivered'")
	s.until(0, "evaluation_outbox")
	if n := s.count("model_call WHERE outcome = 'unknown'"); n != inFlight {
		t.Errorf("%d calls are of unknown outcome, want the %d that were in flight at the point", n, inFlight)
	}
	if got := s.sim.Stats().Billed; got != paid+inFlight+waiting+later {
		t.Errorf("%d calls are paid, %d before the restore: want one more for each answer that it forgot, %d", got, paid, inFlight+waiting+later)
	}
	for content, n := range s.callsByContent() {
		if n > 2 {
			t.Errorf("content %s is called %d times", content, n)
		}
	}
	told.heardTimes(map[int][]string{1: slices.Concat(had, forgotten, again), 2: slices.Concat(called, stored)})
	fscktest.Require(t, s.db)
	s.evalctlPrints("fsck")
}

// order creates tickets with idempotency keys of their own, which are the same each time.
func (s *system) order(what string, n int) []string {
	s.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		text := fmt.Sprintf("%s-%d", what, i)
		ticket, err := s.api.CreateTicket(s.ctx, &ticketv1.CreateTicketRequest{Subject: "Help", Message: text, RequestId: text})
		if err != nil {
			s.t.Fatal(err)
		}
		ids[i] = ticket.GetId()
	}
	return ids
}

// books are what is known of tickets, calls, answers and spend.
func (s *system) books() string {
	s.t.Helper()
	var text string
	err := s.db.QueryRow(s.t.Context(), `
		SELECT concat_ws(E'\n', (SELECT 'tickets ' || string_agg(id::text, ' ' ORDER BY id) FROM ticket),
		  (SELECT 'calls ' || string_agg(id || ' ' || outcome, ', ' ORDER BY id) FROM model_call),
		  (SELECT 'answers ' || string_agg(idempotency_key, ' ' ORDER BY idempotency_key) FROM evaluation_result),
		  (SELECT 'spent ' || string_agg(concat_ws(' ', scope, period, used_usd), ', ' ORDER BY scope, period) FROM spend),
		  (SELECT 'budgets ' || string_agg(concat_ws(' ', scope, period, limit_usd), ', ' ORDER BY scope, period) FROM spend_limit))`).Scan(&text)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// promote makes another version, and the active one of it.
func (s *system) promote(id string) {
	s.t.Helper()
	v := s.version
	v.ID, v.Prompt = id, v.Prompt+" Again."
	s.register(v)
	err := postgres.InTx(s.t.Context(), s.db, func(ctx context.Context, tx pgx.Tx) error {
		return versiondb.Promote(ctx, tx, id, "", "test")
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// archived waits until all that is written by now is in the archive.
func (s *system) archived() {
	s.t.Helper()
	var segment string
	if err := s.db.QueryRow(s.t.Context(), "SELECT pg_walfile_name(pg_current_wal_lsn())").Scan(&segment); err != nil {
		s.t.Fatal(err)
	}
	s.exec("SELECT pg_switch_wal()")
	s.until(1, "pg_stat_archiver WHERE last_archived_wal >= $1", segment)
}

// serveAgain starts a ticket-api on the database that the stack has by now.
func (s *system) serveAgain(env ...string) {
	s.t.Helper()
	hash := sha256.Sum256([]byte(s.token))
	var err error
	if s.server, err = s.stack.StartTicketAPI(s.t.Context(), "acme="+hex.EncodeToString(hash[:]), env...); err != nil {
		s.t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	s.api = ticketv1.NewTicketServiceClient(conn)
}

// statusFor is what ticket-api answers to whoever has the token.
func (s *system) statusFor(token string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.server.HTTP+"/v1/tickets", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// callsByContent counts the provider's requests.
func (s *system) callsByContent() map[providersim.Fingerprint]int {
	calls := map[providersim.Fingerprint]int{}
	for _, entry := range s.sim.Ledger(0) {
		calls[entry.Content]++
	}
	return calls
}

// heardTimes wants to have been told of these tickets under so many ids each, and of no others.
func (r *receiver) heardTimes(want map[int][]string) {
	r.s.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := map[string]int{}
	for _, body := range r.bodies {
		var event struct {
			Data struct {
				TicketID string `json:"ticket_id"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(body), &event); err != nil {
			r.s.t.Fatal(err)
		}
		ids[event.Data.TicketID]++
	}
	for times, tickets := range want {
		for _, ticket := range tickets {
			if ids[ticket] != times {
				r.s.t.Errorf("was told of ticket %s under %d ids, want %d", ticket, ids[ticket], times)
			}
			delete(ids, ticket)
		}
	}
	if len(ids) > 0 {
		r.s.t.Errorf("was told of %v, too", ids)
	}
}
