package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/services/admin/internal/api"
)

// compared is an operator whose versions v1 and v2 have answered three tickets, x1 of which both the same.
func compared(t *testing.T) *operator {
	t.Helper()
	db := pgtest.New(t)
	o := serve(t, api.Policy(), func(r grpc.ServiceRegistrar) { api.Register(r, db, db, awake{}) })
	for _, id := range []string{"v1", "v2"} {
		o.must("version", "register", "-f", file(t, id+".yaml", yamlVersion(id, "Sort "+id)))
	}
	if _, err := db.Exec(context.WithoutCancel(t.Context()), `
		WITH ticket AS (
		  INSERT INTO ticket (id, client_id, external_id, subject, message, content_hash)
		  SELECT uuid_v7(), 'acme', CASE i WHEN 3 THEN '=1+1' ELSE 'x' || i END, 'secret', i::text, sha256(i::text::bytea) FROM generate_series(1, 3) i
		  RETURNING id, content_hash, message::int AS i
		), call AS (
		  INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome, cost_usd, response)
		  SELECT uuid_v7(), evaluation_key(t.content_hash, v.digest), v.id, gen_random_uuid(), 1, now(), 'answered', 0.01, 'raw'
		  FROM ticket t, evaluator_version v RETURNING id, idempotency_key
		)
		INSERT INTO evaluation_result (idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
		  model_version, prompt_version, policy_version, priority, queue, model_call_id)
		SELECT c.idempotency_key, t.content_hash, t.id, v.id, 0.1, CASE WHEN v.id = 'v2' AND t.i > 1 THEN 'technical' ELSE 'billing' END, 0.1 * t.i,
		  'm', 'p', 'builtin-1', 'low', 'q', c.id
		FROM ticket t CROSS JOIN evaluator_version v JOIN call c ON c.idempotency_key = evaluation_key(t.content_hash, v.digest)`); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestCompare(t *testing.T) {
	t.Parallel()
	o := compared(t)

	got := o.must("compare", "v1", "v2", "--since", "1d")
	for _, want := range []string{"3 tickets", "the same department", "1  33.3 %", "The tickets that disagree most", "x2"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s", want, got.out)
		}
	}
	if strings.Contains(got.out, "secret") {
		t.Errorf("what a customer wrote is shown:\n%s", got.out)
	}

	lines := strings.Split(strings.TrimSpace(o.must("compare", "v1", "v2", "--since", "1d", "-o", "json").out), "\n")
	var first struct {
		Summary struct{ Agreed string }
	}
	var second struct {
		Disagreement struct {
			OtherAnswer struct {
				RawResponse string `json:"raw_response"`
			} `json:"other_answer"`
		}
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || first.Summary.Agreed != "1" || len(lines) != 3 {
		t.Errorf("%v: %q", err, lines)
	}
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil || second.Disagreement.OtherAnswer.RawResponse != "raw" {
		t.Errorf("%v: %q", err, lines[1])
	}

	rows := readCSV(t, o.must("compare", "v1", "v2", "--since", "1d", "-o", "csv", "-n", "1").out)
	if len(rows) != 2 || rows[0][1] != "external_id" || len(rows[0]) != 5+2*8 {
		t.Errorf("disagreements %q", rows)
	}
	// What begins a formula is no formula.
	all := o.must("compare", "v1", "v2", "--since", "1d", "-o", "csv").out
	if strings.Contains(all, ",=1+1,") || !strings.Contains(all, ",'=1+1,") {
		t.Errorf("a formula in\n%s", all)
	}
	if got := o.must("compare", "v1", "v2", "--since", "1d", "-o", "csv", "--part", "confusion").out; got !=
		"department,other_department,tickets\nbilling,technical,2\nbilling,billing,1\n" {
		t.Errorf("confusion\n%s", got)
	}

	o.runs("compare", "v1", "v2").want(t, exitUsage, "over which tickets")
	o.runs("compare", "v1").want(t, exitUsage, "name another version")
	o.runs("compare", "v1", "v3", "--since", "1d").want(t, exitNotFound, "no version v3")
	o.runs("compare", "v1", "v2", "--sample", "none").want(t, exitNotFound, "no such sample")
	o.runs("compare", "v1", "v2", "--since", "2026-01-01").want(t, exitUsage, "RFC 3339")
	o.runs("version", "list", "-o", "csv").want(t, exitUsage, "no output as CSV")
}

func TestCompareWithTruth(t *testing.T) {
	t.Parallel()
	o := compared(t)
	jsonl := file(t, "truth.jsonl", `{"external_id":"x1","department":"billing","urgent":false}
{"external_id":"x2","department":"Billing","urgent":true,"subject":"ignored"}
{"external_id":"nobody","department":"billing"}
`)
	got := o.must("compare", "v2", "--truth", jsonl)
	for _, want := range []string{"right department", "1  50.0 %", "of no such ticket", "1, such as nobody", "PRECISION", "TRUTH down, v2 across"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s", want, got.out)
		}
	}
	rows := readCSV(t, o.must("compare", "v2", "--truth", file(t, "truth.csv", "external_id,department\nx1,billing\nx2,technical\n"), "-o", "csv", "--part", "departments").out)
	if len(rows) != 3 || strings.Join(rows[1], " ") != "billing true true 1 1 1 1 1 1" {
		t.Errorf("departments %q", rows)
	}
	for text, want := range map[string]string{
		"department\nbilling\n":                         "line 2: neither a ticket_id nor an external_id",
		"external_id,department\nx1,\n":                 "line 2: no department",
		"external_id,department,urgent\nx1,b,perhaps\n": "line 2: urgent is neither",
		"external_id\nx1\n":                             `line 1: no column "department"`,
	} {
		o.runs("compare", "v2", "--truth", file(t, "truth.csv", text)).want(t, exitUsage, want)
	}
	o.runs("compare", "v1", "v2", "--truth", jsonl).want(t, exitUsage, "leave out one of them")
	o.runs("compare", "v1", "--truth", "none.jsonl").want(t, exitUsage, "none.jsonl")
}

func TestSample(t *testing.T) {
	t.Parallel()
	o := compared(t)
	if got := o.must("sample", "create", "s", "--since", "1d", "--size", "2", "--dry-run"); got.out != "dry run: sample s has 2 tickets\n" {
		t.Errorf("%+v", got)
	}
	create := []string{"sample", "create", "s", "--since", "2026-01-01T00:00:00Z", "--until", "2096-01-01T00:00:00Z", "--size", "2"}
	if got := o.must(create...); got.out != "sample s has 2 tickets\n" {
		t.Errorf("%+v", got)
	}
	if got := o.must(create...); got.out != "sample s was there already, with 2 tickets\n" {
		t.Errorf("%+v", got)
	}
	o.runs(append(create, "--seed", "2")...).want(t, exitConflict, "choose a new id")
	if got := o.must("compare", "v1", "v2", "--sample", "s"); !strings.Contains(got.out, "2 tickets") {
		t.Errorf("%+v", got)
	}
	if got := o.must("sample", "list"); !strings.Contains(got.out, "s   2        2     2026-01-01T00:00:00Z") {
		t.Errorf("%+v", got)
	}
	o.must("sample", "get", "s")
	o.runs("sample", "delete", "s").want(t, exitUsage, "give --yes")
	o.answers("n\n", "sample", "delete", "s").want(t, exitFailed, "Forget sample s of 2 tickets?")
	o.must("sample", "delete", "s", "--yes", "--reason", "done")
	o.runs("sample", "get", "s").want(t, exitNotFound, "no such sample")
	if got := o.must("audit", "list", "--target", "samples/s"); !strings.Contains(got.out, "CompareService.DeleteSample") {
		t.Errorf("%+v", got)
	}
}

func readCSV(t *testing.T, text string) [][]string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return rows
}
