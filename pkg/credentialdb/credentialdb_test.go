package credentialdb_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/pkg/credentialdb"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var acme = credentialdb.Spec{ClientID: "acme", Name: "shop", Roles: []rpc.Role{rpc.TicketsWrite, rpc.TicketsRead}}

func create(t *testing.T, db *pgxpool.Pool, s credentialdb.Spec) (string, credentialdb.Credential) {
	t.Helper()
	secret, token, err := credentialdb.CreateToken(t.Context(), db, s, "ana")
	if err != nil {
		t.Fatal(err)
	}
	return secret, token
}

func TestATokenIsItsClient(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	secret, token := create(t, db, acme)
	p, err := credentialdb.NewAuthenticator(db).Authenticate(t.Context(), secret)
	if err != nil || p.ClientID != "acme" || !slices.Equal(p.Roles, acme.Roles) {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, wrong := range []string{"", "evo_", secret + "x", strings.ToLower(secret), secret[4:]} {
		if _, err := credentialdb.NewAuthenticator(db).Authenticate(t.Context(), wrong); !errors.Is(err, rpc.ErrInvalidCredentials) {
			t.Errorf("%d characters of something else: %v", len(wrong), err)
		}
	}
	got, err := credentialdb.Get(t.Context(), db, token.ID)
	if err != nil || got.Name != "shop" || got.CreatedBy != "ana" || !got.ExpiresAt.IsZero() || !got.RevokedAt.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	var leaked bool
	if err := db.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM api_credential c WHERE strpos(c::text, $1) > 0)", secret[4:]).Scan(&leaked); err != nil || leaked {
		t.Errorf("the table knows the secret: %v, %v", leaked, err)
	}
}

func TestANameIsTakenUntilItsTokenIsRevoked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, token := create(t, db, acme)
	if _, _, err := credentialdb.CreateToken(t.Context(), db, acme, "ana"); !errors.Is(err, credentialdb.ErrTaken) {
		t.Errorf("got %v", err)
	}
	other := acme
	other.ClientID = "other"
	create(t, db, other)
	for _, want := range []bool{true, false} {
		if changed, err := credentialdb.Revoke(t.Context(), db, token.ID, "bob"); changed != want || err != nil {
			t.Errorf("got %v, %v; want %v", changed, err, want)
		}
	}
	create(t, db, acme)
	if got, err := credentialdb.Get(t.Context(), db, token.ID); err != nil || got.RevokedBy != "bob" || got.RevokedAt.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := credentialdb.Get(t.Context(), db, uuid.New()); !errors.Is(err, credentialdb.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestARevokedTokenIsRefusedWithinTheTimeThatIsSaid(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	secret, token := create(t, db, acme)
	a := credentialdb.NewAuthenticator(db)
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := credentialdb.Revoke(t.Context(), db, token.ID, "ana"); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		asked := time.Now()
		_, err := a.Authenticate(t.Context(), secret)
		if errors.Is(err, rpc.ErrInvalidCredentials) {
			return
		}
		if err != nil || asked.Sub(revoked) > credentialdb.Believed {
			t.Fatalf("still a caller %s after the revocation, %v", asked.Sub(revoked), err)
		}
		<-ticker.C
	}
}

func TestAnExpiredTokenIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := acme
	s.Life = time.Hour
	secret, token := create(t, db, s)
	if life := token.ExpiresAt.Sub(token.CreatedAt); life != time.Hour {
		t.Errorf("it lives for %s", life)
	}
	if _, err := credentialdb.NewAuthenticator(db).Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), "UPDATE api_credential SET created_at = created_at - interval '2 hours', expires_at = expires_at - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
	if _, err := credentialdb.NewAuthenticator(db).Authenticate(t.Context(), secret); !errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("got %v", err)
	}
	for ended, want := range map[bool]int{false: 0, true: 1} {
		if list, err := credentialdb.List(t.Context(), db, credentialdb.Filter{Ended: ended, Most: 10}); err != nil || len(list) != want {
			t.Errorf("ended %v: got %d, %v", ended, len(list), err)
		}
	}
}

func TestListGoesPageByPage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, name := range []string{"a", "b", "c"} {
		s := acme
		s.Name = name
		create(t, db, s)
	}
	other := acme
	other.ClientID = "other"
	create(t, db, other)
	var names []string
	f := credentialdb.Filter{ClientID: "acme", Most: 2}
	for {
		page, err := credentialdb.List(t.Context(), db, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range page {
			names = append(names, token.Name)
			f.Before = token.ID
		}
		if len(page) < f.Most {
			break
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("got %v", names)
	}
}

// counted is a database that counts its queries, and may be out of order.
type counted struct {
	*pgxpool.Pool
	queries atomic.Int64
	broken  atomic.Bool
}

func (c *counted) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	c.queries.Add(1)
	if c.broken.Load() {
		return c.Pool.QueryRow(ctx, "SELECT no such thing")
	}
	return c.Pool.QueryRow(ctx, sql, args...)
}

func TestManyCallsReadATokenOnce(t *testing.T) {
	t.Parallel()
	db := &counted{Pool: pgtest.New(t)}
	secret, _ := create(t, db.Pool, acme)
	a := credentialdb.NewAuthenticator(db)
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	first := time.Now()
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			if _, err := a.Authenticate(t.Context(), secret); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if most := 1 + int64(time.Since(first)/credentialdb.Believed) + 1; db.queries.Load() > most {
		t.Errorf("%d queries, more than %d", db.queries.Load(), most)
	}
}

func TestADatabaseThatDoesNotAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	db := &counted{Pool: pgtest.New(t)}
	secret, _ := create(t, db.Pool, acme)
	a := credentialdb.NewAuthenticator(db)
	db.broken.Store(true)
	if _, err := a.Authenticate(t.Context(), secret); err == nil || errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("got %v", err)
	}
	db.broken.Store(false)
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("the failure was remembered: %v", err)
	}
}

func TestACertificateIsItsClient(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	named := func(uris, names []string) *x509.Certificate {
		c := &x509.Certificate{DNSNames: names}
		for _, u := range uris {
			parsed, err := url.Parse(u)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, parsed)
		}
		return c
	}
	c, err := credentialdb.AdmitCertificate(t.Context(), db, acme, "URI:spiffe://mesh.example/shop", "ana")
	if err != nil || c.SAN != "URI:spiffe://mesh.example/shop" {
		t.Fatalf("got %+v, %v", c, err)
	}
	other := acme
	other.ClientID = "other"
	if _, err := credentialdb.AdmitCertificate(t.Context(), db, other, "URI:spiffe://mesh.example/shop", "ana"); !errors.Is(err, credentialdb.ErrTaken) {
		t.Errorf("one certificate for two clients: %v", err)
	}
	if _, err := credentialdb.AdmitCertificate(t.Context(), db, other, "CN=shop", "ana"); err == nil {
		t.Error("a name of no form is admitted")
	}
	a := credentialdb.NewAuthenticator(db)
	for _, known := range []*x509.Certificate{
		named([]string{"spiffe://mesh.example/shop"}, nil),
		named([]string{"spiffe://mesh.example/else", "spiffe://mesh.example/shop"}, []string{"x.example"}),
	} {
		if p, err := a.AuthenticateCertificate(t.Context(), known); err != nil || p.ClientID != "acme" || !slices.Equal(p.Roles, acme.Roles) {
			t.Errorf("got %+v, %v", p, err)
		}
	}
	for _, unknown := range []*x509.Certificate{
		named(nil, nil), named([]string{"spiffe://mesh.example/shop2"}, nil), named(nil, []string{"spiffe://mesh.example/shop"}),
	} {
		if p, err := a.AuthenticateCertificate(t.Context(), unknown); !errors.Is(err, rpc.ErrInvalidCredentials) {
			t.Errorf("got %+v, %v", p, err)
		}
	}
	if _, err := a.Authenticate(t.Context(), "certificate URI:spiffe://mesh.example/shop"); !errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("the name is taken for a token: %v", err)
	}
}

// Whoever makes tokens up costs the database little, whatever it tries, and whoever has one does not notice.
func TestMadeUpTokensAreNotAllLookedUp(t *testing.T) {
	t.Parallel()
	db := &counted{Pool: pgtest.New(t)}
	secret, _ := create(t, db.Pool, acme)
	a := credentialdb.NewAuthenticator(db)
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	const guesses, atOnce, aSecond, places, own = 4000, 200, 20, 4, 1
	began := time.Now()
	var passedOver atomic.Int64
	var guessers sync.WaitGroup
	for g := range 8 {
		guessers.Go(func() {
			for n := range guesses / 8 {
				_, err := a.Authenticate(t.Context(), fmt.Sprintf("evo_%d-%d", g, n))
				if err == nil {
					t.Error("a guess is right")
				}
				if !errors.Is(err, rpc.ErrInvalidCredentials) {
					passedOver.Add(1)
				}
			}
		})
	}
	guessers.Wait()
	most := atOnce + places + int64(aSecond*time.Since(began).Seconds()) + own + int64(time.Since(began)/credentialdb.Believed) + 1
	if queries := db.queries.Load(); queries > most || queries < atOnce {
		t.Errorf("%d queries for %d guesses, want from %d to %d", queries, guesses, atOnce, most)
	}
	if passedOver.Load() == 0 {
		t.Error("every guess was judged")
	}
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("a token in use: %v", err)
	}
}
