package migrations

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/pressly/goose/v3"
)

// released is the last migration that no database had tickets before: up to it, tables may be locked for as long as it takes.
const released = 11

// While a statement reads or rewrites a whole table under a lock that writers wait for, creates fail; and when something is
// gone that the release before uses, its calls do. How to do the same without: indexes CONCURRENTLY (of a partitioned table ON
// ONLY it, then of each partition, then ATTACH), constraints NOT VALID and VALIDATE in a later migration, columns without a
// volatile default and filled in steps, and nothing dropped before it is unused.
func TestMigrationsLetTheReleaseBeforeGoOn(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations %v (%v)", names, err)
	}
	var earlier []string
	for _, name := range names {
		number, err := goose.NumericComponent(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		if number > released {
			for _, problem := range judge(string(text), earlier...) {
				t.Errorf("%s: %s", name, problem)
			}
		}
		earlier = append(earlier, string(text))
	}
}

// The migrations that the rolling upgrade is tested with are of the forms that are allowed.
func TestTestedMigrationsAreAllowed(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob(path.Join("..", "deploy", "local", "systemtest", "testdata", "next", "*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Skip("this is not the whole checkout")
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range judge(string(text)) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

func TestProblemsAreFound(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"CREATE INDEX i ON ticket (id)",
		"create unique index if not exists i on public.ticket using btree (id)",
		"CREATE INDEX ON ONLY evaluation_result (id)",
		"CREATE INDEX CONCURRENTLY i ON ticket (id)", // in a transaction
		"DROP INDEX ticket_created",
		"REINDEX TABLE ticket", "REINDEX (VERBOSE) TABLE ticket",
		"ALTER TABLE ticket ADD COLUMN a uuid DEFAULT gen_random_uuid()",
		"ALTER TABLE ticket ADD a timestamptz NOT NULL DEFAULT clock_timestamp()",
		"ALTER TABLE ticket ADD COLUMN a text DEFAULT made_up(1)",
		"ALTER TABLE ticket ADD COLUMN a double precision DEFAULT (1 + random())",
		"ALTER TABLE ticket ADD COLUMN a bigint GENERATED ALWAYS AS IDENTITY",
		"ALTER TABLE ticket ADD COLUMN a int GENERATED ALWAYS AS (1) STORED",
		"ALTER TABLE ticket ADD COLUMN a bigserial",
		"ALTER TABLE ticket ADD COLUMN a uuid REFERENCES evaluator_version (id)",
		"ALTER TABLE ticket ADD COLUMN a int UNIQUE",
		"ALTER TABLE ticket ADD COLUMN a int CHECK (a > 0)",
		"ALTER TABLE provider_route ADD COLUMN a int NOT NULL",
		"ALTER TABLE ONLY ticket ALTER COLUMN a SET NOT NULL",
		"ALTER TABLE ticket ADD CONSTRAINT c CHECK (a IS NOT NULL) NOT VALID; ALTER TABLE ticket ALTER a SET NOT NULL",
		"ALTER TABLE ticket ALTER a TYPE bigint",
		"ALTER TABLE ticket ALTER COLUMN a SET DATA TYPE bigint",
		"ALTER TABLE provider_route ALTER COLUMN a TYPE bigint",
		"ALTER TABLE ticket ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES policy (id)",
		"ALTER TABLE ticket ADD CONSTRAINT c CHECK (a > 0)",
		"ALTER TABLE ticket ADD CONSTRAINT c CHECK (a > 0) NOT VALID; ALTER TABLE ticket VALIDATE CONSTRAINT c", // with the table locked
		"ALTER TABLE ticket ADD CONSTRAINT u UNIQUE (a)",
		"ALTER TABLE ticket ADD PRIMARY KEY (a)",
		"ALTER TABLE ticket SET LOGGED",
		"ALTER TABLE ticket\n  ADD COLUMN a int, -- a comment; with a semicolon\n  ALTER COLUMN b SET NOT NULL",
		"ALTER TABLE model_call_2026_11 ALTER COLUMN a SET NOT NULL",
		"ALTER TABLE model_call ATTACH PARTITION x FOR VALUES FROM ('a') TO ('b')",
		"VACUUM FULL ticket", "VACUUM (ANALYZE, FULL) ticket", "VACUUM FULL ANALYZE ticket", "VACUUM FULL", "CLUSTER ticket", "CLUSTER ticket USING i", "CLUSTER",
		"TRUNCATE ticket", "TRUNCATE policy, public.ticket", "LOCK TABLE ticket", "LOCK ONLY ticket IN SHARE MODE", "LOCK TABLE policy, ticket IN EXCLUSIVE MODE",
		"UPDATE ticket SET a = 1", "UPDATE ticket SET a = 1 WHERE a IS NULL", "DELETE FROM ticket", "WITH x AS (SELECT 1) DELETE FROM ticket USING x WHERE true",
		"ALTER TABLE ticket RENAME COLUMN a TO b", "ALTER TABLE provider_route RENAME a TO b", "ALTER TABLE provider_route RENAME TO b", "ALTER TYPE t RENAME VALUE 'a' TO 'b'",
		"ALTER TABLE ticket DROP COLUMN a", "ALTER TABLE provider_route DROP a", "ALTER TABLE provider_route ALTER COLUMN a DROP DEFAULT",
		"DROP TABLE policy", "DROP FUNCTION IF EXISTS f(int)", "REVOKE SELECT ON policy FROM evalonce_admin",
		"DO $$ BEGIN ALTER TABLE ticket ALTER COLUMN a SET NOT NULL; END $$",
		"DO $x$ BEGIN EXECUTE format('ALTER TABLE %I ALTER COLUMN a SET NOT NULL', 'ticket'); END $x$",
		"ALTER TABLE ticket ADD COLUMN a int; ALTER TABLE model_call ADD COLUMN a int",
		"ALTER TABLE model_call ADD COLUMN a int; CREATE TABLE new (id uuid REFERENCES ticket (id))",
	} {
		if len(judge("-- +goose Up\n"+statement+";\n")) == 0 {
			t.Errorf("nothing is found in: %s", statement)
		}
	}
	for _, statements := range []string{
		"CREATE INDEX i ON ticket (id)",
		"SET lock_timeout = 0; CREATE INDEX CONCURRENTLY i ON ticket (id); SET lock_timeout = '10s'", // what if it fails, and is run again?
		"SET lock_timeout = 0; DROP INDEX CONCURRENTLY IF EXISTS j; CREATE INDEX CONCURRENTLY i ON ticket (id); SET lock_timeout = '10s'",
		"SET lock_timeout = 0; DROP INDEX CONCURRENTLY IF EXISTS i; CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON ticket (id); SET lock_timeout = '10s'",
		"DROP INDEX CONCURRENTLY IF EXISTS i; CREATE INDEX CONCURRENTLY i ON ticket (id)", // waits for 10 s
		"SET lock_timeout = 0; DROP INDEX CONCURRENTLY IF EXISTS i; CREATE INDEX CONCURRENTLY i ON ticket (id)",
		"DROP INDEX i", "DROP INDEX CONCURRENTLY i", "REINDEX INDEX i",
	} {
		if len(judge("-- +goose NO TRANSACTION\n-- +goose Up\n"+statements+";\n")) == 0 {
			t.Errorf("nothing is found in: %s", statements)
		}
	}
}

func TestWhatDoesNoHarmIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"CREATE TABLE new (id uuid PRIMARY KEY, ticket_id uuid NOT NULL REFERENCES ticket (id)); CREATE INDEX ON new (ticket_id)",
		"CREATE INDEX ON provider_route (name)",
		"ALTER TABLE provider_route ALTER COLUMN a SET NOT NULL",
		"ALTER TABLE provider_route ADD COLUMN a int NOT NULL DEFAULT 0 CHECK (a >= 0), ADD CONSTRAINT b CHECK (c IS NOT NULL)",
		"ALTER TABLE ticket ADD COLUMN a text NOT NULL DEFAULT 'UNIQUE'",
		"ALTER TABLE ticket ADD COLUMN a numeric(10, 2) DEFAULT 0::numeric(10, 2)",
		"ALTER TABLE ticket ADD COLUMN a timestamptz DEFAULT now()", // the same value for all rows: it is not volatile
		"ALTER TABLE ticket ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES policy (id) NOT VALID",
		"ALTER TABLE ticket ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES model_call (id) NOT VALID", // two tables, and cannot be without
		"ALTER TABLE ticket ADD CONSTRAINT c CHECK (a > 0) NOT VALID, ADD CONSTRAINT d CHECK (b IN (1, 2)) NOT VALID",
		"ALTER TABLE ticket ADD CONSTRAINT u UNIQUE USING INDEX i",
		"ALTER TABLE ticket VALIDATE CONSTRAINT c", "ALTER TABLE ticket DROP CONSTRAINT c", "ALTER TABLE ticket ALTER COLUMN a DROP NOT NULL",
		"CREATE INDEX i ON ONLY model_call (a)",
		"-- CREATE INDEX i ON ticket (id);\nSELECT 1",
		"UPDATE ticket SET a = 1 WHERE id = 'x'",
		"-- contract: nobody has used a since 1.2\nALTER TABLE ticket DROP COLUMN a", "-- contract: 1.2\nDROP TABLE policy",
		"GRANT EXECUTE ON FUNCTION f(int) TO evalonce_admin", "DO $$ BEGIN IF true THEN ALTER TABLE ticket ADD COLUMN a int; END IF; END $$",
	} {
		if problems := judge("-- +goose Up\n" + statement + ";\n"); len(problems) > 0 {
			t.Errorf("%s: %v", statement, problems)
		}
	}
	const index = "SET lock_timeout = 0; DROP INDEX CONCURRENTLY IF EXISTS i; CREATE INDEX CONCURRENTLY i ON ticket (id); SET lock_timeout = '10s';\n"
	if problems := judge("-- +goose NO TRANSACTION\n-- +goose Up\n" + index); len(problems) > 0 {
		t.Errorf("an index that is made concurrently: %v", problems)
	}
	known := []string{
		"ALTER TABLE ticket ADD CONSTRAINT a_known CHECK (a IS NOT NULL) NOT VALID;",
		"ALTER TABLE ticket VALIDATE CONSTRAINT a_known;",
	}
	if problems := judge("-- +goose Up\nALTER TABLE ticket ALTER COLUMN a SET NOT NULL;\n", known...); len(problems) > 0 {
		t.Errorf("a column that is known not to be null: %v", problems)
	}
}
