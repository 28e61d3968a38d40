// Package jwtauth knows callers by JSON Web Tokens that an identity provider has signed.
//
// A token counts when its algorithm is one of the configured, asymmetric ones, its signature is of a key in the
// provider's key set, its issuer and audience are the configured ones, and it has an expiry and a time of issue that are
// valid now, give or take [Leeway]. The client and its roles are claims of the token. Keys are read from the provider
// every quarter of an hour, and when a token names a key that is not known, at most once in ten seconds.
package jwtauth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/evalonce/evalonce/pkg/rpc"
)

// Config says whose tokens count. The zero value is no provider.
type Config struct {
	JWKSURL     string   `env:"EVALONCE_JWT_JWKS_URL" help:"where the identity provider publishes its keys; empty accepts no JSON Web Tokens"`
	Issuer      string   `env:"EVALONCE_JWT_ISSUER" help:"the iss claim that tokens must have"`
	Audience    string   `env:"EVALONCE_JWT_AUDIENCE" help:"one of the aud claims that tokens must have"`
	Algorithms  []string `env:"EVALONCE_JWT_ALGORITHMS" envDefault:"RS256,ES256,EdDSA" help:"signature algorithms that count, of RS, PS, ES and EdDSA"`
	ClientClaim string   `env:"EVALONCE_JWT_CLIENT_CLAIM" envDefault:"sub" help:"the claim that names the client"`
	RolesClaim  string   `env:"EVALONCE_JWT_ROLES_CLAIM" envDefault:"scope" help:"the claim with the roles: a list, or words between spaces; words that are no roles are passed over"`
}

// Enabled reports whether a provider is configured.
func (c Config) Enabled() bool { return c.JWKSURL != "" }

// algorithms are those with which a key set that everybody may read proves anything.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// Validate reports all that is wrong at once.
func (c Config) Validate() error {
	if !c.Enabled() {
		if c.Issuer != "" || c.Audience != "" {
			return errors.New("EVALONCE_JWT_JWKS_URL must be set where EVALONCE_JWT_ISSUER or EVALONCE_JWT_AUDIENCE is")
		}
		return nil
	}
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if u, err := url.Parse(c.JWKSURL); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		refuse("EVALONCE_JWT_JWKS_URL must be an https URL, or http on loopback")
	}
	if c.Issuer == "" {
		refuse("EVALONCE_JWT_ISSUER must be set where EVALONCE_JWT_JWKS_URL is")
	}
	if c.Audience == "" {
		refuse("EVALONCE_JWT_AUDIENCE must be set where EVALONCE_JWT_JWKS_URL is: a token for another service must not open this one")
	}
	if len(c.Algorithms) == 0 {
		refuse("EVALONCE_JWT_ALGORITHMS must name at least one algorithm")
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(algorithms, a) {
			refuse("EVALONCE_JWT_ALGORITHMS: %q is none of %s", a, strings.Join(algorithms, ", "))
		}
	}
	if c.ClientClaim == "" {
		refuse("EVALONCE_JWT_CLIENT_CLAIM must be set")
	}
	if c.RolesClaim == "" {
		refuse("EVALONCE_JWT_ROLES_CLAIM must be set")
	}
	return errors.Join(problems...)
}

func loopback(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

const (
	// Leeway is what clocks may differ by.
	Leeway = 30 * time.Second

	refreshInterval = 15 * time.Minute
	refreshTimeout  = 5 * time.Second
	// unknownInterval is how often a token that names an unknown key has the keys read again, whoever sent it.
	unknownInterval = 10 * time.Second
	maxTokenBytes   = 16 << 10
)

// Authenticator knows the callers by their tokens.
type Authenticator struct {
	config Config
	keys   keyfunc.Keyfunc
	parser *jwt.Parser
}

// New makes one, which keeps the provider's keys until ctx ends. A provider that does not answer now is asked again
// later: a service must be able to start without it.
func New(ctx context.Context, c Config) (*Authenticator, error) {
	client := &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			IdleConnTimeout: refreshTimeout, MaxResponseHeaderBytes: 64 << 10,
		},
		// Whoever could redirect the request could name the keys.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	keys, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{c.JWKSURL}, keyfunc.Override{
		Client: client, HTTPTimeout: refreshTimeout, RefreshInterval: refreshInterval,
		RefreshUnknownKID: rate.NewLimiter(rate.Every(unknownInterval), 1), RateLimitWaitMax: refreshTimeout,
		RefreshErrorHandlerFunc: func(string) func(context.Context, error) {
			return func(ctx context.Context, err error) {
				slog.WarnContext(ctx, "cannot read the identity provider's keys", slog.Any("error", err))
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a reader of the identity provider's keys: %w", err)
	}
	return &Authenticator{
		config: c, keys: keys,
		parser: jwt.NewParser(
			jwt.WithValidMethods(c.Algorithms), jwt.WithIssuer(c.Issuer), jwt.WithAudience(c.Audience),
			jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(Leeway), jwt.WithStrictDecoding()),
	}, nil
}

// Authenticate implements [rpc.Authenticator].
func (a *Authenticator) Authenticate(ctx context.Context, token string) (rpc.Principal, error) {
	if strings.Count(token, ".") != 2 || len(token) > maxTokenBytes {
		return rpc.Principal{}, rpc.ErrInvalidCredentials
	}
	claims := jwt.MapClaims{}
	if _, err := a.parser.ParseWithClaims(token, claims, a.keys.KeyfuncCtx(ctx)); err != nil {
		if errors.Is(err, jwt.ErrTokenUnverifiable) && !a.hasKeys(ctx) {
			return rpc.Principal{}, errors.New("the identity provider's keys have not been read yet")
		}
		return rpc.Principal{}, rpc.ErrInvalidCredentials
	}
	if issued, err := claims.GetIssuedAt(); err != nil || issued == nil {
		return rpc.Principal{}, rpc.ErrInvalidCredentials
	}
	client, ok := claims[a.config.ClientClaim].(string)
	if !ok || !rpc.ValidClient(client) {
		return rpc.Principal{}, rpc.ErrInvalidCredentials
	}
	return rpc.Principal{ClientID: client, Roles: rolesOf(claims[a.config.RolesClaim])}, nil
}

func (a *Authenticator) hasKeys(ctx context.Context) bool {
	keys, err := a.keys.Storage().KeyReadAll(ctx)
	return err == nil && len(keys) > 0
}

// rolesOf takes the roles among the words of a claim.
func rolesOf(claim any) []rpc.Role {
	var words []string
	switch v := claim.(type) {
	case string:
		words = strings.Fields(v)
	case []any:
		for _, item := range v {
			if word, ok := item.(string); ok {
				words = append(words, word)
			}
		}
	}
	var roles []rpc.Role
	for _, r := range rpc.AllRoles() {
		if slices.Contains(words, string(r)) {
			roles = append(roles, r)
		}
	}
	return roles
}
