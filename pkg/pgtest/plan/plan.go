// Package plan reads the plans of statements, so that a test sees a slow statement without a clock.
//
// A statement is executed twice, and both executions are rolled back: planned for its arguments, and planned for any,
// which is what a prepared statement may come to after a few executions. What a test asks of its plan has to hold for
// both.
package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Plan is how a statement was executed.
type Plan struct {
	t     testing.TB
	trees []tree
}

// tree is one execution.
type tree struct {
	outline string // indented, with what each node read
	nodes   []node
}

type node struct {
	kind     string // Index Scan, Sort …
	relation string
	index    string
	rows     int // returned or thrown away, in all loops
}

// Of executes a statement in tx, rolls it back, and returns its plan.
func Of(t testing.TB, tx pgx.Tx, sql string, args ...any) *Plan {
	t.Helper()
	p := &Plan{t: t}
	for _, explain := range []func(context.Context, pgx.Tx, string, []any) (string, error){custom, generic} {
		p.execute(tx, sql, args, explain)
	}
	return p
}

// execute takes in what an execution comes to, and discards its effect.
func (p *Plan) execute(tx pgx.Tx, sql string, args []any, explain func(context.Context, pgx.Tx, string, []any) (string, error)) {
	p.t.Helper()
	text, err := discarded(p.t.Context(), tx, func(ctx context.Context, tx pgx.Tx) (string, error) { return explain(ctx, tx, sql, args) })
	if err != nil {
		p.t.Fatalf("explain %s: %v", sql, err)
	}
	executed, err := parse(text)
	if err != nil {
		p.t.Fatalf("read the plan of %s: %v", sql, err)
	}
	p.trees = append(p.trees, executed)
}

// discarded runs fn in a transaction within tx that is rolled back.
func discarded(ctx context.Context, tx pgx.Tx, fn func(context.Context, pgx.Tx) (string, error)) (string, error) {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return "", err
	}
	text, err := fn(ctx, inner)
	if rollback := inner.Rollback(context.WithoutCancel(ctx)); err == nil {
		err = rollback
	}
	return text, err
}

const explain = "EXPLAIN (ANALYZE, FORMAT JSON) "

func custom(ctx context.Context, tx pgx.Tx, sql string, args []any) (text string, err error) {
	err = tx.QueryRow(ctx, explain+sql, args...).Scan(&text)
	return text, err
}

// generic plans the statement for whatever arguments.
func generic(ctx context.Context, tx pgx.Tx, sql string, args []any) (text string, err error) {
	const name = "evalonce_plan"
	if text, err = execute(ctx, tx, name, sql, args, explain); err != nil {
		return "", err
	}
	return text, tx.Conn().Deallocate(ctx, name)
}

// execute prepares a statement under a name, unless the session has it by now, and executes it by the plan for whatever
// arguments that it has of it.
func execute(ctx context.Context, tx pgx.Tx, name, sql string, args []any, explain string) (text string, err error) {
	if _, err := tx.Exec(ctx, "SET LOCAL plan_cache_mode = force_generic_plan"); err != nil {
		return "", err
	}
	statement, err := tx.Conn().Prepare(ctx, name, sql)
	if err != nil {
		return "", err
	}
	constants := make([]string, len(args)) // which the plan does not see
	for i, arg := range args {
		encoded, err := tx.Conn().TypeMap().Encode(statement.ParamOIDs[i], pgx.TextFormatCode, arg, nil)
		if err != nil {
			return "", fmt.Errorf("argument %d: %w", i+1, err)
		}
		constants[i] = "NULL"
		if encoded != nil {
			constants[i] = "'" + strings.ReplaceAll(string(encoded), "'", "''") + "'"
		}
	}
	executed := explain + "EXECUTE " + pgx.Identifier{name}.Sanitize()
	if len(args) > 0 {
		executed += "(" + strings.Join(constants, ", ") + ")"
	}
	err = tx.QueryRow(ctx, executed, pgx.QueryExecModeSimpleProtocol).Scan(&text)
	return text, err
}

// explained is EXPLAIN's JSON, as far as it is read.
type explained struct {
	Kind           string      `json:"Node Type"`
	Relation       string      `json:"Relation Name"`
	Index          string      `json:"Index Name"`
	Rows           float64     `json:"Actual Rows"`
	Loops          float64     `json:"Actual Loops"`
	RemovedFilter  float64     `json:"Rows Removed by Filter"`
	RemovedJoin    float64     `json:"Rows Removed by Join Filter"`
	RemovedRecheck float64     `json:"Rows Removed by Index Recheck"`
	Children       []explained `json:"Plans"`
}

func parse(text string) (tree, error) {
	var roots []struct{ Plan explained }
	if err := json.Unmarshal([]byte(text), &roots); err != nil {
		return tree{}, err
	}
	var t tree
	var visit func(e explained, depth int)
	visit = func(e explained, depth int) {
		n := node{
			kind: e.Kind, relation: e.Relation, index: e.Index,
			rows: int((e.Rows + e.RemovedFilter + e.RemovedJoin + e.RemovedRecheck) * e.Loops),
		}
		t.nodes = append(t.nodes, n)
		t.outline += fmt.Sprintf("%s%s %s %s (%d rows)\n", strings.Repeat("  ", depth), n.kind, n.relation, n.index, n.rows)
		for _, c := range e.Children {
			visit(c, depth+1)
		}
	}
	for _, root := range roots {
		visit(root.Plan, 0)
	}
	return t, nil
}

// Uses fails the test unless an index is used that matches pattern, as [path.Match] has it: partitions have indexes of
// their own.
func (p *Plan) Uses(pattern string) {
	p.t.Helper()
	for _, tree := range p.trees {
		used := false
		for _, n := range tree.nodes {
			used = used || matches(pattern, n.index)
		}
		if !used {
			p.t.Errorf("index %s is not used:\n%s", pattern, tree.outline)
		}
	}
}

// NoSort fails the test if anything is sorted. A statement that sorts its batch, for the order of its locks, is told
// from one that sorts the backlog by [Plan.ReadsAtMost].
func (p *Plan) NoSort() {
	p.t.Helper()
	p.none("sorts", func(n node) bool { return strings.Contains(n.kind, "Sort") })
}

// NoSeqScan fails the test if a table is read as a whole that matches pattern and is not empty.
func (p *Plan) NoSeqScan(pattern string) {
	p.t.Helper()
	p.none("reads all of "+pattern, func(n node) bool {
		return strings.Contains(n.kind, "Seq Scan") && n.rows > 0 && matches(pattern, n.relation)
	})
}

// ReadsAtMost fails the test if a node reads more rows, in all its loops.
func (p *Plan) ReadsAtMost(rows int) {
	p.t.Helper()
	p.none(fmt.Sprintf("reads more than %d rows", rows), func(n node) bool { return n.rows > rows })
}

// RowsRead is the largest number of rows that any node read, in all its loops.
func (p *Plan) RowsRead() int {
	most := 0
	for _, tree := range p.trees {
		for _, n := range tree.nodes {
			most = max(most, n.rows)
		}
	}
	return most
}

func (p *Plan) none(what string, bad func(node) bool) {
	p.t.Helper()
	for _, tree := range p.trees {
		for _, n := range tree.nodes {
			if bad(n) {
				p.t.Errorf("%s %s %s %s:\n%s", n.kind, n.relation, n.index, what, tree.outline)
			}
		}
	}
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil && name != ""
}
