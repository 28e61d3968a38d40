package credentialdb

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jellydator/ttlcache/v3"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/evalonce/evalonce/pkg/credentialdb/internal/credentialdbsql"
	"github.com/evalonce/evalonce/pkg/rpc"
)

const (
	// Believed is how long a service goes by what it has read of a credential: the time that a revocation may take.
	Believed = 2 * time.Second
	// remembered bounds the credentials whose reading is believed, the invalid ones of a guesser included.
	remembered    = 10_000
	lookupTimeout = 5 * time.Second

	// Whoever makes tokens up has the database asked for each. So tokens that have not been good of late wait for one of a
	// few places, and once many of them have turned out to be nobody's, further ones are not looked up for a while. Tokens
	// that are in use are not concerned, nor certificates, which the transport has verified.
	goodFor        = 10 * time.Minute
	strangerPlaces = 4
	guessesAtOnce  = 200
	guessesASecond = 20
)

// errTooManyGuesses says that a token was not looked up: whoever has a good one succeeds soon.
var errTooManyGuesses = errors.New("too many tokens that are nobody's have come of late: no unknown ones are looked up for the moment")

// Authenticator knows the callers by the credentials of the table. It reads one once in [Believed], however many calls
// come with it.
type Authenticator struct {
	q     *credentialdbsql.Queries
	known *ttlcache.Cache[[sha256.Size]byte, verdict]
	once  singleflight.Group

	good    *ttlcache.Cache[[sha256.Size]byte, struct{}] // those that were valid when they were read last
	places  chan struct{}
	guesses *rate.Limiter
}

type verdict struct {
	principal rpc.Principal
	valid     bool
}

// NewAuthenticator makes one on a pool.
func NewAuthenticator(db credentialdbsql.DBTX) *Authenticator {
	return &Authenticator{
		q: credentialdbsql.New(db),
		known: ttlcache.New(
			ttlcache.WithTTL[[sha256.Size]byte, verdict](Believed),
			ttlcache.WithCapacity[[sha256.Size]byte, verdict](remembered),
			ttlcache.WithDisableTouchOnHit[[sha256.Size]byte, verdict]()),
		good: ttlcache.New(
			ttlcache.WithTTL[[sha256.Size]byte, struct{}](goodFor), ttlcache.WithCapacity[[sha256.Size]byte, struct{}](remembered)),
		places:  make(chan struct{}, strangerPlaces),
		guesses: rate.NewLimiter(guessesASecond, guessesAtOnce),
	}
}

// Authenticate implements [rpc.Authenticator].
func (a *Authenticator) Authenticate(ctx context.Context, token string) (rpc.Principal, error) {
	if !strings.HasPrefix(token, prefix) {
		return rpc.Principal{}, rpc.ErrInvalidCredentials
	}
	return a.principal(ctx, sha256.Sum256([]byte(token)), a.readToken)
}

// AuthenticateCertificate implements [rpc.CertificateAuthenticator]: the client is that of the first of the
// certificate's names that is known.
func (a *Authenticator) AuthenticateCertificate(ctx context.Context, certificate *x509.Certificate) (rpc.Principal, error) {
	for _, san := range sansOf(certificate) {
		p, err := a.principal(ctx, digestOf(san), a.read)
		if !errors.Is(err, rpc.ErrInvalidCredentials) {
			return p, err
		}
	}
	return rpc.Principal{}, rpc.ErrInvalidCredentials
}

// maxNames bounds the look-ups that one certificate causes.
const maxNames = 16

// sansOf are the names of a certificate, as [Credential] writes them.
func sansOf(c *x509.Certificate) []string {
	var sans []string
	for _, uri := range c.URIs {
		sans = append(sans, "URI:"+uri.String())
	}
	for _, name := range c.DNSNames {
		sans = append(sans, "DNS:"+name)
	}
	for _, address := range c.EmailAddresses {
		sans = append(sans, "email:"+address)
	}
	return sans[:min(len(sans), maxNames)]
}

type reading func(ctx context.Context, digest [sha256.Size]byte) (verdict, error)

func (a *Authenticator) principal(ctx context.Context, digest [sha256.Size]byte, read reading) (rpc.Principal, error) {
	v, err := a.judge(ctx, digest, read)
	if err != nil {
		return rpc.Principal{}, err
	}
	if !v.valid {
		return rpc.Principal{}, rpc.ErrInvalidCredentials
	}
	return v.principal, nil
}

func (a *Authenticator) judge(ctx context.Context, digest [sha256.Size]byte, read reading) (verdict, error) {
	if item := a.known.Get(digest); item != nil {
		return item.Value(), nil
	}
	// The reading is shared, so it does not end with the call that began it.
	found := a.once.DoChan(string(digest[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
		defer cancel()
		v, err := read(ctx, digest)
		if err == nil {
			a.known.Set(digest, v, ttlcache.DefaultTTL)
		}
		return v, err
	})
	select {
	case <-ctx.Done():
		return verdict{}, context.Cause(ctx)
	case r := <-found:
		if r.Err != nil {
			return verdict{}, r.Err
		}
		return r.Val.(verdict), nil
	}
}

// readToken reads what a caller may have made up.
func (a *Authenticator) readToken(ctx context.Context, digest [sha256.Size]byte) (verdict, error) {
	stranger := a.good.Get(digest) == nil
	if stranger {
		select {
		case a.places <- struct{}{}:
			defer func() { <-a.places }()
		case <-ctx.Done():
			return verdict{}, fmt.Errorf("wait to look up a credential: %w", context.Cause(ctx))
		}
		if a.guesses.Tokens() < 1 {
			return verdict{}, errTooManyGuesses
		}
	}
	v, err := a.read(ctx, digest)
	switch {
	case err != nil:
	case v.valid:
		a.good.Set(digest, struct{}{}, ttlcache.DefaultTTL)
	default:
		a.good.Delete(digest)
		a.guesses.Reserve() // into debt, where several were looked up at once
	}
	return v, err
}

func (a *Authenticator) read(ctx context.Context, digest [sha256.Size]byte) (verdict, error) {
	row, err := a.q.ValidCredential(ctx, digest[:])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return verdict{}, nil
	case err != nil:
		return verdict{}, fmt.Errorf("look up a credential: %w", err)
	case subtle.ConstantTimeCompare(row.Digest, digest[:]) != 1:
		return verdict{}, nil
	}
	return verdict{principal: rpc.Principal{ClientID: row.ClientID, Roles: rolesOf(row.Roles)}, valid: true}, nil
}
