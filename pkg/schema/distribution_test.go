package schema_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/evalonce/evalonce/pkg/pgtest"
)

// distribution is a row of the page's table: a table, the column that it would be distributed by, and whether the constraints
// allow that.
type distribution struct {
	table, column string
	allowed       bool
}

var quoted = regexp.MustCompile("`([a-z_]+)`")

// distributions reads the page: those that are distributed, and those that stay whole.
func distributions(t *testing.T) (distributed []distribution, whole []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "deploy", "SCALING.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "| table | distributed by |")
	if !found {
		t.Fatal("the page has no table of distribution")
	}
	for line := range strings.Lines(rest) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) < 5: // before the first row it is the rest of the heading
			if len(distributed)+len(whole) > 0 {
				return distributed, whole
			}
		case strings.TrimSpace(cells[3]) == "stay whole":
			for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
				whole = append(whole, name[1])
			}
		case quoted.MatchString(cells[1]):
			distributed = append(distributed, distribution{
				table: quoted.FindStringSubmatch(cells[1])[1], column: strings.Trim(cells[2], " `"), allowed: strings.TrimSpace(cells[3]) == "yes",
			})
		}
	}
	return distributed, whole
}

// A unique constraint can be kept by one shard alone if the column is in it, and a foreign key if it names the columns of both
// tables. The page says of every table whether that is so.
func TestWhatCanBeDistributed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	distributed, whole := distributions(t)
	told := slices.Clone(whole)
	columns := map[string]string{}
	for _, d := range distributed {
		told = append(told, d.table)
		columns[d.table] = d.column
	}
	slices.Sort(told)
	if tables := triples(t, db, `
		SELECT c.relname, '', '' FROM pg_class c
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'goose_db_version'
		ORDER BY c.relname COLLATE "C"`); !slices.EqualFunc(told, tables, func(name string, row [3]string) bool { return name == row[0] }) {
		t.Errorf("the page tells of %v; the tables are %v", told, tables)
	}
	obstacles := map[string][]string{}
	for _, row := range triples(t, db, `
		SELECT i.indrelid::regclass::text, i.indexrelid::regclass::text, string_agg(a.attname, ' ')
		FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
		WHERE i.indisunique GROUP BY 1, 2`) {
		if column, ok := columns[row[0]]; ok && !slices.Contains(strings.Fields(row[2]), column) {
			obstacles[row[0]] = append(obstacles[row[0]], row[1])
		}
	}
	for _, row := range triples(t, db, `
		SELECT f.conrelid::regclass::text, f.confrelid::regclass::text, string_agg(a.attname || '=' || b.attname, ' ')
		FROM pg_constraint f
		CROSS JOIN LATERAL unnest(f.conkey, f.confkey) AS k(own, other)
		JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.own
		JOIN pg_attribute b ON b.attrelid = f.confrelid AND b.attnum = k.other
		WHERE f.contype = 'f' GROUP BY f.oid, 1, 2`) {
		target, ok := columns[row[1]]
		if !ok {
			continue // of a table that is whole on every shard
		}
		if own, ok := columns[row[0]]; !ok || !slices.Contains(strings.Fields(row[2]), own+"="+target) {
			obstacles[row[0]] = append(obstacles[row[0]], "foreign key to "+row[1])
		}
	}
	for _, d := range distributed {
		if d.allowed != (len(obstacles[d.table]) == 0) {
			t.Errorf("%s by %s: the page says %v, in the way are %q", d.table, d.column, d.allowed, obstacles[d.table])
		}
	}
}

func triples(t *testing.T, db *pgxpool.Pool, sql string) [][3]string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r [3]string, err error) {
		return r, row.Scan(&r[0], &r[1], &r[2])
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
