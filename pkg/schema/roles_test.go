package schema_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/evalonce/evalonce/migrations"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

var update = flag.Bool("update", false, "write the golden file of the roles' rights")

// What a service may do is decided in a review, so a new right shows in a file.
func TestRightsOfTheRoles(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, err := db.Query(t.Context(), `
		WITH role AS (SELECT oid, rolname FROM pg_roles WHERE rolname LIKE 'evalonce\_%' AND rolname = ANY ($1))
		SELECT (r.rolname || ' ' || p.what) COLLATE "C"
		FROM role r
		CROSS JOIN LATERAL (
			SELECT a.privilege_type || ' ' || c.relname AS what
			FROM pg_class c, aclexplode(c.relacl) a
			WHERE a.grantee = r.oid
			UNION ALL
			SELECT a.privilege_type || ' ' || c.relname || ' (' || string_agg(t.attname, ', ' ORDER BY t.attname) || ')'
			FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a
			WHERE a.grantee = r.oid GROUP BY a.privilege_type, c.relname
			UNION ALL
			SELECT a.privilege_type || ' ' || f.oid::regprocedure
			FROM pg_proc f, aclexplode(f.proacl) a
			WHERE a.grantee = r.oid
			UNION ALL
			SELECT a.privilege_type || ' schema ' || n.nspname
			FROM pg_namespace n, aclexplode(n.nspacl) a
			WHERE a.grantee = r.oid
			UNION ALL
			SELECT a.privilege_type || ' database'
			FROM pg_database d, aclexplode(d.datacl) a
			WHERE d.datname = current_database() AND a.grantee = r.oid
			UNION ALL
			SELECT 'MEMBER of ' || g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = r.oid
		) p
		ORDER BY 1`, roles())
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	got, golden := strings.Join(lines, "\n")+"\n", filepath.Join("testdata", "rights.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the rights are not those of %s; look at each that is new, and then go test -run=%s -update. They are\n%s", golden, t.Name(), got)
	}
}

func roles() []string {
	return []string{string(pgtest.TicketAPI), string(pgtest.EvaluatorWorker), string(pgtest.Sweeper), string(pgtest.Admin)}
}

// A service logs in as somebody who has its role and nothing else; so it can take no other role on, and what it was not
// granted it cannot take.
func TestALoginHasNoOtherRights(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, role := range roles() {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			login := fmt.Sprintf("%s_login_%d", role, db.Config().ConnConfig.Port)
			exec := func(sql string) {
				t.Helper()
				if _, err := db.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec("CREATE ROLE " + login + " LOGIN PASSWORD 'secret' IN ROLE " + role)
			config := db.Config().ConnConfig.Copy()
			config.User, config.Password = login, "secret"
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = conn.Close(t.Context())
				exec("DROP ROLE " + login)
			}()
			if missing, err := migrations.Missing(t.Context(), conn); err != nil || len(missing) > 0 {
				t.Errorf("what is missing: %v, %v", missing, err)
			}
			if _, err := conn.Exec(t.Context(), "SELECT FROM ticket"); err != nil {
				t.Error(err)
			}
			forbidden := []string{
				"SET ROLE " + db.Config().ConnConfig.User, "SET SESSION AUTHORIZATION " + db.Config().ConnConfig.User,
				"CREATE TABLE mine ()", "DROP TABLE ticket", "ALTER TABLE ticket DISABLE TRIGGER ALL", "TRUNCATE ticket", "DELETE FROM ticket",
				"UPDATE ticket SET client_id = 'me'", "UPDATE evaluation_result SET department = 'mine'", "DELETE FROM evaluation_result", "DELETE FROM model_call",
				"UPDATE evaluator_version SET prompt = ''", "DELETE FROM admin_audit", "UPDATE admin_audit SET principal = 'me'",
				"UPDATE goose_db_version SET is_applied = false", "CREATE ROLE mine",
			}
			for _, other := range roles() {
				if other != role {
					forbidden = append(forbidden, "SET ROLE "+other)
				}
			}
			if role != string(pgtest.Admin) {
				forbidden = append(forbidden, "SELECT FROM admin_audit", "UPDATE active_version SET version_id = 'mine'", "UPDATE spend_limit SET limit_usd = 1")
			}
			if role != string(pgtest.Sweeper) {
				forbidden = append(forbidden, "SELECT ensure_model_call_partitions(1)")
			}
			if role == string(pgtest.Sweeper) || role == string(pgtest.EvaluatorWorker) {
				forbidden = append(forbidden, "SELECT FROM api_credential")
			}
			for _, sql := range forbidden {
				_, err := conn.Exec(t.Context(), sql)
				var refused *pgconn.PgError
				if !errors.As(err, &refused) || refused.Code != "42501" {
					t.Errorf("%s: %v, want it refused", sql, err)
				}
			}
		})
	}
}
