package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/postgres"
	"github.com/evalonce/evalonce/pkg/webhook/internal/webhooksql"
)

const (
	// EndpointsMost bounds a client's endpoints, each of which is told of each of its tickets.
	EndpointsMost = 20
	// secretsMost bounds the signatures of one delivery.
	secretsMost = 5
)

// Endpoint is where a client wants to be told of its tickets.
type Endpoint struct {
	ID             uuid.UUID
	URL            string
	Description    string
	Events         []Event
	Enabled        bool
	DisabledReason string    // client, gone or failing; empty while it is enabled
	DisabledAt     time.Time // zero while it is enabled
	Failures       int       // since the last success
	FailingSince   time.Time // zero while it is well
	NotBefore      time.Time // of the next attempt; zero when that needs not wait
	CreatedAt      time.Time
	ChangedAt      time.Time
}

// DB is a pool.
type DB interface {
	postgres.Beginner
	webhooksql.DBTX
}

// Endpoints keeps the endpoints of clients. Each method takes the client whose endpoint it is.
type Endpoints struct {
	db   DB
	q    *webhooksql.Queries
	keys *Keyring
}

// NewEndpoints makes a store whose secrets are sealed with keys.
func NewEndpoints(db DB, keys *Keyring) *Endpoints {
	return &Endpoints{db: db, q: webhooksql.New(db), keys: keys}
}

// Usable returns ErrNoKeys where endpoints can be neither made nor served.
func (s *Endpoints) Usable() error {
	if !s.keys.Usable() {
		return ErrNoKeys
	}
	return nil
}

// NewEndpoint is an endpoint to be made.
type NewEndpoint struct {
	ClientID    string
	URL         string
	Description string
	Events      []Event
	RequestID   string // idempotency key; empty for none
}

// fingerprint tells whether two requests of one id ask for the same. It is stored: another form needs another name.
func (n NewEndpoint) fingerprint() [sha256.Size]byte {
	b := []byte("evalonce/create-webhook-endpoint/1")
	for _, part := range append([]string{n.URL, n.Description}, eventNames(n.Events)...) {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

// Created is an endpoint with its secret, as its receiver takes it.
type Created struct {
	Endpoint Endpoint
	Secret   string // empty when replayed
	Replayed bool
}

// Create makes an endpoint. The same request again returns the endpoint without the secret, which is shown once; one with
// its id that asks for another endpoint is refused with ErrRequestReused.
func (s *Endpoints) Create(ctx context.Context, n NewEndpoint) (c Created, err error) {
	err = postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) error {
		c = Created{}
		q := webhooksql.New(tx)
		if err := q.LockClient(ctx, n.ClientID); err != nil {
			return fmt.Errorf("lock the client: %w", err)
		}
		fingerprint := n.fingerprint()
		first, err := q.EndpointByRequest(ctx, webhooksql.EndpointByRequestParams{ClientID: n.ClientID, RequestID: n.RequestID})
		switch {
		case err == nil && [sha256.Size]byte(first.Fingerprint) != fingerprint:
			return ErrRequestReused
		case err == nil:
			c.Replayed = true
			c.Endpoint, err = get(ctx, q, n.ClientID, first.ID)
			return err
		case !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("look for the request: %w", err)
		}
		count, err := q.CountEndpoints(ctx, n.ClientID)
		if err != nil {
			return fmt.Errorf("count endpoints: %w", err)
		}
		if count >= EndpointsMost {
			return ErrTooManyEndpoints
		}
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make an endpoint's id: %w", err)
		}
		if err := q.InsertEndpoint(ctx, webhooksql.InsertEndpointParams{
			ID: id, ClientID: n.ClientID, Url: n.URL, Description: n.Description, Events: eventNames(n.Events), RequestID: n.RequestID,
			Fingerprint: fingerprint[:],
		}); err != nil {
			return fmt.Errorf("insert endpoint %s: %w", id, err)
		}
		secret, _, err := s.addSecret(ctx, q, id, n.RequestID, 0)
		if err != nil {
			return err
		}
		c.Secret = secret
		c.Endpoint, err = get(ctx, q, n.ClientID, id)
		return err
	})
	if err != nil {
		return Created{}, fmt.Errorf("create a webhook endpoint of %s: %w", n.ClientID, err)
	}
	return c, nil
}

// addSecret makes the newest secret of an endpoint, and returns when those before it end.
func (s *Endpoints) addSecret(ctx context.Context, q *webhooksql.Queries, id uuid.UUID, requestID string, grace time.Duration) (string, time.Time, error) {
	secret, err := newSecret()
	if err != nil {
		return "", time.Time{}, err
	}
	sealed, err := s.keys.seal(id, secret)
	if err != nil {
		return "", time.Time{}, err
	}
	end, err := q.InsertSecret(ctx, webhooksql.InsertSecretParams{EndpointID: id, Sealed: sealed, RequestID: requestID, GraceSeconds: grace.Seconds()})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("insert a secret of endpoint %s: %w", id, err)
	}
	return showSecret(secret), end, nil
}

func get(ctx context.Context, q *webhooksql.Queries, client string, id uuid.UUID) (Endpoint, error) {
	row, err := q.GetEndpoint(ctx, webhooksql.GetEndpointParams{ID: id, ClientID: client})
	if errors.Is(err, pgx.ErrNoRows) {
		return Endpoint{}, fmt.Errorf("endpoint %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("get endpoint %s: %w", id, err)
	}
	return endpointOf(row.WebhookEndpoint, row.Waits), nil
}

// Get returns a client's endpoint, or ErrNotFound.
func (s *Endpoints) Get(ctx context.Context, client string, id uuid.UUID) (Endpoint, error) {
	return get(ctx, s.q, client, id)
}

// List returns a client's endpoints, the oldest first.
func (s *Endpoints) List(ctx context.Context, client string) ([]Endpoint, error) {
	rows, err := s.q.ListEndpoints(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("list the webhook endpoints of %s: %w", client, err)
	}
	endpoints := make([]Endpoint, len(rows))
	for i, r := range rows {
		endpoints[i] = endpointOf(r.WebhookEndpoint, r.Waits)
	}
	return endpoints, nil
}

// Change is what is to be different; zero fields leave what is.
type Change struct {
	URL         *string
	Description *string
	Events      []Event
	Enabled     *bool
}

// Update changes an endpoint. Enabling it, and giving it another URL, forgives its failures.
func (s *Endpoints) Update(ctx context.Context, client string, id uuid.UUID, c Change) (e Endpoint, err error) {
	err = s.change(ctx, client, id, func(ctx context.Context, q *webhooksql.Queries, before Endpoint) error {
		p := webhooksql.UpdateEndpointParams{
			ID: id, Url: before.URL, Description: before.Description, Events: eventNames(before.Events), Enabled: before.Enabled,
		}
		if c.URL != nil {
			p.Url = *c.URL
		}
		if c.Description != nil {
			p.Description = *c.Description
		}
		if len(c.Events) > 0 {
			p.Events = eventNames(c.Events)
		}
		if c.Enabled != nil {
			p.Enabled = *c.Enabled
		}
		p.Forgiven = p.Enabled && !before.Enabled || p.Url != before.URL
		if err := q.UpdateEndpoint(ctx, p); err != nil {
			return err
		}
		e, err = get(ctx, q, client, id)
		return err
	})
	if err != nil {
		return Endpoint{}, fmt.Errorf("update webhook endpoint %s: %w", id, err)
	}
	return e, nil
}

// change runs fn in a transaction that holds the endpoint.
func (s *Endpoints) change(ctx context.Context, client string, id uuid.UUID, fn func(context.Context, *webhooksql.Queries, Endpoint) error) error {
	return postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) error {
		q := webhooksql.New(tx)
		row, err := q.LockEndpoint(ctx, webhooksql.LockEndpointParams{ID: id, ClientID: client})
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		return fn(ctx, q, endpointOf(row.WebhookEndpoint, row.Waits))
	})
}

// Delete removes an endpoint and its secrets; its deliveries go little by little ([Purge]).
func (s *Endpoints) Delete(ctx context.Context, client string, id uuid.UUID) error {
	err := postgres.InTx(ctx, s.db, func(ctx context.Context, tx pgx.Tx) error {
		q := webhooksql.New(tx)
		n, err := q.DeleteEndpoint(ctx, webhooksql.DeleteEndpointParams{ID: id, ClientID: client})
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrNotFound
		}
		return q.DeleteSecrets(ctx, id)
	})
	if err != nil {
		return fmt.Errorf("delete webhook endpoint %s: %w", id, err)
	}
	return nil
}

// Rotated is a new secret.
type Rotated struct {
	Secret    string    // empty when replayed
	OldExpire time.Time // when the ones before it end
	Replayed  bool
}

// Rotate makes a new secret; those before it sign for as long as grace. The same request again makes none.
func (s *Endpoints) Rotate(ctx context.Context, client string, id uuid.UUID, grace time.Duration, requestID string) (r Rotated, err error) {
	err = s.change(ctx, client, id, func(ctx context.Context, q *webhooksql.Queries, _ Endpoint) error {
		r = Rotated{}
		if requestID != "" {
			first, err := q.SecretByRequest(ctx, webhooksql.SecretByRequestParams{EndpointID: id, RequestID: requestID})
			switch {
			case err == nil && first.GraceSeconds != grace.Seconds():
				return ErrRequestReused
			case err == nil:
				r = Rotated{OldExpire: first.OldExpireTime, Replayed: true}
				return nil
			case !errors.Is(err, pgx.ErrNoRows):
				return fmt.Errorf("look for the request: %w", err)
			}
		}
		if err := q.ExpireSecrets(ctx, webhooksql.ExpireSecretsParams{EndpointID: id, GraceSeconds: grace.Seconds()}); err != nil {
			return fmt.Errorf("end the secrets before: %w", err)
		}
		signing, err := q.SigningSecrets(ctx, id)
		if err != nil {
			return fmt.Errorf("count secrets: %w", err)
		}
		if signing >= secretsMost {
			return ErrTooManySecrets
		}
		r.Secret, r.OldExpire, err = s.addSecret(ctx, q, id, requestID, grace)
		return err
	})
	if err != nil {
		return Rotated{}, fmt.Errorf("rotate the secret of webhook endpoint %s: %w", id, err)
	}
	return r, nil
}

func endpointOf(r webhooksql.WebhookEndpoint, waits bool) Endpoint {
	e := Endpoint{
		ID: r.ID, URL: r.Url, Description: r.Description, Enabled: r.State == "enabled", Failures: int(r.ConsecutiveFailures),
		CreatedAt: r.CreatedAt, ChangedAt: r.ChangedAt,
	}
	for _, name := range r.Events {
		e.Events = append(e.Events, Event(name))
	}
	if r.DisabledReason != nil {
		e.DisabledReason = *r.DisabledReason
	}
	if r.DisabledAt != nil {
		e.DisabledAt = *r.DisabledAt
	}
	if r.FailingSince != nil {
		e.FailingSince = *r.FailingSince
	}
	if waits {
		e.NotBefore = r.NotBefore
	}
	return e
}

func eventNames(events []Event) []string {
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = string(e)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
