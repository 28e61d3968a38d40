package rpc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Tokens authenticates by API tokens, of which it knows only the SHA-256. That is enough because a token is
// random, not chosen: there is nothing to guess that a slow hash would have to protect.
type Tokens struct {
	entries []tokenEntry
}

type tokenEntry struct {
	clientID string
	hash     [sha256.Size]byte
}

// GivenClients are the names that operators give to clients.
var GivenClients = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$`)

// ParseTokens reads client=hash[,client=hash...], where hash is the SHA-256 of a token in hex. A client may have
// several tokens, so that one can be replaced without an interruption; a token has one client.
func ParseTokens(s string) (*Tokens, error) {
	t := &Tokens{}
	if err := t.UnmarshalText([]byte(s)); err != nil {
		return nil, err
	}
	return t, nil
}

// UnmarshalText is ParseTokens for readers of configuration. Its errors name entries by position: what stands
// where a hash should be may be a token.
func (t *Tokens) UnmarshalText(text []byte) error {
	var entries []tokenEntry
	var problems []error
	seen := map[[sha256.Size]byte]int{}
	for i, item := range strings.Split(string(text), ",") {
		clientID, digits, found := strings.Cut(strings.TrimSpace(item), "=")
		hash, err := hex.DecodeString(digits)
		switch {
		case !found:
			problems = append(problems, fmt.Errorf("token %d: not of the form client=hash", i+1))
			continue
		case !GivenClients.MatchString(clientID):
			problems = append(problems, fmt.Errorf("token %d: the client's name must match %s", i+1, GivenClients))
			continue
		case err != nil || len(hash) != sha256.Size:
			problems = append(problems, fmt.Errorf("token %d: the hash must be %d hex digits", i+1, 2*sha256.Size))
			continue
		}
		entry := tokenEntry{clientID: clientID, hash: [sha256.Size]byte(hash)}
		if first, twice := seen[entry.hash]; twice {
			problems = append(problems, fmt.Errorf("token %d: the same hash as token %d", i+1, first))
			continue
		}
		seen[entry.hash] = i + 1
		entries = append(entries, entry)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	t.entries = entries
	return nil
}

// Authenticate compares the token's hash with all that are known, in a time that tells nothing about them.
func (t *Tokens) Authenticate(_ context.Context, token string) (Principal, error) {
	hash := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.entries {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], t.entries[i].hash[:]), i, found)
	}
	if found < 0 {
		return Principal{}, ErrInvalidCredentials
	}
	return Principal{ClientID: t.entries[found].clientID}, nil
}

// String says how many tokens there are: a printed configuration shows no hash.
func (t *Tokens) String() string { return fmt.Sprintf("%d tokens", len(t.entries)) }

// MintToken makes a token and the hash that goes into EVALONCE_API_TOKENS. The token is in no other place than
// the caller's hands.
func MintToken() (token, hash string) {
	token = "evalonce_" + rand.Text()
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}
