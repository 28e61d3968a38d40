package api_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

func TestTheDatabaseGoesAndComesBack(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "evalonce-outage-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// The server may run as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server := pgtest.NewServer(t, pgtest.Options{Dir: filepath.Join(dir, "postgres")})
	url, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := serve(t, pgtest.Pool(t, url))
	a.promote("v1")
	a.create(item("before", ""))
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err = a.client().CreateTicket(a.as(a.acme), item("during", "k"))
	if p := wantProblem(t, err, codes.Unavailable, "DATABASE_UNAVAILABLE"); !p.retry {
		t.Error("no RetryInfo")
	}
	wantREST(t, a.rest("GET", "/v1/tickets", ""), 503, "DATABASE_UNAVAILABLE")
	wantREST(t, a.rest("POST", "/v1/tickets:batchCreate", `{"requests":[{"message":"x"}]}`), 503, "DATABASE_UNAVAILABLE")
	if r := a.rest("GET", "/readyz", ""); r.status != 503 {
		t.Errorf("readyz gives %d %s", r.status, r.body)
	}
	if r := a.rest("GET", "/healthz", ""); r.status != 200 {
		t.Errorf("healthz gives %d %s", r.status, r.body)
	}
	address, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.NewServer(t, pgtest.Options{Dir: filepath.Join(dir, "postgres"), Port: int(address.Port)}) // the same database again
	a.db.Reset()
	a.create(item("during", "k"))
	if got, want := a.rows(), [3]int{2, 1, 2}; got != want {
		t.Errorf("stored %v, want %v", got, want)
	}
}

func TestTheDocument(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := a.rest("GET", "/openapi.json", "")
	var document struct {
		Swagger string
		Paths   map[string]map[string]struct {
			Responses map[string]any
		}
	}
	if err := json.Unmarshal([]byte(r.body), &document); err != nil || r.status != 200 {
		t.Fatalf("%d: %v", r.status, err)
	}
	for _, path := range []string{"/v1/tickets", "/v1/tickets:batchCreate"} {
		if document.Paths[path]["post"].Responses["201"] == nil {
			t.Errorf("the document does not tell of the 201 of %s", path)
		}
	}
}
