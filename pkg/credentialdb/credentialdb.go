// Package credentialdb owns api_credential: who may call the services, and as whom.
//
// A token is random and long, so its SHA-256 is all that is stored, and there is nothing to guess that a slow hash
// would have to protect. It is shown once, to whoever has it made. A certificate is known by one of its subject
// alternative names, once the transport has verified it. A client may have several credentials, so that one is replaced
// without an interruption; what the client owns, and the scope of its idempotency keys, go by the client.
package credentialdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/credentialdb/internal/credentialdbsql"
	"github.com/evalonce/evalonce/pkg/rpc"
)

var (
	// ErrNotFound is returned when no credential has the id asked for.
	ErrNotFound = errors.New("no such credential")
	// ErrTaken is returned when the client has a credential of the name, or somebody has one for the certificate.
	ErrTaken = errors.New("the name or the certificate is taken: revoke what has it first, or choose another")
)

// prefix tells an API token from other credentials, and a leaked one from a random word.
const prefix = "evo_"

// Spec is what a credential is to be.
type Spec struct {
	ClientID string
	Name     string // what it is for; unique among the client's credentials that are not revoked
	Roles    []rpc.Role
	Life     time.Duration // 0 is for ever
}

// Credential is a credential without its secret.
type Credential struct {
	ID        uuid.UUID
	ClientID  string
	Name      string
	Roles     []rpc.Role
	SAN       string // of a certificate, such as "DNS:shop.example" or "URI:spiffe://example/shop"; "" for a token
	CreatedBy string
	CreatedAt time.Time
	ExpiresAt time.Time // zero for never
	RevokedBy string
	RevokedAt time.Time // zero as long as it is not
}

// CreateToken makes a token and returns its secret, which nobody can tell again.
func CreateToken(ctx context.Context, db credentialdbsql.DBTX, s Spec, by string) (secret string, c Credential, err error) {
	secret = prefix + rand.Text()
	c, err = insert(ctx, db, s, nil, sha256.Sum256([]byte(secret)), by)
	if err != nil {
		return "", Credential{}, err
	}
	return secret, c, nil
}

// AdmitCertificate lets whoever has a valid client certificate with the subject alternative name call as a client.
func AdmitCertificate(ctx context.Context, db credentialdbsql.DBTX, s Spec, san, by string) (Credential, error) {
	return insert(ctx, db, s, &san, digestOf(san), by)
}

// digestOf is what a certificate's name is looked up by. No token has it: their secrets begin otherwise.
func digestOf(san string) [sha256.Size]byte { return sha256.Sum256([]byte("certificate " + san)) }

func insert(ctx context.Context, db credentialdbsql.DBTX, s Spec, san *string, digest [sha256.Size]byte, by string) (Credential, error) {
	names := make([]string, len(s.Roles))
	for i, r := range s.Roles {
		names[i] = string(r)
	}
	p := credentialdbsql.InsertCredentialParams{ClientID: s.ClientID, Name: s.Name, Roles: names, San: san, Digest: digest[:], CreatedBy: by}
	if s.Life > 0 {
		seconds := s.Life.Seconds()
		p.LifeSeconds = &seconds
	}
	row, err := credentialdbsql.New(db).InsertCredential(ctx, p)
	if errors.Is(err, pgx.ErrNoRows) {
		return Credential{}, fmt.Errorf("credential %q of client %s: %w", s.Name, s.ClientID, ErrTaken)
	}
	if err != nil {
		return Credential{}, fmt.Errorf("insert credential %q of client %s: %w", s.Name, s.ClientID, err)
	}
	return credentialOf(credentialdbsql.GetCredentialRow(row)), nil
}

// Get returns a credential, or ErrNotFound.
func Get(ctx context.Context, db credentialdbsql.DBTX, id uuid.UUID) (Credential, error) {
	row, err := credentialdbsql.New(db).GetCredential(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Credential{}, fmt.Errorf("credential %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Credential{}, fmt.Errorf("get credential %s: %w", id, err)
	}
	return credentialOf(row), nil
}

// Revoke ends a credential; services follow within [Believed]. It reports whether this was what ended it.
func Revoke(ctx context.Context, db credentialdbsql.DBTX, id uuid.UUID, by string) (changed bool, err error) {
	n, err := credentialdbsql.New(db).RevokeCredential(ctx, credentialdbsql.RevokeCredentialParams{ID: id, RevokedBy: by})
	if err != nil {
		return false, fmt.Errorf("revoke credential %s: %w", id, err)
	}
	return n == 1, nil
}

// Filter selects credentials. The zero value selects the first page of those that are valid.
type Filter struct {
	ClientID string    // "" for all clients'
	Ended    bool      // the expired and the revoked, too
	Before   uuid.UUID // the last one of the page before
	Most     int
}

// List returns credentials, the newest first.
func List(ctx context.Context, db credentialdbsql.DBTX, f Filter) ([]Credential, error) {
	if f.Before == uuid.Nil {
		f.Before = uuid.Max
	}
	rows, err := credentialdbsql.New(db).ListCredentials(ctx, credentialdbsql.ListCredentialsParams{
		ClientID: f.ClientID, Ended: f.Ended, Before: f.Before, Most: int32(min(f.Most, 10_000)),
	})
	if err != nil {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	credentials := make([]Credential, len(rows))
	for i, row := range rows {
		credentials[i] = credentialOf(credentialdbsql.GetCredentialRow(row))
	}
	return credentials, nil
}

func credentialOf(row credentialdbsql.GetCredentialRow) Credential {
	c := Credential{
		ID: row.ID, ClientID: row.ClientID, Name: row.Name, Roles: rolesOf(row.Roles),
		CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt,
	}
	if row.San != nil {
		c.SAN = *row.San
	}
	if row.ExpiresAt != nil {
		c.ExpiresAt = *row.ExpiresAt
	}
	if row.RevokedAt != nil && row.RevokedBy != nil {
		c.RevokedAt, c.RevokedBy = *row.RevokedAt, *row.RevokedBy
	}
	return c
}

func rolesOf(names []string) []rpc.Role {
	roles := make([]rpc.Role, len(names))
	for i, name := range names {
		roles[i] = rpc.Role(name)
	}
	return roles
}
