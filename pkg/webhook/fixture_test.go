package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/versiondb"
	"github.com/evalonce/evalonce/pkg/webhook"
)

const keyText = "k1=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

func keyring(t *testing.T, text string) *webhook.Keyring {
	t.Helper()
	k := &webhook.Keyring{}
	if err := k.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return k
}

// world is a database in which version v1 is active.
type world struct {
	t         *testing.T
	db        *pgxpool.Pool
	keys      *webhook.Keyring
	endpoints *webhook.Endpoints
	versions  map[string]evaluation.Version
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.New(t), keys: keyring(t, keyText), versions: map[string]evaluation.Version{}}
	w.endpoints = webhook.NewEndpoints(w.db, w.keys)
	w.promote("v1")
	return w
}

func (w *world) register(id string) evaluation.Version {
	w.t.Helper()
	v := evaluation.Version{
		ID: id, PromptVersion: "p-" + id, Provider: "openai", Model: "m", Prompt: "Sort it. " + id, AnswerSchema: evaluation.AnswerSchema,
		Departments: []evaluation.Department{{Name: "billing"}, {Name: "general"}}, MaxOutputTokens: 100, Route: "main",
	}.WithDefaults()
	w.versions[id] = v
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := versiondb.Register(ctx, tx, v, "test")
		return err
	})
	return v
}

func (w *world) promote(id string) {
	w.t.Helper()
	if _, ok := w.versions[id]; !ok {
		w.register(id)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error { return versiondb.Promote(ctx, tx, id, "", "test") })
}

func (w *world) tx(fn func(context.Context, pgx.Tx) error) {
	w.t.Helper()
	if err := postgres.InTx(w.t.Context(), w.db, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func get[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	var v T
	if err := w.db.QueryRow(w.t.Context(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// endpoint registers one for all events, or those given.
func (w *world) endpoint(client string, events ...webhook.Event) webhook.Created {
	w.t.Helper()
	if len(events) == 0 {
		events = webhook.Events()
	}
	c, err := w.endpoints.Create(w.t.Context(), webhook.NewEndpoint{ClientID: client, URL: "https://" + client + ".example/hook", Events: events})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// ticket stores one of a client's and returns its id.
func (w *world) ticket(client, text string) uuid.UUID {
	w.t.Helper()
	id := uuid.Must(uuid.NewV7())
	w.exec(`INSERT INTO ticket (id, client_id, external_id, subject, message, content_hash) VALUES ($1, $2, 'ext-' || $3, '', $3, $4)`, id, client, text, hashOf(w.t, text))
	return id
}

func hashOf(t *testing.T, message string) []byte {
	t.Helper()
	text, err := content.Canonical("", message)
	if err != nil {
		t.Fatal(err)
	}
	h := text.Hash()
	return h[:]
}

func (w *world) key(text, version string) content.Key {
	w.t.Helper()
	return content.KeyOf(content.Hash(hashOf(w.t, text)), w.versions[version].Digest())
}

func answer(ctx context.Context, tx pgx.Tx, key content.Key, hash []byte, version string) error {
	_, err := tx.Exec(ctx, `INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
			model_version, prompt_version, policy_version, priority, queue, model_call_id)
		VALUES ($1, $2, uuid_v7(), $3, 0.25, 'billing', 0.5, 'm-1', 'p', 'pol', 'high', 'q', uuid_v7()) ON CONFLICT DO NOTHING`, key, hash, version)
	return err
}

// finish writes a result and tells of it, as a worker does.
func (w *world) finish(text, version string) (told int) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := answer(ctx, tx, w.key(text, version), hashOf(w.t, text), version); err != nil {
			return err
		}
		var err error
		told, err = webhook.Tell(ctx, tx, []content.Key{w.key(text, version)})
		return err
	})
	return told
}

// bury makes a dead letter and tells of it.
func (w *world) bury(ticket uuid.UUID, text, version string) (told int) {
	w.t.Helper()
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, status, dead_at, last_class, last_reason)
			VALUES ($1, $2, $3, $4, 'main', 'live', 'dead', now(), 'permanent', 'refusal') ON CONFLICT DO NOTHING`, w.key(text, version), hashOf(w.t, text), ticket, version)
		if err != nil {
			return err
		}
		told, err = webhook.Tell(ctx, tx, []content.Key{w.key(text, version)})
		return err
	})
	return told
}

// told lists "event version" of a ticket's deliveries at an endpoint, in the order of their numbers, and checks those.
func (w *world) told(endpoint, ticket uuid.UUID) []string {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT event, sequence, body FROM webhook_delivery WHERE endpoint_id = $1 AND ticket_id = $2 ORDER BY sequence`, endpoint, ticket)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	told := []string{}
	for rows.Next() {
		var event string
		var sequence int
		var raw []byte
		if err := rows.Scan(&event, &sequence, &raw); err != nil {
			w.t.Fatal(err)
		}
		var body payload
		if err := json.Unmarshal(raw, &body); err != nil {
			w.t.Fatalf("%s: %v", raw, err)
		}
		if body.Type != event || body.Data.Sequence != sequence || sequence != len(told)+1 || body.Data.TicketID != ticket {
			w.t.Errorf("delivery %d of %s is %s", sequence, event, raw)
		}
		told = append(told, fmt.Sprintf("%s %s", event, body.Data.VersionID))
	}
	return told
}

type payload struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      struct {
		TicketID   uuid.UUID      `json:"ticket_id"`
		ExternalID string         `json:"external_id"`
		Sequence   int            `json:"sequence"`
		State      string         `json:"state"`
		VersionID  string         `json:"version_id"`
		Answer     map[string]any `json:"answer"`
		DeadLetter map[string]any `json:"dead_letter"`
	} `json:"data"`
}

// supersede works all promotions off, the tails too.
func (w *world) supersede(most int) (told int) {
	w.t.Helper()
	w.exec(`UPDATE webhook_supersession SET barrier = '1'`)
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		p, err := webhook.Supersede(w.t.Context(), w.db, most)
		if err != nil {
			w.t.Fatal(err)
		}
		told += p.Told
		if !p.Worked && get[int](w, `SELECT count(*) FROM webhook_supersession WHERE state = 'walking'`) == 0 {
			return told
		}
	}
	w.t.Fatal("the promotions are not worked off")
	return 0
}

// beginning claims through the transaction that it is given.
func beginning(t *testing.T, perEndpoint int) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		beginner, ok := tx.(postgres.Beginner)
		if !ok {
			t.Fatal("the transaction begins none")
		}
		_, err := webhook.Claim(t.Context(), beginner, "a", time.Minute, perEndpoint, 100)
		return err
	}
}
