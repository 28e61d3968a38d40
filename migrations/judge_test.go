package migrations

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// grown are the tables that have a row for each ticket, call, request or event. Partitions of model_call begin with its name.
var grown = []string{
	"ticket", "client_request", "evaluation_outbox", "evaluation_result", "model_call", "webhook_delivery", "webhook_supersession",
	"admin_audit", "admin_request", "ticket_sample_member", "replay_selection",
}

func isGrown(table string) bool {
	table = strings.ToLower(table)
	return slices.Contains(grown, table) || strings.HasPrefix(table, "model_call_")
}

var (
	noTransaction = regexp.MustCompile(`(?m)^--\s*\+goose\s+NO\s+TRANSACTION`)
	contract      = regexp.MustCompile(`(?m)^-- contract: \S`)
	// Comments, then texts, so that no word in them counts.
	comment = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)
	literal = regexp.MustCompile(`'(?:[^']|'')*'`)
	blank   = regexp.MustCompile(`\s+`)
	doBlock = regexp.MustCompile(`\bDO (?:LANGUAGE \w+ )?(\$\w*\$)`)

	createIndex = regexp.MustCompile(`\bCREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?(IF NOT EXISTS )?(?:(\w+) )?ON (ONLY )?(?:\w+\.)?(\w+)`)
	dropIndex   = regexp.MustCompile(`\bDROP INDEX (CONCURRENTLY )?(IF EXISTS )?(?:\w+\.)?(\w+)`)
	reindex     = regexp.MustCompile(`\bREINDEX (?:\([^)]*\) )?(?:TABLE|INDEX|SCHEMA|DATABASE) (CONCURRENTLY )?`)
	alterTable  = regexp.MustCompile(`\bALTER TABLE (?:IF EXISTS )?(?:ONLY )?(?:\w+\.)?(\w+) (.*)`)
	references  = regexp.MustCompile(`\bREFERENCES (?:\w+\.)?(\w+)`)
	trigger     = regexp.MustCompile(`\b(?:CREATE|DROP) (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER .*?\bON (?:\w+\.)?(\w+)`)
	whole       = regexp.MustCompile(`^(?:.*\b(?:BEGIN|THEN|LOOP) )?(?:VACUUM (?:\([^)]*\bFULL\b[^)]*\)|FULL(?: (?:FREEZE|VERBOSE|ANALYZE))*)|CLUSTER(?: VERBOSE)?|TRUNCATE(?: TABLE)?|LOCK(?: TABLE)?)(?: (.*))?$`)
	change      = regexp.MustCompile(`\b(?:UPDATE|DELETE FROM) (?:ONLY )?(?:\w+\.)?(\w+)(.*)`)
	byKey       = regexp.MustCompile(`\bWHERE (?:\w+\.)?(?:ID|\w*KEY) (?:=|IN) `)
	drop        = regexp.MustCompile(`\bDROP (?:TABLE|VIEW|MATERIALIZED VIEW|FUNCTION|PROCEDURE|TYPE|DOMAIN|SCHEMA|SEQUENCE|TRIGGER|ROLE)\b|\bREVOKE\b`)
	rename      = regexp.MustCompile(`\bALTER (?:TABLE|VIEW|TYPE|FUNCTION|SCHEMA|ROLE)\b.*\bRENAME\b`)
	noTimeout   = regexp.MustCompile(`^SET (?:SESSION )?LOCK_TIMEOUT (?:=|TO) 0$`)
	someTimeout = regexp.MustCompile(`^SET (?:SESSION )?LOCK_TIMEOUT\b`)

	columnDefault = regexp.MustCompile(`^ADD (?:COLUMN )?.*\bDEFAULT (.*)`)
	call          = regexp.MustCompile(`(\w+) ?\(`)
	// What is called by a default and is the same for all rows, and types that are written like calls.
	sameForAll = []string{
		"NOW", "STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP", "CURRENT_SETTING",
		"NUMERIC", "DECIMAL", "VARCHAR", "CHAR", "BIT", "INTERVAL", "TIMESTAMP", "TIMESTAMPTZ", "TIME",
	}
	setNotNull = regexp.MustCompile(`^ALTER (?:COLUMN )?(\w+) SET NOT NULL`)
	validate   = regexp.MustCompile(`^VALIDATE CONSTRAINT`)
)

// actions are what ALTER TABLE must not do: to tables that have grown, or to any where the release before would notice.
var actions = []struct {
	pattern  *regexp.Regexp
	harmless *regexp.Regexp // where it matches, too
	any      bool           // of the size of the table
	problem  string
}{
	{regexp.MustCompile(`^ADD (?:CONSTRAINT \w+ )?(?:FOREIGN KEY|CHECK|NOT NULL)\b`), regexp.MustCompile(`\bNOT VALID\b`), false, "adds a constraint that is not NOT VALID"},
	{regexp.MustCompile(`^ADD (?:CONSTRAINT \w+ )?(?:UNIQUE|PRIMARY KEY|EXCLUDE)\b`), regexp.MustCompile(`\bUSING INDEX\b`), false, "builds an index"},
	{regexp.MustCompile(`^ADD (?:COLUMN )?.*\b(?:REFERENCES|CHECK|UNIQUE|PRIMARY KEY)\b`), regexp.MustCompile(`^ADD (?:CONSTRAINT|CHECK|FOREIGN|UNIQUE|PRIMARY|EXCLUDE)\b`), false, "adds a column with a constraint that all rows are checked for"},
	{regexp.MustCompile(`^ADD (?:COLUMN )?.*\b(?:GENERATED|SMALLSERIAL|SERIAL|BIGSERIAL)\b`), nil, false, "adds a column whose value differs from row to row"},
	{regexp.MustCompile(`^ADD (?:COLUMN )?(?:IF NOT EXISTS )?\w+ .*\bNOT NULL\b`), regexp.MustCompile(`\b(?:DEFAULT|GENERATED|CHECK|SMALLSERIAL|SERIAL|BIGSERIAL)\b|^ADD CONSTRAINT\b`), true, "adds a column that must not be null and has no default: the release before does not fill it"},
	{regexp.MustCompile(`^ALTER (?:COLUMN )?\w+ (?:SET DATA )?TYPE\b`), nil, true, "changes a type: every row, and what the statements of the release before return"},
	{regexp.MustCompile(`^SET (?:LOGGED|UNLOGGED|TABLESPACE|ACCESS METHOD)\b`), nil, false, "rewrites the table"},
	{regexp.MustCompile(`^ATTACH PARTITION\b`), nil, false, "reads all rows of the partition"},
}

// contractions are what ALTER TABLE may do only when nobody uses it any longer.
var contractions = regexp.MustCompile(`^DROP (?:COLUMN )?(?:IF EXISTS )?\w+|^ALTER (?:COLUMN )?\w+ DROP (?:DEFAULT|IDENTITY)`)

// judge tells what is wrong with a migration that is applied while the release before serves: statements that hold a lock on a
// grown table for as long as the table is long, and those that take away what is in use. Earlier are the migrations before it.
// It knows the forms in which migrations are written here, not all of SQL.
func judge(migration string, earlier ...string) []string {
	j := &judgement{concurrent: noTransaction.MatchString(migration), contracts: contract.MatchString(migration), locked: map[string]bool{}}
	for _, text := range earlier {
		j.before = append(j.before, statements(text)...)
	}
	for _, statement := range statements(migration) {
		j.statement(statement)
		j.before = append(j.before, statement)
	}
	if !j.concurrent && len(j.locked) > 1 && j.lockers > 1 {
		j.problems = append(j.problems, "locks several large tables in one transaction, where services lock them in another order: give each a migration of its own")
	}
	if j.untimed {
		j.problems = append(j.problems, "leaves the session without its lock_timeout: set it again at the end")
	}
	if builtAtRunTime(migration) {
		j.problems = append(j.problems, "has a DO block with EXECUTE, which nobody can judge: write the statements out")
	}
	return j.problems
}

// statements are a migration's, in capitals, with all texts empty.
func statements(migration string) (all []string) {
	plain := literal.ReplaceAllString(comment.ReplaceAllString(migration, " "), "''")
	for statement := range strings.SplitSeq(plain, ";") {
		statement = strings.ToUpper(strings.TrimSpace(blank.ReplaceAllString(strings.ReplaceAll(statement, `"`, ""), " ")))
		if statement != "" {
			all = append(all, statement)
		}
	}
	return all
}

func builtAtRunTime(migration string) bool {
	text := strings.ToUpper(blank.ReplaceAllString(comment.ReplaceAllString(migration, " "), " "))
	for _, at := range doBlock.FindAllStringSubmatchIndex(text, -1) {
		body, _, _ := strings.Cut(text[at[1]:], text[at[2]:at[3]])
		if strings.Contains(body, "EXECUTE ") {
			return true
		}
	}
	return false
}

type judgement struct {
	concurrent bool     // it is in no transaction
	contracts  bool     // it says since when nobody uses what it drops
	before     []string // statements
	locked     map[string]bool
	lockers    int  // statements that lock a grown table
	untimed    bool // the session waits for locks without an end
	problems   []string
}

func (j *judgement) statement(s string) {
	problem := func(format string, args ...any) {
		j.problems = append(j.problems, fmt.Sprintf(format, args...)+": "+s)
	}
	if someTimeout.MatchString(s) {
		j.untimed = noTimeout.MatchString(s)
	}
	j.index(s, problem)
	if m := alterTable.FindStringSubmatch(s); m != nil {
		j.alter(m[1], splitActions(m[2]), problem)
	}
	if m := whole.FindStringSubmatch(s); m != nil {
		if m[1] == "" {
			problem("changes or locks every table")
		}
		for word := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return !(r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z') }) {
			if isGrown(word) {
				problem("changes or locks all of %s", strings.ToLower(word))
			}
		}
	}
	if m := change.FindStringSubmatch(s); m != nil && isGrown(m[1]) && !byKey.MatchString(m[2]) {
		problem("changes more of %s than what has a key: that is for the services, in steps", strings.ToLower(m[1]))
	}
	if rename.MatchString(s) {
		problem("renames what the release before uses")
	}
	if drop.MatchString(s) && !j.contracts {
		problem("takes away what the release before may use: -- contract: says since which release nobody does")
	}
	j.lock(s)
}

// lock notes which grown tables a statement locks against writers, if only for a moment.
func (j *judgement) lock(s string) {
	var tables []string
	if m := alterTable.FindStringSubmatch(s); m != nil && !validate.MatchString(m[2]) {
		tables = append(tables, m[1])
	}
	for _, pattern := range []*regexp.Regexp{references, trigger} {
		for _, m := range pattern.FindAllStringSubmatch(s, -1) {
			tables = append(tables, m[1])
		}
	}
	tables = slices.DeleteFunc(tables, func(table string) bool { return !isGrown(table) })
	if len(tables) > 0 {
		j.lockers++
	}
	for _, table := range tables {
		j.locked[table] = true
	}
}

func (j *judgement) index(s string, problem func(string, ...any)) {
	if m := createIndex.FindStringSubmatch(s); m != nil && isGrown(m[5]) {
		concurrently, anyway, name, only, table := m[1] != "", m[2] != "", m[3], m[4] != "", m[5]
		switch partitioned := table == "MODEL_CALL" && only; {
		case partitioned:
		case !concurrently:
			problem("builds an index of %s while writers wait", strings.ToLower(table))
		case !j.concurrent:
			problem("CONCURRENTLY needs -- +goose NO TRANSACTION")
		case anyway, name == "", !slices.ContainsFunc(j.before, func(s string) bool {
			d := dropIndex.FindStringSubmatch(s)
			return d != nil && d[1] != "" && d[2] != "" && d[3] == name
		}):
			problem("an attempt that failed leaves an index that is not valid: DROP INDEX CONCURRENTLY IF EXISTS it first, and create it then")
		case !j.untimed:
			problem("waits for the end of every transaction, fsck's among them: SET lock_timeout = 0 first, since nobody waits for it")
		}
	}
	if m := dropIndex.FindStringSubmatch(s); m != nil {
		if m[1] == "" || !j.concurrent {
			problem("needs CONCURRENTLY and -- +goose NO TRANSACTION")
		}
		if m[2] == "" && !j.contracts {
			problem("takes away what the release before may use: -- contract: says since which release nobody does")
		}
	}
	if m := reindex.FindStringSubmatch(s); m != nil && (m[1] == "" || !j.concurrent) {
		problem("needs CONCURRENTLY and -- +goose NO TRANSACTION")
	}
}

func (j *judgement) alter(table string, list []string, problem func(string, ...any)) {
	large := isGrown(table)
	for _, action := range list {
		for _, a := range actions {
			if (large || a.any) && a.pattern.MatchString(action) && (a.harmless == nil || !a.harmless.MatchString(action)) {
				problem("%s", a.problem)
			}
		}
		if contractions.MatchString(action) && !strings.HasPrefix(action, "DROP CONSTRAINT ") && !j.contracts {
			problem("takes away what the release before may use: -- contract: says since which release nobody does")
		}
		if !large {
			continue
		}
		if m := columnDefault.FindStringSubmatch(action); m != nil {
			for _, c := range call.FindAllStringSubmatch(m[1], -1) {
				if !slices.Contains(sameForAll, c[1]) && c[1] != "CHECK" && c[1] != "REFERENCES" {
					problem("adds a column whose value may differ from row to row")
				}
			}
		}
		if m := setNotNull.FindStringSubmatch(action); m != nil && !j.knownNotNull(table, m[1]) {
			problem("reads all rows for a null: validate CHECK (%s IS NOT NULL) in a migration before", strings.ToLower(m[1]))
		}
		if validate.MatchString(action) && !j.concurrent && j.locked[table] {
			problem("reads all rows, with the table locked by a statement before it: give it a migration of its own")
		}
	}
}

// knownNotNull reports whether a constraint that says so has been validated: then Postgres reads nothing.
func (j *judgement) knownNotNull(table, column string) bool {
	check := regexp.MustCompile(`\bALTER TABLE (?:ONLY )?(?:\w+\.)?` + table + ` .*\bADD CONSTRAINT (\w+) CHECK ?\(\(?` + column + ` IS NOT NULL\)?\)`)
	for _, s := range j.before {
		m := check.FindStringSubmatch(s)
		if m == nil {
			continue
		}
		validated := regexp.MustCompile(`\bALTER TABLE (?:ONLY )?(?:\w+\.)?` + table + ` .*\bVALIDATE CONSTRAINT ` + m[1] + `\b`)
		if slices.ContainsFunc(j.before, validated.MatchString) {
			return true
		}
	}
	return false
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
