// Package tokendb owns api_token: who may call the services, and as whom.
//
// A token is random and long, so its SHA-256 is all that is stored, and there is nothing to guess that a slow hash
// would have to protect. It is shown once, to whoever has it made. A client may have several, so that one is replaced
// without an interruption; what the client owns, and the scope of its idempotency keys, go by the client.
package tokendb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/tokendb/internal/tokendbsql"
)

var (
	// ErrNotFound is returned when no token has the id asked for.
	ErrNotFound = errors.New("no such token")
	// ErrNameTaken is returned when the client has a token of the name that is not revoked.
	ErrNameTaken = errors.New("the client has a token of that name: revoke it first, or choose another name")
)

// prefix tells an API token from other credentials, and a leaked one from a random word.
const prefix = "evo_"

// Spec is what a token is to be.
type Spec struct {
	ClientID string
	Name     string // what it is for; unique among the client's tokens that are not revoked
	Roles    []rpc.Role
	Life     time.Duration // 0 is for ever
}

// Token is a token without its secret.
type Token struct {
	ID        uuid.UUID
	ClientID  string
	Name      string
	Roles     []rpc.Role
	CreatedBy string
	CreatedAt time.Time
	ExpiresAt time.Time // zero for never
	RevokedBy string
	RevokedAt time.Time // zero as long as it is not
}

// Create makes a token and returns its secret, which nobody can tell again.
func Create(ctx context.Context, db tokendbsql.DBTX, s Spec, by string) (secret string, t Token, err error) {
	secret = prefix + rand.Text()
	digest := sha256.Sum256([]byte(secret))
	names := make([]string, len(s.Roles))
	for i, r := range s.Roles {
		names[i] = string(r)
	}
	p := tokendbsql.InsertTokenParams{ClientID: s.ClientID, Name: s.Name, Roles: names, Digest: digest[:], CreatedBy: by}
	if s.Life > 0 {
		seconds := s.Life.Seconds()
		p.LifeSeconds = &seconds
	}
	row, err := tokendbsql.New(db).InsertToken(ctx, p)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", Token{}, fmt.Errorf("token %q of client %s: %w", s.Name, s.ClientID, ErrNameTaken)
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("insert token %q of client %s: %w", s.Name, s.ClientID, err)
	}
	return secret, tokenOf(tokendbsql.GetTokenRow(row)), nil
}

// Get returns a token, or ErrNotFound.
func Get(ctx context.Context, db tokendbsql.DBTX, id uuid.UUID) (Token, error) {
	row, err := tokendbsql.New(db).GetToken(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Token{}, fmt.Errorf("token %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Token{}, fmt.Errorf("get token %s: %w", id, err)
	}
	return tokenOf(row), nil
}

// Revoke ends a token; services follow within [Believed]. It reports whether this was what ended it.
func Revoke(ctx context.Context, db tokendbsql.DBTX, id uuid.UUID, by string) (changed bool, err error) {
	n, err := tokendbsql.New(db).RevokeToken(ctx, tokendbsql.RevokeTokenParams{ID: id, RevokedBy: by})
	if err != nil {
		return false, fmt.Errorf("revoke token %s: %w", id, err)
	}
	return n == 1, nil
}

// Filter selects tokens. The zero value selects the first page of those that are valid.
type Filter struct {
	ClientID string    // "" for all clients'
	Ended    bool      // the expired and the revoked, too
	Before   uuid.UUID // the last one of the page before
	Most     int
}

// List returns tokens, the newest first.
func List(ctx context.Context, db tokendbsql.DBTX, f Filter) ([]Token, error) {
	if f.Before == uuid.Nil {
		f.Before = uuid.Max
	}
	rows, err := tokendbsql.New(db).ListTokens(ctx, tokendbsql.ListTokensParams{
		ClientID: f.ClientID, Ended: f.Ended, Before: f.Before, Most: int32(min(f.Most, 10_000)),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	tokens := make([]Token, len(rows))
	for i, row := range rows {
		tokens[i] = tokenOf(tokendbsql.GetTokenRow(row))
	}
	return tokens, nil
}

func tokenOf(row tokendbsql.GetTokenRow) Token {
	t := Token{
		ID: row.ID, ClientID: row.ClientID, Name: row.Name, Roles: rolesOf(row.Roles),
		CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt,
	}
	if row.ExpiresAt != nil {
		t.ExpiresAt = *row.ExpiresAt
	}
	if row.RevokedAt != nil && row.RevokedBy != nil {
		t.RevokedAt, t.RevokedBy = *row.RevokedAt, *row.RevokedBy
	}
	return t
}

func rolesOf(names []string) []rpc.Role {
	roles := make([]rpc.Role, len(names))
	for i, name := range names {
		roles[i] = rpc.Role(name)
	}
	return roles
}
