package jwtauth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/jwtauth"
	"github.com/evalonce/evalonce/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is an identity provider with a key set that changes.
type provider struct {
	server *httptest.Server
	reads  atomic.Int64
	mu     sync.Mutex
	keys   map[string]*ecdsa.PrivateKey
	down   atomic.Bool
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{keys: map[string]*ecdsa.PrivateKey{}}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.reads.Add(1)
	if p.down.Load() {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	storage := jwkset.NewMemoryStorage()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, key := range p.keys {
		jwk, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: id, USE: jwkset.UseSig, ALG: jwkset.AlgES256}})
		if err == nil {
			err = storage.KeyWrite(r.Context(), jwk)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	set, err := storage.JSONPublic(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(set)
}

func (p *provider) newKey(t *testing.T, id string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[id] = key
	return key
}

func (p *provider) config() jwtauth.Config {
	return jwtauth.Config{
		JWKSURL: p.server.URL, Issuer: "https://id.example", Audience: "evalonce", Algorithms: []string{"ES256"},
		ClientClaim: "sub", RolesClaim: "scope",
	}
}

func (p *provider) authenticator(t *testing.T) *jwtauth.Authenticator {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	a, err := jwtauth.New(ctx, p.config())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// claims are good ones, changed: a nil value removes one.
func claims(changes jwt.MapClaims) jwt.MapClaims {
	c := jwt.MapClaims{
		"iss": "https://id.example", "aud": []string{"other", "evalonce"}, "sub": "acme", "scope": "openid tickets:read tickets:write",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func sign(t *testing.T, method jwt.SigningMethod, kid string, key any, c jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	if kid != "" {
		token.Header["kid"] = kid
	}
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestWhoseTokensCount(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := p.newKey(t, "k1")
	a := p.authenticator(t)
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	es := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodES256, "k1", key, c) }
	now := time.Now()
	for name, token := range map[string]string{
		"":                        es(claims(nil)),
		"one audience":            es(claims(jwt.MapClaims{"aud": "evalonce"})),
		"no key id":               sign(t, jwt.SigningMethodES256, "", key, claims(nil)),
		"roles in a list":         es(claims(jwt.MapClaims{"scope": []string{"tickets:write", "tickets:read", "x"}})),
		"clocks a little apart":   es(claims(jwt.MapClaims{"iat": now.Add(10 * time.Second).Unix()})),
		"just expired":            es(claims(jwt.MapClaims{"exp": now.Add(-10 * time.Second).Unix()})),
		"numbers with a fraction": es(claims(jwt.MapClaims{"iat": float64(now.Unix()) + 0.5})),
	} {
		got, err := a.Authenticate(t.Context(), token)
		if err != nil || got.ClientID != "acme" || !slices.Equal(got.Roles, []rpc.Role{rpc.TicketsWrite, rpc.TicketsRead}) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	parts := strings.Split(es(claims(nil)), ".")
	for name, token := range map[string]string{
		"no token":             "",
		"an API token":         "evo_ABCDEFGHIJKLMNOP",
		"two parts":            parts[0] + "." + parts[1],
		"no signature":         parts[0] + "." + parts[1] + ".",
		"another's claims":     parts[0] + "." + strings.Split(es(claims(jwt.MapClaims{"sub": "other"})), ".")[1] + "." + parts[2],
		"padded":               es(claims(nil)) + "=",
		"too long":             es(claims(jwt.MapClaims{"x": strings.Repeat("x", 20<<10)})),
		"a stranger's key":     sign(t, jwt.SigningMethodES256, "k1", stranger, claims(nil)),
		"none":                 sign(t, jwt.SigningMethodNone, "k1", jwt.UnsafeAllowNoneSignatureType, claims(nil)),
		"the key as a secret":  sign(t, jwt.SigningMethodHS256, "k1", public, claims(nil)),
		"another issuer":       es(claims(jwt.MapClaims{"iss": "https://id.example.evil"})),
		"no issuer":            es(claims(jwt.MapClaims{"iss": nil})),
		"another audience":     es(claims(jwt.MapClaims{"aud": "another"})),
		"no audience":          es(claims(jwt.MapClaims{"aud": nil})),
		"expired":              es(claims(jwt.MapClaims{"exp": now.Add(-2 * jwtauth.Leeway).Unix()})),
		"no expiry":            es(claims(jwt.MapClaims{"exp": nil})),
		"expiry as text":       es(claims(jwt.MapClaims{"exp": "tomorrow"})),
		"no time of issue":     es(claims(jwt.MapClaims{"iat": nil})),
		"issued in the future": es(claims(jwt.MapClaims{"iat": now.Add(2 * jwtauth.Leeway).Unix()})),
		"not valid yet":        es(claims(jwt.MapClaims{"nbf": now.Add(time.Hour).Unix()})),
		"no client":            es(claims(jwt.MapClaims{"sub": nil})),
		"a client of no form":  es(claims(jwt.MapClaims{"sub": "a b"})),
		"a client as number":   es(claims(jwt.MapClaims{"sub": 7})),
	} {
		if got, err := a.Authenticate(t.Context(), token); !errors.Is(err, rpc.ErrInvalidCredentials) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestAnUnknownKeyHasTheKeysReadAgainOnceInAWhile(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.newKey(t, "k1")
	a := p.authenticator(t)
	key := p.newKey(t, "k2")
	if got, err := a.Authenticate(t.Context(), sign(t, jwt.SigningMethodES256, "k2", key, claims(nil))); err != nil || got.ClientID != "acme" {
		t.Errorf("a key that was added is not known: %+v, %v", got, err)
	}
	reads := p.reads.Load()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // whoever would have to wait for the next reading does not
	for range 50 {
		if _, err := a.Authenticate(ctx, sign(t, jwt.SigningMethodES256, "k3", key, claims(nil))); !errors.Is(err, rpc.ErrInvalidCredentials) {
			t.Fatalf("got %v", err)
		}
	}
	if more := p.reads.Load() - reads; more > 1 {
		t.Errorf("50 tokens with an unknown key had the keys read %d times", more)
	}
}

func TestAProviderThatIsDownIsNoRefusal(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := p.newKey(t, "k1")
	p.down.Store(true)
	a := p.authenticator(t)
	token := sign(t, jwt.SigningMethodES256, "k1", key, claims(nil))
	if _, err := a.Authenticate(t.Context(), token); err == nil || errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("got %v", err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := jwtauth.Config{
		JWKSURL: "https://id.example/keys", Issuer: "i", Audience: "a", Algorithms: []string{"RS256"}, ClientClaim: "sub", RolesClaim: "scope",
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if err := (jwtauth.Config{Algorithms: []string{"RS256"}}).Validate(); err != nil {
		t.Errorf("no provider: %v", err)
	}
	for want, change := range map[string]func(*jwtauth.Config){
		"EVALONCE_JWT_JWKS_URL":      func(c *jwtauth.Config) { c.JWKSURL = "http://id.example/keys" },
		"EVALONCE_JWT_JWKS_URL must": func(c *jwtauth.Config) { c.JWKSURL = "" },
		"EVALONCE_JWT_ISSUER":        func(c *jwtauth.Config) { c.Issuer = "" },
		"EVALONCE_JWT_AUDIENCE":      func(c *jwtauth.Config) { c.Audience = "" },
		`"HS256"`:                    func(c *jwtauth.Config) { c.Algorithms = []string{"RS256", "HS256"} },
		`"none"`:                     func(c *jwtauth.Config) { c.Algorithms = []string{"none"} },
		"EVALONCE_JWT_CLIENT_CLAIM":  func(c *jwtauth.Config) { c.ClientClaim = "" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// FuzzAuthenticate looks for a token that is not signed and counts, or panics.
func FuzzAuthenticate(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	empty, err := json.Marshal(map[string]any{"keys": []any{}})
	if err != nil {
		f.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(empty) }))
	f.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(context.Background())
	f.Cleanup(cancel)
	a, err := jwtauth.New(ctx, jwtauth.Config{
		JWKSURL: server.URL, Issuer: "i", Audience: "a", Algorithms: []string{"ES256"}, ClientClaim: "sub", RolesClaim: "scope",
	})
	if err != nil {
		f.Fatal(err)
	}
	good, err := jwt.NewWithClaims(jwt.SigningMethodES256, claims(nil)).SignedString(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add("e30.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		if p, err := a.Authenticate(t.Context(), token); err == nil {
			t.Errorf("%q is a credential of %+v", token, p)
		}
	})
}
