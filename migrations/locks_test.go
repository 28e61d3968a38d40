package migrations

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
)

// released is the last migration that no database had tickets before: up to it, tables may be locked for as long as it takes.
const released = 11

// grown are the tables that have a row for each ticket, call, request or event. Partitions of model_call begin with its name.
var grown = []string{
	"ticket", "client_request", "evaluation_outbox", "evaluation_result", "model_call", "webhook_delivery", "webhook_supersession",
	"admin_audit", "admin_request", "ticket_sample_member", "replay_selection",
}

// While a statement reads or rewrites a whole table under a lock that writers wait for, creates fail. How to do the same
// without: indexes CONCURRENTLY (of a partitioned table ON ONLY it, then of each partition, then ATTACH), constraints NOT VALID
// and VALIDATE in a later migration, columns without a volatile default and filled in steps.
func TestMigrationsHoldNoLongLocks(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("migrations %v (%v)", names, err)
	}
	for _, name := range names {
		number, err := goose.NumericComponent(name)
		if err != nil {
			t.Fatal(err)
		}
		if number <= released {
			continue
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range longLocks(string(text)) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

func TestLongLocksAreFound(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"CREATE INDEX i ON ticket (id)",
		"create unique index if not exists i on public.ticket using btree (id)",
		"CREATE INDEX ON ONLY evaluation_result (id)",
		"CREATE INDEX CONCURRENTLY i ON ticket (id)", // in a transaction
		"DROP INDEX ticket_created",
		"REINDEX TABLE ticket",
		"ALTER TABLE ticket ADD COLUMN a uuid DEFAULT gen_random_uuid()",
		"ALTER TABLE ticket ADD a timestamptz NOT NULL DEFAULT clock_timestamp()",
		"ALTER TABLE ticket ADD COLUMN a bigint GENERATED ALWAYS AS IDENTITY",
		"ALTER TABLE ticket ADD COLUMN a int GENERATED ALWAYS AS (1) STORED",
		"ALTER TABLE ticket ADD COLUMN a bigserial",
		"ALTER TABLE ticket ADD COLUMN a uuid REFERENCES evaluator_version (id)",
		"ALTER TABLE ticket ADD COLUMN a int UNIQUE",
		"ALTER TABLE ticket ADD COLUMN a int CHECK (a > 0)",
		"ALTER TABLE ONLY ticket ALTER COLUMN a SET NOT NULL",
		"ALTER TABLE ticket ALTER a TYPE bigint",
		"ALTER TABLE ticket ALTER COLUMN a SET DATA TYPE bigint",
		"ALTER TABLE ticket ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES policy (id)",
		"ALTER TABLE ticket ADD CONSTRAINT c CHECK (a > 0)",
		"ALTER TABLE ticket ADD CONSTRAINT u UNIQUE (a)",
		"ALTER TABLE ticket ADD PRIMARY KEY (a)",
		"ALTER TABLE ticket SET LOGGED",
		"ALTER TABLE ticket\n  ADD COLUMN a int, -- a comment; with a semicolon\n  ALTER COLUMN b SET NOT NULL",
		"ALTER TABLE model_call_2026_11 ALTER COLUMN a SET NOT NULL",
		"ALTER TABLE model_call ATTACH PARTITION x FOR VALUES FROM ('a') TO ('b')",
		"VACUUM FULL ticket", "CLUSTER ticket", "TRUNCATE ticket", "LOCK TABLE ticket", "UPDATE ticket SET a = 1", "DELETE FROM ticket",
		"ALTER TABLE ticket RENAME COLUMN a TO b",
		"DO $$ BEGIN ALTER TABLE ticket ALTER COLUMN a SET NOT NULL; END $$",
	} {
		if len(longLocks("-- +goose Up\n"+statement+";\n")) == 0 {
			t.Errorf("nothing is found in: %s", statement)
		}
	}
}

func TestShortLocksAreLeftAlone(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"CREATE TABLE new (id uuid PRIMARY KEY, ticket_id uuid NOT NULL REFERENCES ticket (id)); CREATE INDEX ON new (ticket_id)",
		"CREATE INDEX ON provider_route (name)",
		"ALTER TABLE provider_route ALTER COLUMN a SET NOT NULL",
		"ALTER TABLE ticket ADD COLUMN a text NOT NULL DEFAULT 'UNIQUE'",
		"ALTER TABLE ticket ADD COLUMN a timestamptz DEFAULT now()", // the same value for all rows: it is not volatile
		"ALTER TABLE ticket ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES policy (id) NOT VALID",
		"ALTER TABLE ticket ADD CONSTRAINT c CHECK (a > 0) NOT VALID, ADD CONSTRAINT d CHECK (b IN (1, 2)) NOT VALID",
		"ALTER TABLE ticket ADD CONSTRAINT u UNIQUE USING INDEX i",
		"ALTER TABLE ticket VALIDATE CONSTRAINT c",
		"ALTER TABLE ticket DROP COLUMN a",
		"CREATE INDEX i ON ONLY model_call (a)",
		"-- CREATE INDEX i ON ticket (id);\nSELECT 1",
		"UPDATE ticket SET a = 1 WHERE id = 'x'",
	} {
		if problems := longLocks("-- +goose Up\n" + statement + ";\n"); len(problems) > 0 {
			t.Errorf("%s: %v", statement, problems)
		}
	}
	if problems := longLocks("-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY i ON ticket (id);\nDROP INDEX CONCURRENTLY j;\n"); len(problems) > 0 {
		t.Errorf("an index that is made concurrently: %v", problems)
	}
}

var (
	noTransaction = regexp.MustCompile(`(?m)^--\s*\+goose\s+NO\s+TRANSACTION`)
	// Comments, then texts, so that no word in them counts.
	comment = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)
	literal = regexp.MustCompile(`'(?:[^']|'')*'`)
	blank   = regexp.MustCompile(`\s+`)

	createIndex = regexp.MustCompile(`\bCREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?(?:.*?)\bON (ONLY )?(?:\w+\.)?(\w+)`)
	otherIndex  = regexp.MustCompile(`\b(?:DROP INDEX|REINDEX(?: \([^)]*\))? (?:TABLE|INDEX|SCHEMA|DATABASE)) (CONCURRENTLY )?`)
	alterTable  = regexp.MustCompile(`\bALTER TABLE (?:IF EXISTS )?(?:ONLY )?(?:\w+\.)?(\w+) (.*)`)
	whole       = regexp.MustCompile(`^(?:.*\b(?:BEGIN|THEN|LOOP) )?(?:VACUUM \(?FULL\)?|CLUSTER|TRUNCATE(?: TABLE)?|LOCK(?: TABLE)?|UPDATE|DELETE FROM) (?:ONLY )?(?:\w+\.)?(\w+)(.*)`)

	notValid = regexp.MustCompile(`\bNOT VALID\b`)
	using    = regexp.MustCompile(`\bUSING INDEX\b`)
	actions  = []struct {
		pattern  *regexp.Regexp
		harmless *regexp.Regexp // where it matches, too
		problem  string
	}{
		{regexp.MustCompile(`^ADD (?:CONSTRAINT \w+ )?(?:FOREIGN KEY|CHECK|NOT NULL)\b`), notValid, "adds a constraint that is not NOT VALID"},
		{regexp.MustCompile(`^ADD (?:CONSTRAINT \w+ )?(?:UNIQUE|PRIMARY KEY|EXCLUDE)\b`), using, "builds an index"},
		{regexp.MustCompile(`^ADD (?:COLUMN )?.*\b(?:REFERENCES|CHECK|UNIQUE|PRIMARY KEY)\b`), regexp.MustCompile(`^ADD (?:CONSTRAINT|CHECK|FOREIGN|UNIQUE|PRIMARY|EXCLUDE)\b`), "adds a column with a constraint that all rows are checked for"},
		{regexp.MustCompile(`^ADD (?:COLUMN )?.*\b(?:GENERATED|SMALLSERIAL|SERIAL|BIGSERIAL|CLOCK_TIMESTAMP|TIMEOFDAY|RANDOM|GEN_RANDOM_UUID|UUIDV[47]|NEXTVAL)\b`), nil, "adds a column whose value differs from row to row"},
		{regexp.MustCompile(`^ALTER (?:COLUMN )?\w+ SET NOT NULL`), nil, "reads all rows for a null: add a CHECK that is NOT VALID, and validate it"},
		{regexp.MustCompile(`^ALTER (?:COLUMN )?\w+ (?:SET DATA )?TYPE\b`), nil, "changes a type, and so every row"},
		{regexp.MustCompile(`^SET (?:LOGGED|UNLOGGED|TABLESPACE|ACCESS METHOD)\b`), nil, "rewrites the table"},
		{regexp.MustCompile(`^ATTACH PARTITION\b`), nil, "reads all rows of the partition"},
		{regexp.MustCompile(`^RENAME\b`), nil, "renames what the release before still uses"},
	}
)

// longLocks are the statements of a migration that hold a lock on a grown table for as long as the table is long. It knows
// the forms in which migrations are written here, not all of SQL.
func longLocks(migration string) []string {
	var problems []string
	concurrent := noTransaction.MatchString(migration)
	plain := literal.ReplaceAllString(comment.ReplaceAllString(migration, " "), "''")
	for statement := range strings.SplitSeq(plain, ";") {
		statement = strings.ToUpper(strings.TrimSpace(blank.ReplaceAllString(strings.ReplaceAll(statement, `"`, ""), " ")))
		problem := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf(format, args...)+": "+statement)
		}
		if m := createIndex.FindStringSubmatch(statement); m != nil && isGrown(m[3]) {
			switch partitioned := m[3] == "MODEL_CALL" && m[2] != ""; {
			case partitioned:
			case m[1] == "":
				problem("builds an index of %s while writers wait", strings.ToLower(m[3]))
			case !concurrent:
				problem("CONCURRENTLY needs -- +goose NO TRANSACTION")
			}
		}
		if m := otherIndex.FindStringSubmatch(statement); m != nil && (m[1] == "" || !concurrent) {
			problem("needs CONCURRENTLY and -- +goose NO TRANSACTION")
		}
		if m := alterTable.FindStringSubmatch(statement); m != nil && isGrown(m[1]) {
			for _, action := range splitActions(m[2]) {
				for _, a := range actions {
					if a.pattern.MatchString(action) && (a.harmless == nil || !a.harmless.MatchString(action)) {
						problem("%s", a.problem)
					}
				}
			}
		}
		if m := whole.FindStringSubmatch(statement); m != nil && isGrown(m[1]) && !strings.Contains(m[2], " WHERE ") {
			problem("changes or locks all of %s", strings.ToLower(m[1]))
		}
	}
	return problems
}

func isGrown(table string) bool {
	table = strings.ToLower(table)
	return slices.Contains(grown, table) || strings.HasPrefix(table, "model_call_")
}

// splitActions cuts at the commas that are in no parentheses.
func splitActions(list string) []string {
	var all []string
	depth, start := 0, 0
	for i, r := range list {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			all, start = append(all, strings.TrimSpace(list[start:i])), i+1
		}
	}
	return append(all, strings.TrimSpace(list[start:]))
}
