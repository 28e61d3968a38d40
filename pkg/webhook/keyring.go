package webhook

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// Keyring seals secrets for the database and opens them again, with AES-256-GCM. What is sealed is
//
//	name of the key ‖ ":" ‖ nonce (12 bytes) ‖ ciphertext and tag
//
// and is bound to its endpoint: it cannot be opened as another's. The first key seals; all of them open, so that a key can
// be replaced. The zero Keyring has no keys.
type Keyring struct {
	current string
	keys    map[string]cipher.AEAD
}

const keyBytes = 32

var keyNames = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`)

// UnmarshalText reads name=key[,name=key...], where key is 32 bytes in base64. Its errors name entries by position, since
// what stands there may be a key.
func (k *Keyring) UnmarshalText(text []byte) error {
	ring := Keyring{keys: map[string]cipher.AEAD{}}
	var problems []error
	for i, item := range strings.Split(string(text), ",") {
		name, encoded, found := strings.Cut(strings.TrimSpace(item), "=")
		key, err := base64.StdEncoding.DecodeString(encoded)
		_, twice := ring.keys[name]
		switch {
		case !found:
			err = errors.New("not of the form name=key")
		case !keyNames.MatchString(name):
			err = fmt.Errorf("the name must match %s", keyNames)
		case twice:
			err = errors.New("the name is that of a key before")
		case err != nil || len(key) != keyBytes:
			err = fmt.Errorf("the key must be %d bytes in base64", keyBytes)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("key %d: %w", i+1, err))
			continue
		}
		aead, err := newAEAD(key)
		if err != nil {
			return err
		}
		if ring.current == "" {
			ring.current = name
		}
		ring.keys[name] = aead
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	*k = ring
	return nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make a cipher: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("make a cipher: %w", err)
	}
	return aead, nil
}

// Usable reports whether there is a key.
func (k *Keyring) Usable() bool { return k.current != "" }

// String keeps keys out of whatever prints a configuration.
func (k *Keyring) String() string { return fmt.Sprintf("%d keys", len(k.keys)) }

func (k *Keyring) prefix() []byte { return []byte(k.current + ":") }

func boundTo(endpoint uuid.UUID) []byte {
	return append([]byte("evalonce/webhook-secret/1"), endpoint[:]...)
}

func (k *Keyring) seal(endpoint uuid.UUID, secret []byte) ([]byte, error) {
	if !k.Usable() {
		return nil, ErrNoKeys
	}
	aead := k.keys[k.current]
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("make a nonce: %w", err)
	}
	return aead.Seal(append(k.prefix(), nonce...), nonce, secret, boundTo(endpoint)), nil
}

func (k *Keyring) open(endpoint uuid.UUID, sealed []byte) ([]byte, error) {
	name, rest, found := bytes.Cut(sealed, []byte(":"))
	if !found {
		return nil, errors.New("a sealed secret has no key's name")
	}
	aead, ok := k.keys[string(name)]
	if !ok {
		return nil, fmt.Errorf("a secret of endpoint %s is sealed with key %q: %w", endpoint, name, ErrNoKeys)
	}
	if len(rest) < aead.NonceSize() {
		return nil, fmt.Errorf("a secret of endpoint %s is cut off", endpoint)
	}
	secret, err := aead.Open(nil, rest[:aead.NonceSize()], rest[aead.NonceSize():], boundTo(endpoint))
	if err != nil {
		return nil, fmt.Errorf("open a secret of endpoint %s with key %q: %w", endpoint, name, err)
	}
	return secret, nil
}
