package inference

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/failure"
	"github.com/evalonce/evalonce/pkg/providersim"
)

func simulate(t testing.TB, script ...providersim.Rule) *providersim.Server {
	t.Helper()
	sim := providersim.New(providersim.Options{APIKeys: []string{"sk-test"}, Script: script, Prices: providersim.Prices{
		InputUSDPerMTok: decimal.NewFromInt(4), CachedInputUSDPerMTok: decimal.NewFromInt(1), OutputUSDPerMTok: decimal.NewFromInt(20),
	}})
	if err := sim.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	return sim
}

func (d dialect) simulated(t testing.TB, sim *providersim.Server) *Client {
	return d.client(t, Config{BaseURL: sim.URL() + d.prefix, APIKey: "sk-test"})
}

func TestSimulatedAnswer(t *testing.T) { eachDialect(t, simulatedAnswer) }

func simulatedAnswer(t *testing.T, d dialect) {
	sim := simulate(t)
	q := d.question(t)
	q.Version.Prompt = strings.Repeat("Think twice. ", 100)
	client := d.simulated(t, sim)
	got, err := client.Call(within(t), q)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evaluation.ParseAnswer(got.Content, q.Version.Departments); err != nil {
		t.Errorf("%v in %s", err, got.Content)
	}
	entry := onlyEntry(t, sim)
	if got.ProviderRequestID != entry.RequestID || got.ServedModel != entry.ServedModel || got.HTTPStatus != 200 {
		t.Errorf("response is %+v, entry %+v", got, entry)
	}
	if entry.Headers["x-client-request-id"] != q.CallID.String() || entry.Protocol != d.provider {
		t.Errorf("entry is %+v", entry)
	}
	if want := billed(entry); got.Usage != want {
		t.Errorf("usage is %+v, the provider billed %+v", got.Usage, want)
	}
	if content := providersim.FingerprintOf(q.Text.Subject, q.Text.Message); entry.Content != content {
		t.Errorf("the provider saw another ticket")
	}

	if got, err = client.Call(within(t), q); err != nil {
		t.Fatal(err)
	}
	entry = sim.Ledger(1)[0]
	if want := billed(entry); got.Usage != want || want.CachedInputTokens == 0 {
		t.Errorf("the second time, usage is %+v, the provider billed %+v", got.Usage, want)
	}
	prices := evaluation.Prices{
		InputUSDPerMTok: decimal.NewFromInt(4), CachedInputUSDPerMTok: decimal.NewFromInt(1), OutputUSDPerMTok: decimal.NewFromInt(20),
	}
	for i, entry := range sim.Ledger(0) {
		if cost := prices.Cost(billed(entry)); !cost.Equal(entry.CostUSD) || !cost.IsPositive() {
			t.Errorf("call %d costs %s, the provider billed %s", i+1, cost, entry.CostUSD)
		}
	}
}

func billed(e providersim.Entry) evaluation.Usage {
	return evaluation.Usage{
		InputTokens: e.InputTokens, CachedInputTokens: e.CachedInputTokens, CacheWriteTokens: e.CacheWriteTokens,
		OutputTokens: e.OutputTokens, ReasoningTokens: e.ReasoningTokens,
	}
}

func onlyEntry(t *testing.T, sim *providersim.Server) providersim.Entry {
	t.Helper()
	if err := sim.WaitIdle(within(t)); err != nil {
		t.Fatal(err)
	}
	entries := sim.Ledger(0)
	if len(entries) != 1 {
		t.Fatalf("the provider received %d requests, want 1", len(entries))
	}
	return entries[0]
}

func TestSimulatedFaults(t *testing.T) { eachDialect(t, simulatedFaults) }

func simulatedFaults(t *testing.T, d dialect) {
	filtered := failure.ContentFilter
	if d.provider == "anthropic" {
		filtered = failure.Refusal // the one word for both
	}
	for _, tt := range []struct {
		action providersim.Action
		reason failure.Reason
	}{
		{providersim.Action{Error: providersim.RateLimit}, failure.RateLimited},
		{providersim.Action{Error: providersim.SlowDown}, failure.RateLimited},
		{providersim.Action{Error: providersim.InsufficientQuota}, failure.QuotaExhausted},
		{providersim.Action{Error: providersim.SpendLimit}, failure.QuotaExhausted},
		{providersim.Action{Error: providersim.InvalidAPIKey}, failure.Unauthorized},
		{providersim.Action{Error: providersim.Forbidden}, failure.Forbidden},
		{providersim.Action{Error: providersim.ModelNotFound}, failure.ModelNotFound},
		{providersim.Action{Error: providersim.Overloaded503}, failure.Overloaded},
		{providersim.Action{Error: providersim.ServerError500}, failure.ServerError},
		{providersim.Action{Error: providersim.BadGateway502}, failure.ServerError},
		{providersim.Action{Error: providersim.GatewayTimeout504}, failure.Timeout},
		{providersim.Action{Error: providersim.Overloaded529}, failure.Overloaded},
		{providersim.Action{Error: providersim.ContextLength}, failure.ContextTooLong},
		{providersim.Action{Error: providersim.ContentFilter400}, failure.ContentFilter},
		{providersim.Action{Error: providersim.BadSchema400}, failure.BadRequest},
		{providersim.Action{Error: providersim.Conflict409}, failure.Conflict},
		{providersim.Action{Error: providersim.RequestTimeout408}, failure.Timeout},
		{providersim.Action{Error: providersim.RequestTooLarge413}, failure.ContextTooLong},
		{providersim.Action{Status: 200, Body: "<html>login</html>", Headers: map[string]string{"Content-Type": "text/html"}}, failure.MalformedResponse},
		{providersim.Action{Status: 200, Body: `{"error":{"code":502,"message":"the model is down"}}`}, failure.ServerError},
		{providersim.Action{Error: providersim.ServerError500, Body: `{"error":"the prompt is too long"}`}, failure.ContextTooLong},
		{providersim.Action{Answer: providersim.AnswerBadJSON}, failure.ContractViolation},
		{providersim.Action{Answer: providersim.AnswerEmptyBody}, failure.ConnectionLost},
		{providersim.Action{Answer: providersim.AnswerEmptyChoices}, failure.EmptyAnswer},
		{providersim.Action{Answer: providersim.AnswerNullContent}, failure.EmptyAnswer},
		{providersim.Action{Answer: providersim.AnswerEmptyContent}, failure.EmptyAnswer},
		{providersim.Action{Answer: providersim.AnswerRefusal}, failure.Refusal},
		{providersim.Action{Answer: providersim.AnswerTruncated}, failure.Truncated},
		{providersim.Action{Answer: providersim.AnswerLength}, ""},
		{providersim.Action{Answer: providersim.AnswerContentFilter}, filtered},
		{providersim.Action{Answer: providersim.AnswerNoUsage}, ""},
		{providersim.Action{CutAfterBytes: 1}, failure.ConnectionLost},
		{providersim.Action{CutAfterBytes: 100}, failure.ConnectionLost},
		{providersim.Action{Close: providersim.CloseOnAccept}, failure.ConnectionLost},
		{providersim.Action{Close: providersim.CloseAfterRequest}, failure.ConnectionLost},
		{providersim.Action{Close: providersim.CloseAfterAnswer}, failure.ConnectionLost},
	} {
		t.Run(fmt.Sprintf("%s%s%s %d %d%s", tt.action.Error, tt.action.Answer, tt.action.Close, tt.action.Status, tt.action.CutAfterBytes, tt.action.Body), func(t *testing.T) {
			t.Parallel()
			sim := simulate(t, providersim.Rule{Action: tt.action})
			got, err := d.simulated(t, sim).Call(within(t), d.question(t))
			expect(t, err, tt.reason)
			entry := onlyEntry(t, sim)
			var f *failure.Failure
			if errors.As(err, &f) && entry.Billed && f.Class != failure.Permanent && f.Class != failure.Unknown {
				t.Errorf("paid for, and yet %s: it would be bought again", f.Class)
			}
			if entry.Status != 0 && got.HTTPStatus != entry.Status {
				t.Errorf("status is %d, the provider sent %d", got.HTTPStatus, entry.Status)
			}
			if entry.Billed && got.Usage != (evaluation.Usage{}) && got.Usage != billed(entry) {
				t.Errorf("usage is %+v, the provider billed %+v", got.Usage, entry)
			}
		})
	}
}

// Whoever gives up on a provider that works cannot know what it will be billed.
func TestSimulatedHangs(t *testing.T) { eachDialect(t, simulatedHangs) }

func simulatedHangs(t *testing.T, d dialect) {
	stopping := errors.New("the worker is stopping")
	withCause := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		return ctx, func() { cancel(stopping) }
	}
	for _, hang := range []providersim.Hang{providersim.HangBeforeAnswer, providersim.HangAfterAnswer, providersim.HangMidBody} {
		for _, tt := range []struct {
			end    func(context.Context) (context.Context, context.CancelFunc)
			reason failure.Reason
			cause  error
		}{
			{withCause, failure.Canceled, stopping},
			{newDeadline, failure.Timeout, context.DeadlineExceeded},
		} {
			t.Run(string(hang)+" "+string(tt.reason), func(t *testing.T) {
				t.Parallel()
				sim := simulate(t, providersim.Rule{Action: providersim.Action{Hang: hang}})
				o := d.simulated(t, sim)
				ctx, end := tt.end(within(t))
				defer end()
				failed := make(chan error, 1)
				go func() {
					_, err := o.Call(ctx, d.question(t))
					failed <- err
				}()
				if err := sim.WaitHanging(within(t), 1); err != nil {
					t.Fatal(err)
				}
				end()
				err := <-failed
				expect(t, err, tt.reason)
				if !errors.Is(err, tt.cause) {
					t.Errorf("the cause is %v, want %v", errors.Unwrap(err), tt.cause)
				}
				onlyEntry(t, sim)
			})
		}
	}
}

// As many calls as a large worker makes are under way at once, and each is made once.
func TestThousandCallsAtOnce(t *testing.T) {
	t.Parallel()
	const concurrent = 1000
	sim := simulate(t, providersim.Rule{Action: providersim.Action{Hang: providersim.HangBeforeAnswer}})
	o := dialects[0].simulated(t, sim)
	ctx := within(t)
	var calls sync.WaitGroup
	for i := range concurrent {
		calls.Go(func() {
			q := question(t)
			q.CallID = uuid.New()
			q.Text.Message = fmt.Sprintf("ticket %d", i)
			if _, err := o.Call(ctx, q); err != nil {
				t.Error(err)
			}
		})
	}
	if err := sim.WaitHanging(ctx, concurrent); err != nil {
		t.Fatal(err)
	}
	sim.Release()
	calls.Wait()
	stats := sim.Stats()
	if stats.Requests != concurrent || stats.BilledContents != concurrent || stats.MaxBilledPerContent != 1 {
		t.Errorf("the provider's sums are %+v", stats)
	}
	ids := map[string]bool{}
	for _, entry := range sim.Ledger(0) {
		ids[entry.Headers["x-client-request-id"]] = true
	}
	if len(ids) != concurrent {
		t.Errorf("%d different calls, want %d", len(ids), concurrent)
	}
}
