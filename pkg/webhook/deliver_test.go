package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/pgtest/plan"
	"github.com/evalonce/evalonce/pkg/webhook"
)

// queue gives an endpoint deliveries of n tickets that do not exist.
func (w *world) queue(endpoint uuid.UUID, n int) {
	w.t.Helper()
	w.exec(`INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, sequence, body)
		SELECT $1, 'evaluation.succeeded', gen_random_uuid(), md5(n::text), 1, convert_to('{"n":' || n || '}', 'UTF8') FROM generate_series(1, $2) n`, endpoint, n)
}

func (w *world) claim(perEndpoint, most int) []webhook.Claimed {
	w.t.Helper()
	claimed, err := webhook.Claim(w.t.Context(), w.db, "a", time.Minute, perEndpoint, most)
	if err != nil {
		w.t.Fatal(err)
	}
	return claimed
}

func (w *world) settle(a webhook.Attempt, claimed ...webhook.Claimed) []webhook.Disabled {
	w.t.Helper()
	made := make([]webhook.Made, len(claimed))
	for i, c := range claimed {
		made[i] = webhook.Made{Claimed: c, Attempt: a}
	}
	disabled, err := webhook.Settle(w.t.Context(), w.db, made)
	if err != nil {
		w.t.Fatal(err)
	}
	return disabled
}

// makeDue lets all pauses end.
func (w *world) makeDue() {
	w.t.Helper()
	w.exec(`UPDATE webhook_endpoint SET not_before = 'epoch'`)
	w.exec(`UPDATE webhook_delivery SET available_at = created_at WHERE state = 'pending'`)
}

func TestAnEndpointHasNoMoreUnderWayThanItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy, other := w.endpoint("acme").Endpoint.ID, w.endpoint("globex").Endpoint.ID
	w.queue(busy, 100)
	w.queue(other, 3)
	var mu sync.Mutex
	under := map[uuid.UUID]int{}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 5 {
				claimed, err := webhook.Claim(t.Context(), w.db, "a", time.Minute, 4, 10)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, c := range claimed {
					under[c.EndpointID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if under[busy] != 4 || under[other] != 3 {
		t.Errorf("%d and %d under way, want 4 and 3", under[busy], under[other])
	}
	if most := w.claim(5, 10); len(most) != 1 {
		t.Errorf("claimed %d more, want 1", len(most))
	}
}

func TestEndpointsTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var order []uuid.UUID
	for n := range 3 {
		w.queue(w.endpoint(fmt.Sprint("client", n)).Endpoint.ID, 100)
	}
	for range 9 {
		for _, c := range w.claim(50, 1) {
			order = append(order, c.EndpointID)
		}
	}
	if len(order) != 9 || !slices.Equal(order[:3], order[3:6]) || !slices.Equal(order[:3], order[6:]) || order[0] == order[1] || order[1] == order[2] {
		t.Errorf("claimed of %v", order)
	}
	if claimed := w.claim(50, 30); len(claimed) != 30 {
		t.Errorf("claimed %d of 3 endpoints, want 10 of each", len(claimed))
	}
}

// A dead endpoint with a long queue costs a claim nothing, while it is left alone and when it is tried.
func TestClaimPlanWithADeadEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`ALTER TABLE webhook_delivery SET (autovacuum_enabled = off)`)
	w.exec(`ANALYZE webhook_delivery`) // statistics of an empty table
	dead, alive := w.endpoint("acme").Endpoint.ID, w.endpoint("globex").Endpoint.ID
	w.queue(dead, 100_000)
	w.queue(alive, 5)
	explain := func(statement string) *plan.Plan {
		t.Helper()
		tx, err := w.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		return plan.Named(t, tx, statement, beginning(t, 20))
	}
	for _, pause := range []string{"1 hour", "-1 hour"} {
		w.exec(`UPDATE webhook_endpoint SET consecutive_failures = 1000, failing_since = now(), not_before = now() + $2::interval WHERE id = $1`, dead, pause)
		for _, statement := range []string{"LockReady", "Claim"} {
			p := explain(statement)
			p.ReadsAtMost(50)
			p.Uses("webhook_delivery_due")
		}
	}
	claimed := w.claim(20, 100)
	if n := len(claimed); n != 6 {
		t.Errorf("claimed %d, want the 5 of the one, and a single one of the other", n)
	}
}

func TestALostLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue(w.endpoint("acme").Endpoint.ID, 1)
	lost := w.claim(1, 1)[0]
	w.exec(`UPDATE webhook_delivery SET locked_until = now() - interval '1 second'`)
	if n, err := webhook.Reclaim(t.Context(), w.db, 10); n != 1 || err != nil {
		t.Fatalf("reclaimed %d, %v", n, err)
	}
	if gone, err := webhook.Extend(t.Context(), w.db, "a", []uuid.UUID{lost.Lease}, time.Minute); err != nil || len(gone) != 1 {
		t.Errorf("lost %v, %v", gone, err)
	}
	again := w.claim(1, 1)[0]
	if again.ID != lost.ID || string(again.Body) != string(lost.Body) || again.Attempts != 2 || again.Lease == lost.Lease {
		t.Errorf("claimed %+v after %+v", again, lost)
	}
	w.settle(webhook.Attempt{Status: 200}, lost)
	if state := get[string](w, `SELECT state FROM webhook_delivery`); state != "sending" {
		t.Errorf("the late worker made it %s", state)
	}
	if gone, err := webhook.Extend(t.Context(), w.db, "a", []uuid.UUID{again.Lease}, time.Hour); err != nil || len(gone) != 0 {
		t.Errorf("lost %v, %v", gone, err)
	}
	if n, err := webhook.Reclaim(t.Context(), w.db, 10); n != 0 || err != nil {
		t.Errorf("reclaimed %d, %v of a living lease", n, err)
	}
	w.settle(webhook.Attempt{Status: 204}, again)
	if state := get[string](w, `SELECT state FROM webhook_delivery`); state != "delivered" {
		t.Errorf("it is %s", state)
	}
}

func TestFailuresAreTriedTenTimesOnTheSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	created := w.endpoint("acme")
	w.queue(created.Endpoint.ID, 1)
	steps := []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour}
	var id uuid.UUID
	for n := 0; ; n++ {
		claimed := w.claim(1, 1)
		if len(claimed) != 1 || claimed[0].Attempts != n+1 || n > 0 && claimed[0].ID != id {
			t.Fatalf("attempt %d: claimed %+v", n+1, claimed)
		}
		id = claimed[0].ID
		w.settle(webhook.Attempt{Status: 500, Reason: webhook.BadStatus}, claimed[0])
		if n == len(steps) {
			break
		}
		wait := get[float64](w, `SELECT extract(epoch FROM available_at - last_attempt_at)::float8 FROM webhook_delivery WHERE state = 'pending'`)
		// The attempt was claimed a little before it was settled.
		if step := steps[n].Seconds(); wait < step || wait > 1.2*step+30 {
			t.Errorf("after attempt %d it waits %v s, want %v s and a jitter", n+1, wait, step)
		}
		w.makeDue()
	}
	failed, _, err := w.endpoints.Deliveries(t.Context(), "acme", created.Endpoint.ID, webhook.DeliveryFilter{State: webhook.Failed}, uuid.Max, 10)
	if err != nil || len(failed) != 1 || failed[0].Attempts != 10 || failed[0].LastStatus != 500 || failed[0].LastReason != "status" {
		t.Errorf("failed: %+v, %v", failed, err)
	}
	w.makeDue()
	if err := w.endpoints.Redeliver(t.Context(), "acme", created.Endpoint.ID, id); err != nil {
		t.Fatal(err)
	}
	if again := w.claim(1, 1); len(again) != 1 || again[0].ID != id || again[0].Attempts != 1 {
		t.Errorf("redelivered as %+v", again)
	}
}

func TestAnEndpointIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempt  webhook.Attempt
		failures int
		least    float64
		most     float64
	}{
		"after one failure, not at all":        {webhook.Attempt{Status: 500, Reason: webhook.BadStatus}, 1, -1e18, 0},
		"after five, for a while":              {webhook.Attempt{Reason: webhook.TimedOut}, 5, 1, 1.25},
		"when it is busy":                      {webhook.Attempt{Status: 503, Reason: webhook.BadStatus}, 1, 5, 5},
		"for as long as it asks":               {webhook.Attempt{Status: 429, Reason: webhook.BadStatus, RetryAfter: 10 * time.Minute}, 1, 600, 600},
		"for as long as it asks, whatever for": {webhook.Attempt{Status: 400, Reason: webhook.BadStatus, RetryAfter: time.Minute}, 1, 60, 60},
		"while its secret cannot be read":      {webhook.Attempt{Reason: webhook.NoSecret}, 1, 60, 3600},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.queue(w.endpoint("acme").Endpoint.ID, 50)
			w.settle(c.attempt, w.claim(c.failures, c.failures)...)
			// Both are of the settlement's transaction, but where nothing counts as a failure.
			wait := get[float64](w, `SELECT extract(epoch FROM not_before - coalesce(failing_since, changed_at))::float8 FROM webhook_endpoint`)
			if wait < c.least || wait > c.most {
				t.Errorf("left alone for %v s, want %v to %v", wait, c.least, c.most)
			}
			if c.least >= 50 {
				if claimed := w.claim(50, 50); len(claimed) != 0 {
					t.Errorf("claimed %d of an endpoint that is left alone", len(claimed))
				}
			}
		})
	}
}

func TestASuccessForgivesFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue(w.endpoint("acme").Endpoint.ID, 50)
	w.settle(webhook.Attempt{Reason: webhook.TimedOut}, w.claim(20, 20)...)
	w.exec(`UPDATE webhook_endpoint SET failing_since = now() - interval '10 minutes'`)
	w.makeDue()
	one := w.claim(20, 20)
	if len(one) != 1 {
		t.Fatalf("claimed %d of a failing endpoint, want 1", len(one))
	}
	w.settle(webhook.Attempt{Reason: webhook.NotConnected}, one...)
	if wait := get[float64](w, `SELECT extract(epoch FROM not_before - failing_since)::float8 - 600 FROM webhook_endpoint`); wait < 150 || wait > 300 {
		t.Errorf("left alone for %v s after failing for 600 s, want a quarter and a jitter", wait)
	}
	w.makeDue()
	w.settle(webhook.Attempt{Status: 200}, w.claim(20, 20)...)
	if claimed := w.claim(20, 20); len(claimed) != 20 {
		t.Errorf("claimed %d after a success, want 20", len(claimed))
	}
}

func TestEndpointsAreDisabled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	w.queue(e, 10)
	if disabled := w.settle(webhook.Attempt{Status: 410, Reason: webhook.Gone}, w.claim(1, 1)...); len(disabled) != 1 || disabled[0].Reason != "gone" || disabled[0].ClientID != "acme" {
		t.Fatalf("disabled %+v", disabled)
	}
	shown, err := w.endpoints.Get(t.Context(), "acme", e)
	if err != nil || shown.Enabled || shown.DisabledReason != "gone" || shown.DisabledAt.IsZero() {
		t.Errorf("shown as %+v, %v", shown, err)
	}
	if claimed := w.claim(10, 10); len(claimed) != 0 {
		t.Errorf("claimed %d of a disabled endpoint", len(claimed))
	}
	if _, err := w.endpoints.SendTest(t.Context(), "acme", e); !errors.Is(err, webhook.ErrDisabled) {
		t.Errorf("a test: %v", err)
	}
	on := true
	if shown, err = w.endpoints.Update(t.Context(), "acme", e, webhook.Change{Enabled: &on}); err != nil || !shown.Enabled || shown.Failures != 0 {
		t.Fatalf("enabled as %+v, %v", shown, err)
	}
	for _, failing := range []struct {
		since    string
		disabled int
	}{{"119 hours", 0}, {"120 hours", 1}} {
		w.settle(webhook.Attempt{Reason: webhook.NoName}, w.claim(1, 1)...)
		w.makeDue()
		w.exec(`UPDATE webhook_endpoint SET failing_since = now() - $1::interval`, failing.since)
		if disabled := w.settle(webhook.Attempt{Reason: webhook.NoName}, w.claim(1, 1)...); len(disabled) != failing.disabled {
			t.Errorf("failing for %s disabled %+v", failing.since, disabled)
		}
		w.makeDue()
	}
	if shown, err = w.endpoints.Get(t.Context(), "acme", e); err != nil || shown.DisabledReason != "failing" {
		t.Errorf("shown as %+v, %v", shown, err)
	}
}

// A test goes before all that waits, also to an endpoint that is left alone, and is tried once.
func TestATestGoesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	w.queue(e, 100)
	w.exec(`UPDATE webhook_endpoint SET not_before = now() + interval '1 hour'`)
	test, err := w.endpoints.SendTest(t.Context(), "acme", e)
	if err != nil {
		t.Fatal(err)
	}
	claimed := w.claim(1, 1)
	if len(claimed) != 1 || claimed[0].ID != test.ID || claimed[0].Event != webhook.Test {
		t.Fatalf("claimed %+v", claimed)
	}
	w.settle(webhook.Attempt{Status: 500, Reason: webhook.BadStatus}, claimed...)
	if state := get[string](w, `SELECT state FROM webhook_delivery WHERE id = $1`, test.ID); state != "failed" {
		t.Errorf("it is %s", state)
	}
}

// What is sent can be verified by the reference implementation, with any of the secrets that have not ended; each attempt
// has the same id and the same bytes.
func TestSignaturesAreThoseOfStandardWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	type arrival struct {
		header http.Header
		body   []byte
	}
	arrivals := make(chan arrival, 10)
	server, o := receiver(t, func(rw http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		arrivals <- arrival{r.Header, body}
		rw.WriteHeader(http.StatusServiceUnavailable)
	})
	client := webhook.NewClient(o)
	defer client.Close()
	created := w.endpoint("acme")
	e := created.Endpoint.ID
	w.exec(`UPDATE webhook_endpoint SET url = $1`, server.URL)
	if _, err := w.endpoints.SendTest(t.Context(), "acme", e); err != nil {
		t.Fatal(err)
	}
	w.ticket("acme", "a")
	w.finish("a", "v1")
	w.exec(`DELETE FROM webhook_delivery WHERE event = 'endpoint.test'`)
	attempt := func() arrival {
		t.Helper()
		w.makeDue()
		c := w.claim(1, 1)[0]
		message, err := c.Message(w.keys)
		if err != nil {
			t.Fatal(err)
		}
		w.settle(client.Send(t.Context(), message), c)
		return <-arrivals
	}
	verify := func(a arrival, secret string) error {
		t.Helper()
		verifier, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		return verifier.Verify(a.body, a.header)
	}
	first := attempt()
	if err := verify(first, created.Secret); err != nil {
		t.Error(err)
	}
	rotated, err := w.endpoints.Rotate(t.Context(), "acme", e, time.Hour, "")
	if err != nil {
		t.Fatal(err)
	}
	second := attempt()
	for _, secret := range []string{created.Secret, rotated.Secret} {
		if err := verify(second, secret); err != nil {
			t.Error(err)
		}
	}
	if n := len(strings.Fields(second.header.Get("webhook-signature"))); n != 2 {
		t.Errorf("%d signatures during a rotation, want 2", n)
	}
	if string(first.body) != string(second.body) || first.header.Get("webhook-id") != second.header.Get("webhook-id") {
		t.Errorf("sent again as %s %s, first as %s %s", second.header.Get("webhook-id"), second.body, first.header.Get("webhook-id"), first.body)
	}
	w.exec(`UPDATE webhook_secret SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL`)
	third := attempt()
	if err := verify(third, created.Secret); err == nil {
		t.Error("a secret that has ended still signs")
	}
	if err := verify(third, rotated.Secret); err != nil {
		t.Error(err)
	}
	tampered := third
	tampered.body = append([]byte(" "), third.body...)
	if err := verify(tampered, rotated.Secret); err == nil {
		t.Error("other bytes are verified")
	}
}

func TestSecretsAreSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.endpoint("acme"), w.endpoint("globex")
	w.queue(a.Endpoint.ID, 1)
	if sealed := get[string](w, `SELECT encode(sealed, 'escape') FROM webhook_secret WHERE endpoint_id = $1`, a.Endpoint.ID); !strings.HasPrefix(sealed, "k1:") {
		t.Errorf("sealed as %s", sealed)
	}
	// Another key first: it seals, and the old one still opens, until all is sealed anew.
	const other = "k2=YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY="
	both, only := keyring(t, other+","+keyText), keyring(t, other)
	c := w.claim(1, 1)[0]
	if _, err := c.Message(only); !errors.Is(err, webhook.ErrNoKeys) {
		t.Errorf("without the key: %v", err)
	}
	if n, err := webhook.Reseal(t.Context(), w.db, both, 100); err != nil || n != 2 {
		t.Fatalf("sealed %d anew, %v, want 2", n, err)
	}
	if n, err := webhook.Reseal(t.Context(), w.db, both, 100); err != nil || n != 0 {
		t.Fatalf("sealed %d anew, %v, want none", n, err)
	}
	w.settle(webhook.Attempt{Reason: webhook.Stopped}, c)
	c = w.claim(1, 1)[0]
	if c.Attempts != 1 {
		t.Errorf("attempt %d after one that a stop has ended", c.Attempts)
	}
	if _, err := c.Message(only); err != nil {
		t.Error(err)
	}
	w.settle(webhook.Attempt{Reason: webhook.Stopped}, c)
	// A secret is its endpoint's alone.
	w.exec(`UPDATE webhook_secret SET sealed = (SELECT sealed FROM webhook_secret WHERE endpoint_id = $1) WHERE endpoint_id = $2`, b.Endpoint.ID, a.Endpoint.ID)
	if _, err := w.claim(1, 1)[0].Message(only); err == nil {
		t.Error("another endpoint's secret was opened")
	}
	for _, text := range []string{"", "k", "k=x", "K=" + keyText[3:], keyText + "," + keyText, "k1=MDEy"} {
		k := &webhook.Keyring{}
		if err := k.UnmarshalText([]byte(text)); err == nil || k.Usable() || strings.Contains(err.Error(), keyText[3:]) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDeletedEndpointsArePurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, kept := w.endpoint("acme").Endpoint.ID, w.endpoint("acme").Endpoint.ID
	w.queue(e, 25)
	w.queue(kept, 5)
	if err := w.endpoints.Delete(t.Context(), "acme", e); err != nil {
		t.Fatal(err)
	}
	if n, err := webhook.Purge(t.Context(), w.db, 10); err != nil || n != 0 {
		t.Errorf("purged %d, %v, at once", n, err)
	}
	w.exec(`UPDATE webhook_endpoint SET changed_at = now() - interval '2 hours'`)
	for _, want := range []int{10, 10, 5, 0} {
		if n, err := webhook.Purge(t.Context(), w.db, 10); err != nil || n != want {
			t.Errorf("purged %d, %v, want %d", n, err, want)
		}
	}
	if n := get[int](w, `SELECT count(*) FROM webhook_endpoint`); n != 1 {
		t.Errorf("%d endpoints are left, want 1", n)
	}
	if n := get[int](w, `SELECT count(*) FROM webhook_delivery`); n != 5 {
		t.Errorf("%d deliveries are left, want 5", n)
	}
}

// What has long been finished loses its body, and stays known; it cannot be sent again.
func TestOldBodiesAreErased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	w.queue(e, 4)
	w.exec(`UPDATE webhook_delivery SET state = 'delivered', finished_at = now() WHERE idempotency_key = md5('1')`)
	w.exec(`UPDATE webhook_delivery SET state = 'failed', finished_at = now() WHERE idempotency_key = md5('2')`)
	w.exec(`UPDATE webhook_delivery SET id = uuid_v7(now() - interval '31 days') WHERE idempotency_key <> md5('4')`)
	w.exec(`UPDATE webhook_delivery SET state = 'failed', finished_at = now() WHERE idempotency_key = md5('4')`)
	sweeper := pgtest.PoolAs(t, w.db, pgtest.Sweeper)
	for _, want := range []int64{2, 0} {
		if n, err := webhook.EraseOldBodies(t.Context(), sweeper, 30*24*time.Hour); err != nil || n != want {
			t.Errorf("erased %d, %v, want %d", n, err, want)
		}
	}
	old := get[uuid.UUID](w, `SELECT id FROM webhook_delivery WHERE idempotency_key = md5('1')`)
	if err := w.endpoints.Redeliver(t.Context(), "acme", e, old); !errors.Is(err, webhook.ErrBodyErased) {
		t.Errorf("redelivering without a body: %v", err)
	}
	if n, _, err := w.endpoints.RedeliverFailed(t.Context(), "acme", e, time.Unix(0, 0)); err != nil || n != 1 {
		t.Errorf("redelivered %d, %v, want the young one", n, err)
	}
	for _, c := range w.claim(10, 10) {
		if len(c.Body) == 0 {
			t.Errorf("delivery %s would be sent without a body", c.ID)
		}
	}
}

// Who asks for something to be sent again does not wait for the end of a pause.
func TestRedeliveringEndsAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.endpoint("acme").Endpoint.ID
	w.queue(e, 1)
	id := get[uuid.UUID](w, `SELECT id FROM webhook_delivery`)
	for _, again := range []func() error{
		func() error { return w.endpoints.Redeliver(t.Context(), "acme", e, id) },
		func() error {
			_, _, err := w.endpoints.RedeliverFailed(t.Context(), "acme", e, time.Unix(0, 0))
			return err
		},
	} {
		w.exec(`UPDATE webhook_delivery SET state = 'failed', finished_at = now(), lease_id = NULL, locked_by = NULL, locked_until = NULL`)
		w.exec(`UPDATE webhook_endpoint SET not_before = now() + interval '1 hour'`)
		if claimed := w.claim(1, 1); len(claimed) != 0 {
			t.Fatalf("claimed %v", claimed)
		}
		if err := again(); err != nil {
			t.Fatal(err)
		}
		if claimed := w.claim(1, 1); len(claimed) != 1 {
			t.Error("it waits for the pause to end")
		}
	}
}
