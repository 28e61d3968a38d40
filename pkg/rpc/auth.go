package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Principal is an authenticated caller.
type Principal struct {
	// ClientID owns what the caller creates and is the scope of its idempotency keys. It is the same whichever of its
	// credentials the caller shows.
	ClientID string
	Roles    []Role
}

// clients are the names that a Principal may have: they are part of scopes that end with a space.
var clients = regexp.MustCompile(`^[!-~]{1,128}$`)

// ValidClient reports whether a client may be called so: by 1 to 128 visible ASCII characters. Operators give names of a
// narrower form, [GivenClients].
func ValidClient(id string) bool { return clients.MatchString(id) }

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

// FirstOf is an Authenticator that asks each in turn until one knows the caller, or cannot tell.
func FirstOf(authenticators ...Authenticator) Authenticator { return firstOf(authenticators) }

type firstOf []Authenticator

func (f firstOf) Authenticate(ctx context.Context, token string) (Principal, error) {
	for _, a := range f {
		if p, err := a.Authenticate(ctx, token); !errors.Is(err, ErrInvalidCredentials) {
			return p, err
		}
	}
	return Principal{}, ErrInvalidCredentials
}

// CertificateAuthenticator names the caller that a client certificate belongs to, which the transport has verified. It
// answers as an [Authenticator] does.
type CertificateAuthenticator interface {
	AuthenticateCertificate(ctx context.Context, certificate *x509.Certificate) (Principal, error)
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

// gatekeeper knows callers by whatever they show.
type gatekeeper struct {
	tokens       Authenticator
	certificates CertificateAuthenticator // nil when certificates are no credentials
	everybody    *Principal               // whom every caller counts as, whatever it shows; nil when callers are asked who they are
}

// authenticate judges the values of the authorization header, and without any the client certificate. A repeated value
// counts once; values that differ are refused, because the caller would be whom the order of the headers happens to name.
func (k gatekeeper) authenticate(ctx context.Context, authorization []string, certificate *x509.Certificate) (Principal, error) {
	values := slices.Compact(slices.Sorted(slices.Values(authorization)))
	if k.everybody != nil {
		return *k.everybody, nil
	}
	invalid := &Error{
		Code: codes.Unauthenticated, Reason: ReasonCredentialsInvalid, Message: "the API token is not valid",
	}
	var p Principal
	var err error
	switch {
	case len(values) > 1:
		return Principal{}, invalid
	case len(values) == 1:
		scheme, token, _ := strings.Cut(values[0], " ")
		token = strings.Trim(token, " ")
		if !strings.EqualFold(scheme, "bearer") || token == "" {
			return Principal{}, invalid
		}
		p, err = k.tokens.Authenticate(ctx, token)
	case k.certificates != nil && certificate != nil:
		invalid.Message = "the client certificate is nobody's here"
		p, err = k.certificates.AuthenticateCertificate(ctx, certificate)
	default:
		return Principal{}, &Error{
			Code: codes.Unauthenticated, Reason: ReasonCredentialsMissing,
			Message: "an API token is needed, as authorization: Bearer <token>",
		}
	}
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

// certificateKey is what the gateway hands the caller's certificate on in: the bytes, over the connection in memory,
// which nobody outside of the process has. Anywhere else it means nothing.
const certificateKey = "evalonce-certificate-bin"

// certificateOf is the certificate of the caller that the transport has verified, nil when there is none.
func certificateOf(ctx context.Context) *x509.Certificate {
	if viaGateway(ctx) {
		values := metadata.ValueFromIncomingContext(ctx, certificateKey)
		if len(values) != 1 {
			return nil
		}
		certificate, err := x509.ParseCertificate([]byte(values[0]))
		if err != nil {
			return nil
		}
		return certificate
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return nil
	}
	return verified(&info.State)
}

// verified is the certificate of a verified chain.
func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.VerifiedChains[0][0]
}
