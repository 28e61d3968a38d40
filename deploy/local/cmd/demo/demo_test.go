package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evalonce/evalonce/deploy/local/internal/report"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/ticketfile"
)

const someTickets = `{"external_id": "1", "subject": "Invoice", "message": "My invoice is wrong, I was charged twice.", "department": "Billing"}
{"subject": "Parcel", "message": "Where is my parcel? The delivery is late.", "department": "order_shipping"}
{"subject": "Invoice", "message": "My invoice is wrong, I was charged twice.\r\n", "department": "billing"}
{"message": "Thank you for everything."}
`

// demoOf prepares a demo of the tickets, on a database of the test's own.
func demoOf(t *testing.T, tickets string) (context.Context, *demo, *strings.Builder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := stack.Build(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := config{
		bin: bin, dir: filepath.Join(dir, "demo"), figures: filepath.Join(dir, "demo.json"),
		ticketFile: filepath.Join(dir, "tickets.jsonl"), truth: ticketfile.TruthColumn,
		versionFile: filepath.Join(root, "deploy", "local", "tickets", "demo-version.json"),
		server:      pgtest.EmptyURL(t),
	}
	if err := os.WriteFile(cfg.ticketFile, []byte(tickets), 0o600); err != nil {
		t.Fatal(err)
	}
	job, err := plan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(ctx, stack.Options{Bin: cfg.bin, Dir: cfg.dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancelWatch := s.Watch(ctx)
	t.Cleanup(cancelWatch)
	var out strings.Builder
	return ctx, &demo{config: cfg, job: job, stack: s, out: &out}, &out
}

func figuresOf(t *testing.T, d *demo) report.Figures {
	t.Helper()
	data, err := os.ReadFile(d.figures)
	if err != nil {
		t.Fatal(err)
	}
	var f report.Figures
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDemo(t *testing.T) {
	t.Parallel()
	ctx, d, out := demoOf(t, someTickets)
	if err := d.run(ctx); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f := figuresOf(t, d)
	if f.Tickets != 4 || f.DistinctContents != 3 || f.PaidCalls != 3 || f.SavedCalls != 1 || f.Succeeded != 4 || f.Dead != 0 {
		t.Errorf("got %+v", f)
	}
	if f.EvaluationsPerSecond <= 0 || f.CreateP50Ms <= 0 || f.CreateP99Ms < f.CreateP50Ms {
		t.Errorf("got %+v", f)
	}
	if f.Accuracy == nil || *f.Accuracy != 1 {
		t.Errorf("accuracy is %v, want that of the three tickets with a department", f.Accuracy)
	}
	for _, want := range []string{
		"offline lexical classifier, not a language model", "4 in ", "2, those in column \"department\"", "evaluated 4 of 4",
		"order_shipping", "the simulator billed 3 too", "US$ ", "of 3 tickets got the department", "all kept",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said in\n%s", want, out)
		}
	}
}

// What KEEP=1 shows before it waits.
func TestDemoShowsAWebhook(t *testing.T) {
	t.Parallel()
	ctx, d, out := demoOf(t, someTickets)
	if err := d.start(ctx); err != nil {
		t.Fatal(err)
	}
	defer d.db.Close()
	client, err := connect(ctx, d.api.GRPC, d.token)
	if err != nil {
		t.Fatal(err)
	}
	defer client.close()
	webhooks, err := d.receive(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	defer webhooks.close()
	if err := d.showWebhook(ctx, client, webhooks); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"evaluation.succeeded, id ", "signature verified", `"external_id":"webhook-demo"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said in\n%s", want, out)
		}
	}
}

// The demo must not call a run good whose accounts disagree.
func TestDemoRefusesAnAccountThatIsNotTheSimulators(t *testing.T) {
	t.Parallel()
	ctx, d, _ := demoOf(t, someTickets)
	if err := d.start(ctx); err != nil {
		t.Fatal(err)
	}
	defer d.db.Close()
	if a, err := d.account(ctx); err != nil || a.disagreement != nil {
		t.Fatalf("nothing paid, nothing billed: %+v, %v", a, err)
	}
	for _, outcome := range []string{"unknown", "answered"} {
		if _, err := d.db.Exec(ctx, `
			INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, finished_at, outcome, class, reason)
			VALUES (uuid_v7(), repeat('0', 32), 'demo-1', gen_random_uuid(), 1, now(), $1, 'unknown', 'timeout')`, outcome); err != nil {
			t.Fatal(err)
		}
		a, err := d.account(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if disagree := a.disagreement != nil; disagree != (outcome == "answered") {
			t.Errorf("an %s call that the simulator knows nothing of: %v", outcome, a.disagreement)
		}
	}
}

func TestDemoEndsWithAWrongKey(t *testing.T) {
	t.Parallel()
	ctx, d, out := demoOf(t, someTickets)
	endpoint, err := d.stack.StartSimulator(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d.provider, d.model = &stack.Endpoint{BaseURL: endpoint.Endpoint.BaseURL, APIKey: "wrong"}, "some-model"
	err = d.run(ctx)
	if err == nil || !strings.Contains(err.Error(), "unauthorized") {
		t.Errorf("got %v\n%s", err, out)
	}
	for _, want := range []string{"by model some-model at http://", "in about 3 calls", "somebody pays for them"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said in\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "lexical") {
		t.Errorf("a model is called a classifier:\n%s", out)
	}
}

func TestDemoTellsWhichTicketWasRefused(t *testing.T) {
	t.Parallel()
	tooLong := `{"subject": "` + strings.Repeat("s", 1001) + `", "message": "m"}` + "\n"
	ctx, d, out := demoOf(t, `{"message": "m"}`+"\n\n"+tooLong)
	err := d.run(ctx)
	if err == nil || !strings.Contains(err.Error(), "the ticket of line 3") || !strings.Contains(err.Error(), "subject") {
		t.Errorf("got %v\n%s", err, out)
	}
}
