package deliver_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/webhook"
	"github.com/evalonce/evalonce/services/evaluator-worker/internal/deliver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receivers answer by host: those at slow.example when they are let go, the others at once.
type receivers struct {
	release chan struct{}

	mu    sync.Mutex
	heard map[uuid.UUID]int
}

func (r *receivers) Send(ctx context.Context, m webhook.Message) webhook.Attempt {
	r.mu.Lock()
	r.heard[m.ID]++
	r.mu.Unlock()
	if strings.Contains(m.URL, "slow.example") {
		select {
		case <-r.release:
		case <-ctx.Done():
			return webhook.Attempt{Reason: webhook.Stopped}
		}
	}
	return webhook.Attempt{Status: 200}
}

type rig struct {
	t         *testing.T
	db        *pgxpool.Pool
	keys      webhook.Keyring
	receivers *receivers
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, db: pgtest.New(t), receivers: &receivers{release: make(chan struct{}), heard: map[uuid.UUID]int{}}}
	if err := r.keys.UnmarshalText([]byte("k=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err != nil {
		t.Fatal(err)
	}
	return r
}

// endpoint registers one with n deliveries that are due.
func (r *rig) endpoint(client, host string, n int) uuid.UUID {
	r.t.Helper()
	created, err := webhook.NewEndpoints(r.db, &r.keys).Create(r.t.Context(), webhook.NewEndpoint{ClientID: client, URL: "https://" + host, Events: webhook.Events()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec(`INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, sequence, body)
		SELECT $1, 'evaluation.succeeded', gen_random_uuid(), md5(n::text), 1, '{}' FROM generate_series(1, $2) n`, created.Endpoint.ID, n)
	return created.Endpoint.ID
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// start runs a pool and returns what stops it and waits for it.
func (r *rig) start(change ...func(*deliver.Options)) (stop func()) {
	r.t.Helper()
	o := deliver.Options{
		DB: pgtest.PoolAs(r.t, r.db, pgtest.EvaluatorWorker), Sender: r.receivers, Keys: &r.keys, Name: uuid.NewString(), Concurrency: 16, PerEndpoint: 4,
		PollInterval: 10 * time.Millisecond, Lease: time.Minute, Grace: time.Minute,
	}
	for _, c := range change {
		c(&o)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	pool := deliver.New(o)
	go func() { done <- pool.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("the pool ended with %v", err)
			}
		})
	}
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) until(n int, what string, args ...any) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		var got int
		if err := r.db.QueryRow(r.t.Context(), "SELECT count(*) FROM "+what, args...).Scan(&got); err != nil {
			r.t.Fatal(err)
		}
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %d, want %d", what, got, n)
		}
	}
}

// An endpoint that answers nobody holds its own deliveries up, and nobody else's.
func TestASlowEndpointDelaysNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := r.endpoint("acme", "slow.example", 100)
	quick := r.endpoint("globex", "quick.example", 100)
	r.start()
	r.until(100, "webhook_delivery WHERE endpoint_id = $1 AND state = 'delivered'", quick)
	r.until(4, "webhook_delivery WHERE endpoint_id = $1 AND state = 'sending'", slow)
	close(r.receivers.release)
	r.until(100, "webhook_delivery WHERE endpoint_id = $1 AND state = 'delivered'", slow)
	r.receivers.mu.Lock()
	defer r.receivers.mu.Unlock()
	for id, n := range r.receivers.heard {
		if n != 1 {
			t.Errorf("delivery %s was sent %d times", id, n)
		}
	}
}

// Many slow endpoints together leave room for one that is quick.
func TestManySlowEndpointsLeaveRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	defer close(r.receivers.release)
	const slow = 10
	for n := range slow {
		r.endpoint(fmt.Sprint("slow", n), "slow.example", 20)
	}
	r.start()
	r.until(slow, "(SELECT DISTINCT endpoint_id FROM webhook_delivery WHERE state = 'sending') e")
	quick := r.endpoint("globex", "quick.example", 20)
	r.until(20, "webhook_delivery WHERE endpoint_id = $1 AND state = 'delivered'", quick)
}

// A pool that stops waits for its requests, and writes what became of them.
func TestStoppingWaitsForRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := r.endpoint("acme", "slow.example", 10)
	stop := r.start()
	r.until(4, "webhook_delivery WHERE endpoint_id = $1 AND state = 'sending'", slow)
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(r.receivers.release)
	<-stopped
	r.until(0, "webhook_delivery WHERE state = 'sending'")
}

// Requests that do not end within the grace are given back, without an attempt.
func TestStoppingCutsRequestsAfterTheGrace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.endpoint("acme", "slow.example", 10)
	stop := r.start(func(o *deliver.Options) { o.Grace = time.Millisecond })
	r.until(4, "webhook_delivery WHERE state = 'sending'")
	stop()
	r.until(10, "webhook_delivery WHERE state = 'pending' AND attempts = 0")
}

// What a dead worker had under way is sent again, under the same id.
func TestLeasesOfADeadWorkerAreTakenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	close(r.receivers.release)
	r.endpoint("acme", "quick.example", 5)
	claimed, err := webhook.Claim(t.Context(), r.db, "dead", time.Minute, 4, 10)
	if err != nil || len(claimed) != 4 {
		t.Fatalf("claimed %d, %v", len(claimed), err)
	}
	r.exec("UPDATE webhook_delivery SET locked_until = now() - interval '1 second' WHERE state = 'sending'")
	r.start()
	r.until(5, "webhook_delivery WHERE state = 'delivered'")
	r.receivers.mu.Lock()
	defer r.receivers.mu.Unlock()
	for _, c := range claimed {
		if r.receivers.heard[c.ID] != 1 {
			t.Errorf("delivery %s was sent %d times", c.ID, r.receivers.heard[c.ID])
		}
	}
}

// Without the key that a secret is sealed with, its deliveries wait, and no attempt is lost.
func TestWithoutItsKeyNothingIsSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.endpoint("acme", "quick.example", 3)
	other := &webhook.Keyring{}
	if err := other.UnmarshalText([]byte("other=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err != nil {
		t.Fatal(err)
	}
	r.start(func(o *deliver.Options) { o.Keys = other })
	r.until(3, "webhook_delivery WHERE state = 'pending' AND attempts = 0 AND last_reason = 'secret_unreadable'")
	if len(r.receivers.heard) != 0 {
		t.Errorf("%d deliveries were sent", len(r.receivers.heard))
	}
}
