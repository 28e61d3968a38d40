package tokendb_test

import (
	"context"
	"errors"
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

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/tokendb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var acme = tokendb.Spec{ClientID: "acme", Name: "shop", Roles: []rpc.Role{rpc.TicketsWrite, rpc.TicketsRead}}

func create(t *testing.T, db *pgxpool.Pool, s tokendb.Spec) (string, tokendb.Token) {
	t.Helper()
	secret, token, err := tokendb.Create(t.Context(), db, s, "ana")
	if err != nil {
		t.Fatal(err)
	}
	return secret, token
}

func TestATokenIsItsClient(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	secret, token := create(t, db, acme)
	p, err := tokendb.NewAuthenticator(db).Authenticate(t.Context(), secret)
	if err != nil || p.ClientID != "acme" || !slices.Equal(p.Roles, acme.Roles) {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, wrong := range []string{"", "evo_", secret + "x", strings.ToLower(secret), secret[4:]} {
		if _, err := tokendb.NewAuthenticator(db).Authenticate(t.Context(), wrong); !errors.Is(err, rpc.ErrInvalidCredentials) {
			t.Errorf("%d characters of something else: %v", len(wrong), err)
		}
	}
	got, err := tokendb.Get(t.Context(), db, token.ID)
	if err != nil || got.Name != "shop" || got.CreatedBy != "ana" || !got.ExpiresAt.IsZero() || !got.RevokedAt.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	var leaked bool
	if err := db.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM api_token t WHERE strpos(t::text, $1) > 0)", secret[4:]).Scan(&leaked); err != nil || leaked {
		t.Errorf("the table knows the secret: %v, %v", leaked, err)
	}
}

func TestANameIsTakenUntilItsTokenIsRevoked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, token := create(t, db, acme)
	if _, _, err := tokendb.Create(t.Context(), db, acme, "ana"); !errors.Is(err, tokendb.ErrNameTaken) {
		t.Errorf("got %v", err)
	}
	other := acme
	other.ClientID = "other"
	create(t, db, other)
	for _, want := range []bool{true, false} {
		if changed, err := tokendb.Revoke(t.Context(), db, token.ID, "bob"); changed != want || err != nil {
			t.Errorf("got %v, %v; want %v", changed, err, want)
		}
	}
	create(t, db, acme)
	if got, err := tokendb.Get(t.Context(), db, token.ID); err != nil || got.RevokedBy != "bob" || got.RevokedAt.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := tokendb.Get(t.Context(), db, uuid.New()); !errors.Is(err, tokendb.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestARevokedTokenIsRefusedWithinTheTimeThatIsSaid(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	secret, token := create(t, db, acme)
	a := tokendb.NewAuthenticator(db)
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := tokendb.Revoke(t.Context(), db, token.ID, "ana"); err != nil {
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
		if err != nil || asked.Sub(revoked) > tokendb.Believed {
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
	if _, err := tokendb.NewAuthenticator(db).Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), "UPDATE api_token SET created_at = created_at - interval '2 hours', expires_at = expires_at - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
	if _, err := tokendb.NewAuthenticator(db).Authenticate(t.Context(), secret); !errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("got %v", err)
	}
	for ended, want := range map[bool]int{false: 0, true: 1} {
		if list, err := tokendb.List(t.Context(), db, tokendb.Filter{Ended: ended, Most: 10}); err != nil || len(list) != want {
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
	f := tokendb.Filter{ClientID: "acme", Most: 2}
	for {
		page, err := tokendb.List(t.Context(), db, f)
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
	a := tokendb.NewAuthenticator(db)
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
	if most := 1 + int64(time.Since(first)/tokendb.Believed) + 1; db.queries.Load() > most {
		t.Errorf("%d queries, more than %d", db.queries.Load(), most)
	}
}

func TestADatabaseThatDoesNotAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	db := &counted{Pool: pgtest.New(t)}
	secret, _ := create(t, db.Pool, acme)
	a := tokendb.NewAuthenticator(db)
	db.broken.Store(true)
	if _, err := a.Authenticate(t.Context(), secret); err == nil || errors.Is(err, rpc.ErrInvalidCredentials) {
		t.Errorf("got %v", err)
	}
	db.broken.Store(false)
	if _, err := a.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("the failure was remembered: %v", err)
	}
}
