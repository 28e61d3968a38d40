package systemtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/crashpoint"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

var webhookKeys = "k=" + base64.StdEncoding.EncodeToString(make([]byte, 32))

// urlSecret is in the query of every receiver's URL, and nowhere in a log.
const urlSecret = "hush-hush"

// receiver is the client's: it verifies what arrives, and keeps what it was told by id.
type receiver struct {
	s        *system
	verifier *standardwebhooks.Webhook
	server   *httptest.Server
	release  chan struct{} // closed once it answers

	mu     sync.Mutex
	bodies map[string]string // by webhook-id
}

// receive registers a receiver that has listened all the time; one that holds answers nobody until it is let go.
func (s *system) receive(holds bool) *receiver {
	s.t.Helper()
	r := &receiver{s: s, bodies: map[string]string{}, release: make(chan struct{})}
	r.server = httptest.NewServer(r)
	s.t.Cleanup(r.server.Close)
	keys := &webhook.Keyring{}
	if err := keys.UnmarshalText([]byte(webhookKeys)); err != nil {
		s.t.Fatal(err)
	}
	created, err := webhook.NewEndpoints(s.db, keys).Create(s.t.Context(), webhook.NewEndpoint{ClientID: "acme", URL: r.server.URL + "/hook?token=" + urlSecret, Events: webhook.Events()})
	if err != nil {
		s.t.Fatal(err)
	}
	if r.verifier, err = standardwebhooks.NewWebhook(created.Secret); err != nil {
		s.t.Fatal(err)
	}
	s.exec("UPDATE webhook_endpoint SET listening_since = now() - interval '1 hour'")
	if !holds {
		close(r.release)
	}
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // its sender is dead
	}
	if err := r.verifier.Verify(body, req.Header); err != nil {
		r.s.t.Errorf("a delivery cannot be verified: %v", err)
	}
	id := req.Header.Get("webhook-id")
	r.mu.Lock()
	if first, ok := r.bodies[id]; ok && first != string(body) {
		r.s.t.Errorf("delivery %s came as %s and as %s", id, first, body)
	}
	r.bodies[id] = string(body)
	r.mu.Unlock()
	select {
	case <-r.release:
		w.WriteHeader(http.StatusNoContent)
	case <-req.Context().Done():
	}
}

func webhookEnv(more ...string) []string {
	return append([]string{
		leaseInMatrix, fewAtOnce, "EVALONCE_WEBHOOK_KEYS=" + webhookKeys, "EVALONCE_WEBHOOK_ALLOW_HTTP=true", "EVALONCE_WEBHOOK_ALLOW_NETWORKS=127.0.0.0/8",
	}, more...)
}

// told wants every ticket told of, once for each event, and every delivery received.
func (r *receiver) told(ids map[string]string, events ...webhook.Event) {
	s := r.s
	s.t.Helper()
	s.until(0, "webhook_supersession WHERE state = 'walking'")
	s.until(len(ids)*len(events), "webhook_delivery WHERE state = 'delivered'")
	if n := s.count("webhook_delivery"); n != len(ids)*len(events) {
		s.t.Errorf("%d deliveries of %d tickets, want %d of each", n, len(ids), len(events))
	}
	want := map[string]bool{}
	for _, id := range ids {
		for _, event := range events {
			want[string(event)+" "+id] = true
		}
	}
	r.heard(want)
}

// heard wants to have been told of these events, "event ticket", each under one id, and of no others.
func (r *receiver) heard(want map[string]bool) {
	r.s.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := map[string]int{}
	for id, body := range r.bodies {
		var event struct {
			Type string `json:"type"`
			Data struct {
				TicketID string `json:"ticket_id"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(body), &event); err != nil {
			r.s.t.Errorf("delivery %s is %s: %v", id, body, err)
		}
		what := event.Type + " " + event.Data.TicketID
		if ids[what]++; !want[what] {
			r.s.t.Errorf("was told of %s", what)
		}
	}
	for what := range want {
		if ids[what] != 1 {
			r.s.t.Errorf("was told of %s under %d ids, want 1", what, ids[what])
		}
	}
}

func delivering() []scenario {
	return []scenario{
		{at: crashpoint.SettleTold, nth: 2},
		{at: crashpoint.DeliverClaimed, nth: 2},
		{at: crashpoint.DeliverClaimCommitted, nth: 2},
		{at: crashpoint.DeliverReturned, nth: 3},
		{at: crashpoint.DeliverSettled, nth: 2},
		{at: crashpoint.DeliverSettleCommitted, nth: 2},
		{at: crashpoint.DeliverExtended, name: "held"},
		{at: crashpoint.DeliverReclaimed, name: "held", prepare: killDeliverer},
		{at: crashpoint.DeliverSuperseded, prepare: promoteAnother},
		{at: crashpoint.DeliverSupersedeCommitted, prepare: promoteAnother},
	}
}

// killDelivery kills a worker at a step of its deliveries: the others deliver everything, under the same ids.
func killDelivery(t *testing.T, c scenario) {
	s := startSystem(t, options{bin: crashing(t), latency: someLatency, version: patientVersion})
	r := s.receive(c.name == "held")
	ids := s.submit(someOrders())
	open := map[string]bool{}
	if c.prepare != nil {
		open = c.prepare(s)
	}
	victim := s.launchWorker("victim", webhookEnv(fmt.Sprintf("%s%s:%d", crashAt, c.at, max(c.nth, 1)))...)
	s.died(victim, c.at)
	maps.Copy(open, s.openCalls())
	if c.name == "held" {
		close(r.release)
	}
	s.expire()
	// Attempts that the receiver let run out of time are made up for now.
	s.exec("UPDATE webhook_delivery SET available_at = created_at WHERE state = 'pending'")
	s.exec("UPDATE webhook_endpoint SET not_before = 'epoch'")
	survivor := s.worker(webhookEnv()...)
	s.until(0, "evaluation_outbox")
	if s.count("version_promotion") > 1 {
		r.told(ids, webhook.Succeeded, webhook.Superseded)
	} else {
		r.told(ids, webhook.Succeeded)
	}
	s.promises(open)
	for _, p := range []*stack.Process{victim, survivor} {
		if log, err := p.Log(); err != nil || strings.Contains(log, urlSecret) {
			t.Errorf("%s tells of a URL's query in its log: %v", p.Name, err)
		}
	}
}

// killDeliverer leaves expired leases of deliveries behind, whose requests had left.
func killDeliverer(s *system) map[string]bool {
	first := s.worker(webhookEnv()...)
	s.until(0, "evaluation_outbox")
	s.until(1, "(SELECT FROM webhook_delivery WHERE state = 'sending' LIMIT 1) d")
	s.kill(first)
	s.exec("UPDATE webhook_delivery SET locked_until = now() - interval '1 ms' WHERE state = 'sending'")
	return map[string]bool{}
}

// promoteAnother has all tickets answered under a second version, too, and promotes it while no worker runs.
func promoteAnother(s *system) map[string]bool {
	second := s.version
	second.ID, second.Prompt = "v2", "Sort it again."
	s.register(second)
	if err := s.reprocess(s.t.Context(), second); err != nil {
		s.t.Fatal(err)
	}
	first := s.worker(webhookEnv()...)
	s.until(0, "evaluation_outbox")
	s.stop(first)
	err := postgres.InTx(s.t.Context(), s.db, func(ctx context.Context, tx pgx.Tx) error {
		return versiondb.Promote(ctx, tx, second.ID, "", "test")
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return map[string]bool{}
}
