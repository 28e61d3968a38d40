package providersim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/evalonce/evalonce/pkg/providersim"
)

func TestLedgerCountsUnderConcurrency(t *testing.T) {
	t.Parallel()
	const callers, calls, contents = 16, 25, 40
	sim := start(t, providersim.Options{})
	client := connections(t)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for call := range calls {
				message := fmt.Sprint("ticket ", (caller*calls+call)%contents)
				got, err := do(t, client, http.MethodPost, sim.URL()+"/v1/chat/completions", rawBody("Help", message), "X-Evalonce-Caller", fmt.Sprint(caller))
				if err != nil || got.status != 200 {
					t.Errorf("%+v, %v", got, err)
				}
			}
		})
	}
	all.Wait()
	stats := sim.Stats()
	const total = callers * calls
	if stats.Requests != total || stats.Billed != total || stats.ByOutcome[providersim.Answered] != total || stats.InFlight != 0 ||
		stats.DistinctContents != contents || stats.BilledContents != contents || stats.BilledAgainContents != contents ||
		stats.MaxBilledPerContent != total/contents {
		t.Errorf("stats %+v", stats)
	}
	attempts := map[string]bool{}
	var input int64
	for i, e := range sim.Ledger(0) {
		if e.Seq != i+1 || !e.Billed || e.EndedAt.Before(e.ReceivedAt) || e.Headers["x-evalonce-caller"] == "" {
			t.Errorf("entry %+v", e)
		}
		attempts[fmt.Sprint(e.Content, e.Attempt)] = true
		input += e.InputTokens
	}
	if len(attempts) != total || input != stats.InputTokens {
		t.Errorf("%d attempts, %d input tokens of %d", len(attempts), input, stats.InputTokens)
	}
}

func TestLedgerOfManyBlocks(t *testing.T) {
	t.Parallel()
	sim := providersim.New(providersim.Options{APIKeys: []string{"other"}})
	const n = 9000 // more than two blocks of records
	for i := range n {
		request := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		request.Header.Set("Idempotency-Key", fmt.Sprint(i+1))
		request.Header.Set("X-Evalonce-Noise", strings.Repeat("x", 5000))
		sim.ServeHTTP(httptest.NewRecorder(), request)
	}
	entries := sim.Ledger(100)
	if len(entries) != n-100 {
		t.Fatalf("%d entries", len(entries))
	}
	for i, e := range entries {
		if e.Seq != i+101 || e.Headers["idempotency-key"] != fmt.Sprint(e.Seq) || len(e.Headers["x-evalonce-noise"]) > 255 {
			t.Fatalf("entry %+v", e)
		}
	}
	if len(sim.Ledger(n)) != 0 || len(sim.Ledger(n+5)) != 0 {
		t.Error("entries after the last")
	}
}

func TestStartsAgainOnItsAddress(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{})
	client := connections(t)
	if _, err := ask(t, client, sim, "Hello"); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(sim.URL(), "http://")
	if err := sim.Start(address); err == nil {
		t.Error("started twice")
	}
	done := sim.Done()
	if err := sim.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	client.CloseIdleConnections()
	if _, err := ask(t, client, sim, "Hello"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("while closed: %v", err)
	}
	if err := sim.Start(address); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, client, sim, "Hello"); err != nil || got.status != 200 {
		t.Errorf("after the restart: %+v, %v", got, err)
	}
	if e := sim.Ledger(1); len(e) != 1 || e[0].Attempt != 2 {
		t.Errorf("the ledger did not stay: %+v", e)
	}
}

func TestWaitSaysWhatItSaw(t *testing.T) {
	t.Parallel()
	sim := providersim.New(providersim.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sim.WaitForRequests(ctx, 1); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "0 requests") {
		t.Errorf("got %v", err)
	}
	if err := sim.WaitForRequests(ctx, 0); err != nil {
		t.Errorf("nothing to wait for: %v", err)
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	sim := start(t, providersim.Options{})
	client := connections(t)
	control := func(method, path string, body any, status int, into any) {
		t.Helper()
		got := mustDo(t, client, method, sim.URL()+"/_sim/"+path, body)
		if got.status != status {
			t.Fatalf("%s %s: %d %s", method, path, got.status, got.body)
		}
		if into != nil {
			if err := json.Unmarshal(got.body, into); err != nil {
				t.Fatalf("%s %s: %s: %v", method, path, got.body, err)
			}
		}
	}
	var health map[string]string
	control("GET", "healthz", nil, 200, &health)
	if health["status"] != "ok" {
		t.Errorf("health %v", health)
	}
	var none []providersim.Entry
	control("GET", "ledger", nil, 200, &none)
	if none == nil || len(none) != 0 {
		t.Errorf("empty ledger %v", none)
	}

	control("POST", "rules", `{"match":{"attempt":1},"action":{"hang":"after_answer","latency":"1ms"},"times":1}`, 201, nil)
	control("POST", "rules", `[{"name":"two","match":{"nth":2},"action":{"error":"slow_down","retry_after":"2s"}}]`, 201, nil)
	first := begin(t, sim, "a secret text")
	if err := sim.WaitHanging(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	var released map[string]int
	control("POST", "release", nil, 200, &released)
	if released["released"] != 1 {
		t.Errorf("released %v", released)
	}
	if err := first.wait(t); err != nil {
		t.Error(err)
	}
	if got, err := ask(t, client, sim, "another"); err != nil || got.status != 503 || got.header.Get("Retry-After") != "2" {
		t.Errorf("%+v, %v", got, err)
	}
	var inForce []struct {
		Rule providersim.Rule
		Hits int
	}
	control("GET", "rules", nil, 200, &inForce)
	if len(inForce) != 2 || inForce[0].Hits != 1 || inForce[1].Hits != 1 || inForce[1].Rule.Name != "two" || inForce[0].Rule.Action.Latency == 0 {
		t.Errorf("rules %+v", inForce)
	}
	control("DELETE", "rules", nil, 204, nil)

	control("PUT", "outage", `{"error":"overloaded_503"}`, 204, nil)
	if got, err := ask(t, client, sim, "third"); err != nil || got.status != 503 {
		t.Errorf("in the outage: %+v, %v", got, err)
	}
	control("DELETE", "outage", nil, 204, nil)
	if got, err := ask(t, client, sim, "third"); err != nil || got.status != 200 {
		t.Errorf("after the outage: %+v, %v", got, err)
	}

	var stats providersim.Stats
	control("GET", "stats", nil, 200, &stats)
	if stats.Requests != 4 || stats.Billed != 2 || stats.DistinctContents != 3 || stats.MaxBilledPerContent != 1 || stats.ByOutcome[providersim.Failed] != 2 {
		t.Errorf("stats %+v", stats)
	}
	var entries []providersim.Entry
	control("GET", "ledger?since=1", nil, 200, &entries)
	if len(entries) != 3 || entries[0].Seq != 2 || entries[0].Content != providersim.FingerprintOf("Help", "another") {
		t.Errorf("ledger %+v", entries)
	}
	raw := mustDo(t, client, http.MethodGet, sim.URL()+"/_sim/ledger", nil)
	for _, secret := range []string{"secret", "sk-test", "Help"} {
		if strings.Contains(string(raw.body), secret) {
			t.Errorf("%q is in the ledger", secret)
		}
	}

	control("POST", "rules", `{"match":{"ntth":2},"action":{}}`, 400, nil)
	control("POST", "rules", `{"action":{"error":"gremlins"}}`, 400, nil)
	control("PUT", "outage", `{"errror":"slow_down"}`, 400, nil)
	control("GET", "ledger?since=x", nil, 400, nil)
	control("GET", "elsewhere", nil, 404, nil)
	control("GET", "rules", nil, 200, &inForce)
	if len(inForce) != 0 {
		t.Errorf("a refused rule is in force: %+v", inForce)
	}
}

func TestParseRules(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		``, `null x`, `{"action":{"latency":5}}`, `{"action":{"latency":"soon"}}`, `{"action":{"latency":"-1s"}}`, `{"times":-1,"action":{}}`,
		`{"match":{"probability":1.5},"action":{}}`, `{"match":{"nth":-1},"action":{}}`, `{"match":{"from":5,"to":2},"action":{}}`,
		`{"match":{"content":"abc"},"action":{}}`, `{"match":{"after":"2s","before":"1s"},"action":{}}`,
		`{"action":{"hang":"forever"}}`, `{"action":{"close":"maybe"}}`, `{"action":{"answer":"42"}}`, `{"action":{"status":99}}`,
		`{"action":{"error":"slow_down","status":500}}`, `{"action":{"error":"slow_down","content":"x"}}`, `{"action":{"body":"x"}}`,
		`{"action":{"hang":"after_answer","error":"slow_down"}}`, `{"action":{"hang":"mid_body","close":"after_answer"}}`,
		`{"action":{"cut_after_bytes":-1}}`, `{"match":{"text":"x"},"action":{"close":"on_accept"}}`, `[{"action":{}},{"surprise":1}]`,
	} {
		if rules, err := providersim.ParseRules([]byte(bad)); err == nil {
			t.Errorf("%s: accepted as %+v", bad, rules)
		}
	}
	const whole = `{"name":"n","match":{"nth":1,"from":1,"to":2,"attempt":3,"text":"t","content":"` +
		`0000000000000000000000000000000000000000000000000000000000000000","model":"m","probability":0.5,"after":"1s","before":"1m0s"},` +
		`"action":{"latency":"20ms","hang":"before_answer","error":"slow_down","body":"b","headers":{"A":"b"},"retry_after":"1.5s"},"times":4}`
	rules, err := providersim.ParseRules([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(rules[0])
	if err != nil || string(out) != whole {
		t.Errorf("read and written again: %s, %v", out, err)
	}
}

// FuzzRequest holds that no body stops the server in any protocol, and that only a whole answer is billed.
func FuzzRequest(f *testing.F) {
	for _, whole := range []any{rawBody("Help", "It is down"), rawResponse("It is down"), rawMessage("It is down")} {
		body, err := json.Marshal(whole)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(body))
		f.Add(strings.Replace(string(body), `"enum":[`, `"enum":[1,`, 1))
		f.Add(strings.Replace(string(body), `-----END`, `-----END TICKET `, 1))
	}
	f.Add(`{"model":"m","messages":[{"role":"user","content":[{"text":1}]}]}`)
	f.Add(`{"model":"m","messages":null}`)
	f.Add(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":null}]}]}`)
	f.Add(`{"model":"m","input":[{"role":"user","content":[1]}]}`)
	sim := providersim.New(providersim.Options{})
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
			r.Header.Set("Anthropic-Version", "2026-10-21")
			sim.ServeHTTP(w, r)
			e := sim.Ledger(sim.Stats().Requests - 1)[0]
			if e.Status != w.Code || e.Billed != (w.Code == http.StatusOK) || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s: status %d, entry %+v, body %s", path, w.Code, e, w.Body)
			}
		}
	})
}

func BenchmarkComplete(b *testing.B) {
	sim := providersim.New(providersim.Options{})
	body, err := json.Marshal(rawBody("Não consigo entrar", strings.Repeat("A página dá erro quando tento entrar na conta. ", 10)))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		sim.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(string(body))))
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}
