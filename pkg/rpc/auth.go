package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// Principal is an authenticated caller.
type Principal struct {
	// ClientID owns what the caller creates and is the scope of its idempotency keys. It is the same whichever of its
	// credentials the caller shows.
	ClientID string
	Roles    []Role
}

// Has reports whether the caller has a role.
func (p Principal) Has(r Role) bool { return slices.Contains(p.Roles, r) }

// Authenticator names the caller that a bearer token belongs to. It answers ErrInvalidCredentials for a token
// that it does not accept; any other error means that it cannot tell now.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (Principal, error)
}

// Grant is an Authenticator that gives roles to every caller whom a knows.
func Grant(a Authenticator, roles ...Role) Authenticator { return granting{a, roles} }

type granting struct {
	Authenticator
	roles []Role
}

func (g granting) Authenticate(ctx context.Context, token string) (Principal, error) {
	p, err := g.Authenticator.Authenticate(ctx, token)
	if err != nil {
		return Principal{}, err
	}
	p.Roles = slices.Concat(p.Roles, g.roles)
	return p, nil
}

// ErrInvalidCredentials is an Authenticator's refusal.
var ErrInvalidCredentials = errors.New("the credentials are not valid")

// Policy says who may call a method: by its full name, "/package.Service/Method", or by "/package.Service/*". A
// method that no entry names is denied.
type Policy map[string]Access

func (p Policy) access(method string) Access {
	if a, ok := p[method]; ok {
		return a
	}
	return p[method[:strings.LastIndexByte(method, '/')+1]+"*"]
}

type principalKey struct{}

// WithPrincipal returns a context of a call by p.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the caller. It is absent only in methods whose access is Open.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// authenticate judges the values of the authorization header. A repeated value counts once; values that differ
// are refused, because the caller would be whom the order of the headers happens to name.
func authenticate(ctx context.Context, a Authenticator, authorization []string) (Principal, error) {
	values := slices.Compact(slices.Sorted(slices.Values(authorization)))
	if len(values) == 0 {
		return Principal{}, &Error{
			Code: codes.Unauthenticated, Reason: ReasonCredentialsMissing,
			Message: "an API token is needed, as authorization: Bearer <token>",
		}
	}
	invalid := &Error{
		Code: codes.Unauthenticated, Reason: ReasonCredentialsInvalid, Message: "the API token is not valid",
	}
	if len(values) > 1 {
		return Principal{}, invalid
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return Principal{}, invalid
	}
	p, err := a.Authenticate(ctx, token)
	switch {
	case errors.Is(err, ErrInvalidCredentials):
		return Principal{}, invalid
	case err != nil:
		return Principal{}, &Error{
			Code: codes.Unavailable, Reason: "AUTHENTICATION_UNAVAILABLE", Cause: err,
			Message: "the credentials cannot be checked now", RetryAfter: databaseRetry,
		}
	}
	return p, nil
}

func authorizationOf(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, "authorization")
}
