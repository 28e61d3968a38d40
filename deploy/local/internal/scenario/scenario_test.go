package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/evalonce/evalonce/deploy/local/internal/scenario/rival"
	"github.com/evalonce/evalonce/deploy/local/internal/scenario/schedule"
	"github.com/evalonce/evalonce/deploy/local/stack"
	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/process"
	"github.com/evalonce/evalonce/pkg/providersim"
)

// The test binary is the rivals' processes, too, as the command is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && rival.Is(os.Args[1]) {
		process.Main(func(ctx context.Context, args, environ []string, stdout, _ io.Writer) error {
			return rival.Run(ctx, args[0], environ, stdout)
		})
	}
	goleak.VerifyTestMain(m)
}

// A short month with all its parts: each design meets an outage of 40 minutes and three kills.
func TestEveryDesignPlaysTheMonth(t *testing.T) {
	t.Parallel()
	bin, err := stack.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	results, err := Run(t.Context(), Options{
		Options: schedule.Options{Seed: 1, Count: 200, Pace: 2400, Rate: 100}, Lease: 2 * time.Second,
		Bin: bin, Self: self, Dir: filepath.Join(t.TempDir(), "scenario"), Server: pgtest.EmptyURL(t),
	}, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if len(results) != 3 {
		t.Fatalf("%d results", len(results))
	}
	inRequest, queue, evalOnce := results[0], results[1], results[2]

	const distinct = 176
	for _, r := range results {
		if r.Tickets != 200 || r.Distinct != distinct || r.Kills != 3 || r.Seed != 1 {
			t.Errorf("%s: %+v", r.Design, r)
		}
		if !(0 < r.CreateP50Ms && r.CreateP50Ms <= r.CreateP95Ms && r.CreateP95Ms <= r.CreateP99Ms) {
			t.Errorf("%s: percentiles %v, %v, %v", r.Design, r.CreateP50Ms, r.CreateP95Ms, r.CreateP99Ms)
		}
		// A call costs the same in each design, what it should: they ask in the same words.
		mean := r.CostUSD.Div(decimal.NewFromInt(int64(r.Billed))).InexactFloat64()
		if mean < 0.0107 || mean > 0.0113 {
			t.Errorf("%s: US$ %.5f for a call", r.Design, mean)
		}
		if (r.DrainSeconds == nil) != (r.Design == "in_request") {
			t.Errorf("%s: drain %v", r.Design, r.DrainSeconds)
		}
	}

	if evalOnce.Unevaluated != 0 || evalOnce.ClientsGaveUp != 0 || len(evalOnce.Broken) > 0 {
		t.Errorf("EvalOnce left %d tickets without evaluation, %d clients gave up: %v", evalOnce.Unevaluated, evalOnce.ClientsGaveUp, evalOnce.Broken)
	}
	if evalOnce.Billed < distinct || evalOnce.BilledAgain != evalOnce.Billed-distinct || evalOnce.BilledAgain > evalOnce.InFlightAtKills {
		t.Errorf("EvalOnce was billed %d calls for %d contents, %d in flight at kills", evalOnce.Billed, distinct, evalOnce.InFlightAtKills)
	}

	// The others do what their designs let them do: if they did not, the comparison would show nothing.
	if inRequest.Unevaluated == 0 || inRequest.ClientsGaveUp < inRequest.Unevaluated || inRequest.Unevaluated > 100 {
		t.Errorf("in the request: %d tickets without evaluation, %d clients gave up", inRequest.Unevaluated, inRequest.ClientsGaveUp)
	}
	if queue.ClientsGaveUp != 0 || queue.Unevaluated >= inRequest.Unevaluated {
		t.Errorf("queue: %d tickets without evaluation, %d clients gave up", queue.Unevaluated, queue.ClientsGaveUp)
	}
	if queue.Billed+queue.Unevaluated < queue.Tickets || queue.BilledAgain == 0 {
		t.Errorf("queue: %d calls billed for %d tickets, %d of them again", queue.Billed, queue.Tickets, queue.BilledAgain)
	}
	readBack(t, results)
}

func readBack(t *testing.T, results []Result) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scenario.json")
	if err := WriteJSON(path, results); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read []map[string]any
	if err := json.Unmarshal(data, &read); err != nil || len(read) != len(results) {
		t.Fatalf("%s: %v", data, err)
	}
	for i, name := range []string{"in_request", "queue", "evalonce"} {
		if read[i]["design"] != name {
			t.Errorf("result %d is of %v", i, read[i]["design"])
		}
		for _, field := range []string{
			"create_p50_ms", "create_p95_ms", "create_p99_ms", "tickets_without_evaluation", "calls_billed", "calls_per_content",
			"cost_usd", "drain_s", "drain_virtual_minutes", "kills", "calls_in_flight_at_kills", "seed", "factor",
		} {
			if _, ok := read[i][field]; !ok {
				t.Errorf("%s has no %s", name, field)
			}
		}
	}
	var table bytes.Buffer
	WriteTable(&table, results)
	for _, r := range results {
		if !strings.Contains(table.String(), r.Title) {
			t.Errorf("no column for %s:\n%s", r.Title, &table)
		}
	}
}

func TestBreachesAreFound(t *testing.T) {
	t.Parallel()
	const tickets, distinct = 100, 90
	kept := account{evaluated: tickets, cut: 5}
	for _, test := range []struct {
		name          string
		account       account
		stats         providersim.Stats
		ledger, found int
	}{
		{name: "none", account: kept, stats: providersim.Stats{Requests: 120, Billed: 90, BilledContents: 90}, ledger: 120},
		{name: "what was in flight may be paid again", account: kept, stats: providersim.Stats{Requests: 120, Billed: 95, BilledContents: 90}, ledger: 125},
		{name: "one call more", account: kept, stats: providersim.Stats{Requests: 120, Billed: 96, BilledContents: 90}, ledger: 125, found: 1},
		{name: "a lost ticket", account: account{evaluated: 99, cut: 5}, stats: providersim.Stats{Requests: 120, Billed: 90, BilledContents: 90}, ledger: 120, found: 1},
		{name: "a call without a row", account: kept, stats: providersim.Stats{Requests: 121, Billed: 90, BilledContents: 90}, ledger: 120, found: 1},
		{name: "an answer that nobody paid for", account: kept, stats: providersim.Stats{Requests: 120, Billed: 89, BilledContents: 89}, ledger: 120, found: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if found := breaches(tickets, distinct, test.ledger, 0, test.account, test.stats); len(found) != test.found {
				t.Errorf("found %q", found)
			}
		})
	}
}

func TestRefusesAScheduleThatCannotBe(t *testing.T) {
	t.Parallel()
	if _, err := Run(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "scenario")}, io.Discard); err == nil || errors.Is(err, ErrBroken) {
		t.Errorf("got %v", err)
	}
}
