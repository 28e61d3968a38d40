package outbox_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/evalonce/evalonce/pkg/evaluation"
	"github.com/evalonce/evalonce/pkg/ledger"
	"github.com/evalonce/evalonce/pkg/outbox"
)

// plenty is an allowance that nothing exceeds.
func plenty() *outbox.Allowance {
	budget := decimal.New(1000, 0)
	return &outbox.Allowance{Calls: math.MaxInt32, Tokens: math.Inf(1), TokenRatio: 1, Budget: &budget}
}

func (w *world) claimWithin(most int, a *outbox.Allowance) []outbox.Claimed {
	w.t.Helper()
	var claimed []outbox.Claimed
	w.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		claimed, err = w.claimer("a", time.Minute).ClaimWithin(ctx, tx, most, a)
		return err
	})
	return claimed
}

func priced(v *evaluation.Version) {
	v.Prices.InputUSDPerMTok, v.Prices.CachedInputUSDPerMTok, v.Prices.OutputUSDPerMTok = decimal.New(4, 0), decimal.New(1, 0), decimal.New(10, 0)
}

// size is what a call for the n-th text counts: bytes as stored, without fixed ones.
func (w *world) size(n int) int {
	w.t.Helper()
	_, ticket := w.job(n)
	departments := get[int](w, "SELECT octet_length(departments::text) FROM evaluator_version")
	return len(w.version.Prompt) + 2*departments + len(ticket.Subject) + len(ticket.Message)
}

func TestClaimWithinIsAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 3)
	claimed := w.claimWithin(10, plenty())
	if len(claimed) != 3 {
		t.Fatalf("claimed %d rows, want 3", len(claimed))
	}
	for _, c := range claimed {
		if want := (row{Status: "processing", Attempts: 1, Owner: "a"}); w.row(c.Key) != want || c.Attempts != 1 || c.Subject != "subject" {
			t.Errorf("row is %+v, want %+v; claimed %+v", w.row(c.Key), want, c)
		}
		if got := w.outcome(c.CallID); got != "open" {
			t.Errorf("call is %s, want open", got)
		}
	}
	if again := w.claimWithin(10, plenty()); len(again) != 0 {
		t.Errorf("claimed %d leased rows", len(again))
	}
}

// The oldest go first, and one that has no room is not passed over.
func TestClaimWithinTakesWhatHasRoom(t *testing.T) {
	t.Parallel()
	size := 0.0
	for name, c := range map[string]struct {
		allow func(*outbox.Allowance)
		want  int
		short bool
	}{
		"all":                    {func(*outbox.Allowance) {}, 4, false},
		"calls":                  {func(a *outbox.Allowance) { a.Calls = 3 }, 3, false},
		"no calls":               {func(a *outbox.Allowance) { a.Calls = 0 }, 0, false},
		"tokens":                 {func(a *outbox.Allowance) { a.Tokens = 2 * size / 4 }, 2, true},
		"fewer tokens":           {func(a *outbox.Allowance) { a.Tokens = 2*size/4 - 0.1 }, 1, true},
		"tokens by their ratio":  {func(a *outbox.Allowance) { a.Tokens, a.TokenRatio = 2*size/4, 0.5 }, 4, false},
		"tokens for none":        {func(a *outbox.Allowance) { a.Tokens = size/4 - 0.1 }, 0, true},
		"a debt of tokens":       {func(a *outbox.Allowance) { a.Tokens = -1 }, 0, true},
		"as many tokens as ever": {func(a *outbox.Allowance) { a.Tokens, a.TokensFull = size/4-0.1, true }, 1, true},
		"money":                  {func(a *outbox.Allowance) { *a.Budget = worst(size).Mul(decimal.New(3, 0)) }, 3, true},
		"less money": {func(a *outbox.Allowance) {
			*a.Budget = worst(size).Mul(decimal.New(3, 0)).Sub(decimal.New(1, -9))
		}, 2, true},
		"no money": {func(a *outbox.Allowance) { *a.Budget = decimal.New(-1, 0) }, 0, true},
		"more bytes": {func(a *outbox.Allowance) {
			a.FixedBytes = 100
			*a.Budget = worst(size).Mul(decimal.New(3, 0))
		}, 2, true},
	} {
		w := newWorld(t, priced)
		size = float64(w.size(0))
		w.enqueue(0, 4)
		a := plenty()
		c.allow(a)
		before, budget := a.Calls, *a.Budget
		claimed := w.claimWithin(10, a)
		if len(claimed) != c.want || before-a.Calls != c.want || (a.Short != nil) != c.short {
			t.Errorf("%s: claimed %d, %d calls taken, short of %v; want %d", name, len(claimed), before-a.Calls, a.Short, c.want)
		}
		if c.short && (math.Abs(a.Short.Tokens-a.TokenRatio*(size+float64(a.FixedBytes))/4) > 0.01 || a.Short.OverBudget != (a.Tokens > 1e6)) {
			t.Errorf("%s: short of %+v", name, a.Short)
		}
		charged := decimal.Zero
		if c.want > 0 {
			charged = get[decimal.Decimal](w, "SELECT sum(charged_usd) FROM model_call WHERE outcome = 'open'")
		}
		each := worst(size + float64(a.FixedBytes))
		if want := each.Mul(decimal.NewFromInt(int64(c.want))); !charged.Equal(want) || !budget.Sub(*a.Budget).Equal(want) {
			t.Errorf("%s: charged %s, taken %s of the budget, want %s", name, charged, budget.Sub(*a.Budget), want)
		}
		for _, c := range claimed {
			if math.Abs(c.Tokens-(size+float64(a.FixedBytes))/4) > 0.01 || !c.Charged {
				t.Errorf("%s: claimed %+v", name, c)
			}
		}
	}
}

// worst is what a call of so many bytes costs at the worst, at the prices of a priced version.
func worst(bytes float64) decimal.Decimal {
	return decimal.NewFromFloat(bytes).Mul(decimal.New(5, 0)).Add(decimal.New(100*10, 0)).Shift(-6)
}

func TestClaimWithinLimitsIsNotCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, priced)
	w.enqueue(0, 2)
	a := plenty()
	a.Budget = nil
	claimed := w.claimWithin(10, a)
	if len(claimed) != 2 || claimed[0].Charged || get[int](w, "SELECT count(*) FROM model_call WHERE charged_usd IS NOT NULL") != 0 {
		t.Errorf("claimed %+v, charged though there is no budget", claimed)
	}
}

// Work whose answer is known goes through without room.
func TestClaimWithinPassesWhatIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, priced)
	w.enqueue(0, 3)
	answered, saved := w.claimOne("a"), w.claimOne("a")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := ledger.Close(ctx, tx, []ledger.Closure{
			{CallID: answered.CallID, Outcome: ledger.Answered, Response: []byte("a")},
			{CallID: saved.CallID, Outcome: ledger.Saved, Response: []byte("the response")},
		}); err != nil {
			return err
		}
		_, err := ledger.Save(ctx, tx, []ledger.Result{w.resultOf(answered)})
		return err
	})
	w.expire()
	w.exec("UPDATE evaluation_outbox SET available_at = now() - attempts * interval '1 second' - CASE idempotency_key WHEN $1 THEN interval '1 hour' WHEN $2 THEN interval '1 hour' ELSE '0' END",
		string(answered.Key), string(saved.Key))
	a := plenty()
	*a.Budget = decimal.Zero
	a.Tokens = 0
	before := a.Calls
	claimed := w.claimWithin(10, a)
	if len(claimed) != 2 || a.Calls != before || a.Short == nil {
		t.Fatalf("claimed %+v, %d calls taken, short of %v; want the two that need no call", claimed, before-a.Calls, a.Short)
	}
	for _, c := range claimed {
		if c.Key == saved.Key && string(c.SavedResponse) != "the response" || c.Key == answered.Key && !c.Answered || c.Charged || c.Tokens != 0 {
			t.Errorf("claimed %+v", c)
		}
	}
}

// A claim whose transaction comes to nothing is made again.
func TestClaimWithinAfterARollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(0, 30)
	c := w.claimer("a", time.Minute)
	for range 2 {
		tx, err := w.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if claimed, err := c.ClaimWithin(t.Context(), tx, 10, plenty()); err != nil || len(claimed) != 10 {
			t.Errorf("claimed %d, %v", len(claimed), err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	found := 0
	for found < 30 && time.Now().Before(deadline) {
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			claimed, err := c.ClaimWithin(ctx, tx, 10, plenty())
			found += len(claimed)
			return err
		})
	}
	if found != 30 {
		t.Errorf("found %d of 30 rows", found)
	}
}
