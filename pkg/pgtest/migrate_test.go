package pgtest_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/evalonce/evalonce/migrations"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

// The tests of the migrations module live here: this package imports that one, and they need a Postgres.

func TestConcurrentMigratorsApplyEachMigrationOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)

	var applied [4][]string
	group, ctx := errgroup.WithContext(t.Context())
	for i := range applied {
		group.Go(func() (err error) {
			applied[i], err = migrations.Up(ctx, url)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("four migrators at once: %v", err)
	}
	status := migrationStatus(t, url)
	if got, want := slices.Sorted(slices.Values(slices.Concat(applied[:]...))), names(status); !slices.Equal(got, want) {
		t.Errorf("together the four applied %v, want each of %v once", got, want)
	}
	for _, migration := range status {
		if !migration.Applied || migration.AppliedAt.IsZero() {
			t.Errorf("%s is not recorded as applied: %+v", migration.Name, migration)
		}
	}

	again, err := migrations.Up(t.Context(), url)
	if err != nil || len(again) != 0 {
		t.Errorf("a second Up applied %v, error %v; want nothing", again, err)
	}
}

func TestUpContinuesAfterAFailure(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	execute(t, url, "CREATE TABLE ticket ()")

	first, err := migrations.Up(t.Context(), url)
	if err == nil || !strings.Contains(err.Error(), "00002_tickets.sql") {
		t.Fatalf("Up over a table that is in the way: error %v, want one that names the migration", err)
	}
	for _, migration := range migrationStatus(t, url) {
		if want := slices.Contains(first, migration.Name); migration.Applied != want {
			t.Errorf("%s applied: %v, but Up said %v", migration.Name, migration.Applied, want)
		}
	}

	execute(t, url, "DROP TABLE ticket")
	rest, err := migrations.Up(t.Context(), url)
	if err != nil {
		t.Fatalf("Up after the cause is gone: %v", err)
	}
	if got, want := append(first, rest...), names(migrationStatus(t, url)); !slices.Equal(got, want) {
		t.Errorf("the two runs applied %v, want %v", got, want)
	}
}

func TestStatusOfAnEmptyDatabaseWritesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	status := migrationStatus(t, url)
	if len(status) == 0 || slices.ContainsFunc(status, func(m migrations.Migration) bool { return m.Applied }) {
		t.Errorf("status of an empty database: %+v, want every migration pending", status)
	}
	conn := connect(t, url)
	var relations int
	if err := conn.QueryRow(t.Context(),
		"SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace").Scan(&relations); err != nil {
		t.Fatal(err)
	}
	if relations != 0 {
		t.Errorf("reading the status made %d relations", relations)
	}
}

func migrationStatus(t *testing.T, url string) []migrations.Migration {
	t.Helper()
	status, err := migrations.Status(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

func names(status []migrations.Migration) []string {
	var list []string
	for _, migration := range status {
		list = append(list, migration.Name)
	}
	return list
}

func execute(t *testing.T, url, statement string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func TestWaitEndsWhenSomebodyElseHasMigrated(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	binary := filepath.Join(t.TempDir(), "migrate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/evalonce/evalonce/migrations/cmd/migrate").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	impatient := exec.CommandContext(t.Context(), binary, "wait", "--timeout", "10ms")
	impatient.Env = append(os.Environ(), "EVALONCE_DATABASE_URL="+url)
	if out, err := impatient.CombinedOutput(); err == nil || !strings.Contains(string(out), "gave up after 10ms: waiting for") {
		t.Errorf("got %v\n%s", err, out)
	}
	waiting := exec.CommandContext(t.Context(), binary, "wait")
	waiting.Env = append(os.Environ(), "EVALONCE_DATABASE_URL="+url)
	stdout, err := waiting.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || !strings.Contains(lines.Text(), "waiting for 00001_") {
		t.Errorf("it says %q", lines.Text())
	}
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := waiting.Wait(); err != nil || last != "all migrations are applied" {
		t.Errorf("it ended with %v, saying %q", err, last)
	}
}

// Whoever owns the tables need not be a superuser. Where it may not make the services' roles it says what to do.
func TestMigrationsNeedNoSuperuser(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgtest.Options{})
	roles := []string{string(pgtest.TicketAPI), string(pgtest.EvaluatorWorker), string(pgtest.Sweeper), string(pgtest.Admin)}
	for _, role := range roles {
		execute(t, server.URL(), "ALTER ROLE "+role+" RENAME TO of_the_template_"+role)
	}
	execute(t, server.URL(), "CREATE ROLE owner LOGIN")
	execute(t, server.URL(), "CREATE DATABASE owned OWNER owner TEMPLATE template0")
	url := strings.NewReplacer("//postgres@", "//owner@", "/postgres?", "/owned?").Replace(server.URL())

	_, err := migrations.Up(t.Context(), url)
	if err == nil {
		t.Fatal("roles were made by who may not")
	}
	for _, role := range roles {
		create := "CREATE ROLE " + role + " NOLOGIN;"
		if !strings.Contains(err.Error(), create) {
			t.Errorf("%v does not say: %s", err, create)
		}
		execute(t, server.URL(), create)
	}
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		execute(t, pgtest.As(strings.Replace(url, "//owner@", "//postgres@", 1), pgtest.Role(role)), "SELECT FROM ticket, goose_db_version")
	}
}
